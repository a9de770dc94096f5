# SPDX-License-Identifier: Apache-2.0
"""Schedules of scatter kernels on a CPU."""

from __future__ import annotations

from dataclasses import dataclass

from fusec.passes.schedule.base import CpuSchedule

SERIAL = 16384
"""Added elements up to which one task does all."""


@dataclass(frozen=True)
class ScatterSchedule(CpuSchedule):
    """``parts``: of the rows that are added to, one for each task. Each task reads all of the index, and adds what goes
    to its own rows, in order: the sums are the same for any number of parts."""

    parts: int


def scatter_schedule(leading: int, rows: int, added: int, threads: int) -> ScatterSchedule:
    """A part for each thread, where there is enough to add, and ``leading`` axes are not shared out among threads.
    ``added``: elements."""
    return ScatterSchedule(max(1, min(threads, rows)) if added > SERIAL and leading < threads else 1)
