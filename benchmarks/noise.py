"""Whether the machine was ours while we measured: time that others took, from /proc/stat."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

_TICK = 1.0 / os.sysconf("SC_CLK_TCK")
_BUSY = (0, 1, 2, 5, 6, 7)
"""Columns of /proc/stat: user, nice, system, irq, softirq, and what the hypervisor took (steal)."""

TOLERATED = 0.04
"""Share of all cores that others may take before a measurement is thrown away."""


@dataclass(frozen=True)
class Moment:
    """Seconds since some start: of the clock, of the busy cores that this process may use, of this process and its
    finished children."""

    clock: float
    busy: float
    own: float


def now() -> Moment:
    mine = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    lines = (line.split() for line in Path("/proc/stat").read_text().splitlines())
    busy = sum(int(columns[1 + i]) for columns in lines if columns[0] in mine for i in _BUSY)
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    return Moment(time.perf_counter(), busy * _TICK, own)


def taken_by_others(start: Moment, end: Moment) -> float:
    """Share of the machine, 0 to 1, that other processes took. Ticks are coarse: up to three of them are no sign."""
    cores = len(os.sched_getaffinity(0))
    foreign = (end.busy - start.busy) - (end.own - start.own) - 3 * _TICK
    return max(0.0, foreign / ((end.clock - start.clock) * cores))


def wait_for_quiet(most: float) -> bool:
    """Waits until others take little for half a second, at most ``most`` seconds. Whether it got quiet."""
    deadline = time.perf_counter() + most
    while True:
        start = now()
        time.sleep(0.5)
        if taken_by_others(start, now()) < TOLERATED:
            return True
        if time.perf_counter() > deadline:
            return False
