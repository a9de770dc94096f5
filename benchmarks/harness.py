"""Times peers in turn, in one process, and counts only what the machine did for us alone."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

from benchmarks import noise

PAUSE = 0.002
"""Seconds between two peers' turns: OpenMP's threads spin for a millisecond after a call, on the next one's cores."""

_TURN = 0.003
"""A turn lasts at least this many seconds; shorter calls are repeated in it."""

_BATCH = 0.4
"""Seconds of rounds between two looks at what else the machine did."""


@dataclass(frozen=True)
class Peer:
    """``f(*args)`` is one call, finished when it returns. Its result is dropped at once."""

    f: Callable[..., Any]
    args: tuple[Any, ...] = ()

    def seconds(self, calls: int) -> float:
        """Seconds a call, over some calls in a row."""
        f, args = self.f, self.args
        start = time.perf_counter()
        for _ in repeat(None, calls):
            f(*args)
        return (time.perf_counter() - start) / calls


@dataclass(frozen=True)
class Budget:
    """How long a workload may be measured. wait: seconds to wait for a quiet machine, before and between rounds."""

    seconds: float
    least_rounds: int
    most_rounds: int
    wait: float


FULL = Budget(seconds=12.0, least_rounds=9, most_rounds=101, wait=30.0)
QUICK = Budget(seconds=1.5, least_rounds=3, most_rounds=21, wait=0.0)


@dataclass
class Times:
    """Seconds a call of each peer, round by round. first: seconds of each peer's first call, compiling included.

    calls: of each peer in a turn. thrown_away: rounds not counted because other processes ran. noisy: too few quiet
    rounds, so all are counted.
    """

    rounds: dict[str, list[float]]
    first: dict[str, float] = field(default_factory=dict)
    thrown_away: int = 0
    noisy: bool = False
    calls: Mapping[str, int] = field(default_factory=dict)

    def median(self, name: str) -> float:
        return statistics.median(self.rounds[name])

    def medians(self) -> dict[str, float]:
        return {name: self.median(name) for name in self.rounds}

    def spread(self, name: str) -> float:
        """Half the distance between the quartiles, over the median."""
        values = self.rounds[name]
        if len(values) < 2:
            return 0.0
        low, middle, high = statistics.quantiles(values, n=4)
        return (high - low) / 2 / middle

    @property
    def count(self) -> int:
        return len(next(iter(self.rounds.values()), ()))


def measure(peers: Mapping[str, Peer], budget: Budget) -> Times:
    """Warms every peer up, then runs rounds: each peer once a round, the order rotated from round to round."""
    first = {name: peer.seconds(1) for name, peer in peers.items()}
    calls = {name: _calls_a_turn(peer) for name, peer in peers.items()}
    noise.wait_for_quiet(budget.wait)
    quiet: dict[str, list[float]] = {name: [] for name in peers}
    every: dict[str, list[float]] = {name: [] for name in peers}
    names = list(peers)
    spent = 0.0
    thrown_away = 0
    deadline = time.perf_counter() + budget.seconds + budget.wait
    while not _enough(len(quiet[names[0]]), spent, budget) and time.perf_counter() < deadline:
        batch: dict[str, list[float]] = {name: [] for name in peers}
        start = noise.now()
        while noise.now().clock - start.clock < _BATCH:
            _round(peers, names, calls, batch)
            names = names[1:] + names[:1]
        end = noise.now()
        clean = noise.taken_by_others(start, end) < noise.TOLERATED
        for name, values in batch.items():
            every[name] += values
            if clean:
                quiet[name] += values
        if clean:
            spent += end.clock - start.clock
        else:
            thrown_away += len(batch[names[0]])
    noisy = len(quiet[names[0]]) < budget.least_rounds
    return Times(every if noisy else quiet, first, 0 if noisy else thrown_away, noisy, calls)


def _enough(rounds: int, spent: float, budget: Budget) -> bool:
    return rounds >= budget.most_rounds or (spent >= budget.seconds and rounds >= budget.least_rounds)


def _calls_a_turn(peer: Peer) -> int:
    """How many calls make a turn, from the fastest of a few after warming up."""
    fastest = min(peer.seconds(1) for _ in range(2))
    if fastest < _TURN:
        fastest = min(peer.seconds(max(1, int(_TURN / max(fastest, 1e-7)))) for _ in range(3))
    return max(1, round(_TURN / fastest))


def _round(peers: Mapping[str, Peer], order: list[str], calls: Mapping[str, int], into: dict[str, list[float]]) -> None:
    for name in order:
        time.sleep(PAUSE)
        into[name].append(peers[name].seconds(calls[name]))
