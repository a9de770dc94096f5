"""Schedules of map kernels on a CPU."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MapSchedule:
    """``task_elements``: about how many elements one parallel task computes."""

    task_elements: int


def map_schedule(elements: int, threads: int, serial_below: int = 16384) -> MapSchedule:
    """One task where starting threads costs more than it saves, else at least four a thread."""
    if elements <= serial_below:
        return MapSchedule(max(elements, 1))
    per_task = max(serial_below // 2, -(-elements // (4 * threads)))
    return MapSchedule(min(-(-per_task // 64) * 64, 65536))
