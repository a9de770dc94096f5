# SPDX-License-Identifier: Apache-2.0
"""Schedules of map kernels on a CPU."""

from __future__ import annotations

from dataclasses import dataclass

from fusec.ir.indexing import round_up
from fusec.passes.schedule.base import CpuSchedule
from fusec.target.cpu import CpuTarget


@dataclass(frozen=True)
class MapSchedule(CpuSchedule):
    """``task_elements``: about how many elements one parallel task computes. ``non_temporal_bytes``: results of at
    least so many bytes go past the caches, 0 for none. ``results``: side by side, along the axis before the lanes', are
    computed together, as they share what they read."""

    task_elements: int
    non_temporal_bytes: int = 0
    results: int = 1


def map_schedule(elements: int, threads: int, target: CpuTarget, serial_below: int = 16384) -> MapSchedule:
    """One task where starting threads costs more than it saves, else at least four a thread."""
    non_temporal_bytes = non_temporal_from(target)
    if elements <= serial_below:
        return MapSchedule(max(elements, 1), non_temporal_bytes)
    per_task = max(serial_below // 2, -(-elements // (4 * threads)))
    return MapSchedule(min(round_up(per_task, 64), 65536), non_temporal_bytes)


STREAMED = 32 << 20
"""Bytes of a result that no cache keeps for whoever reads it next, on a machine with other work."""


def non_temporal_from(target: CpuTarget) -> int:
    """Bytes from which a result is written past the caches, 0 for never.

    A store of part of a line has the line read first, and that of a result larger than the caches is thrown out before
    anyone reads it.
    """
    return min(target.l3, STREAMED) if target.architecture == "x86_64" else 0


MOST_RESULTS, FEW_RESULTS = 8, 4
"""Results computed together with 32 registers for vectors, and with 16: a sum of each, and what they read meanwhile."""
