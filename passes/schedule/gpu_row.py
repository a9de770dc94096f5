"""Schedules of row kernels on GPUs."""

from __future__ import annotations

from fusec.passes.schedule.gpu import GpuRowSchedule, Launch, pow2
from fusec.target.gpu import GpuTarget

MOST_ELEMENTS = 32768
"""Elements that a block holds in registers."""

SIDE_BY_SIDE = 64
"""Neighbouring rows that a block takes where neighbours in memory lie in different rows."""

CHUNK = 8192
"""Elements of a wide row that are read at a time."""


def row_candidates(rows: int, length: int, target: GpuTarget, *, across: bool = False) -> list[GpuRowSchedule]:
    """Schedules for ``rows`` rows of ``length`` elements, best predicted first.

    ``across``: neighbours in memory are of neighbouring rows.
    """
    columns = pow2(max(length, 1))
    if across:
        return [_across(rows, columns, target)]
    if columns > MOST_ELEMENTS:
        return [GpuRowSchedule(1, CHUNK, _launch(CHUNK, target), whole=False)]
    together = max(1, min(pow2(max(rows, 1)), 4096 // columns))
    return [GpuRowSchedule(together, columns, _launch(together * columns, target))]


def _across(rows: int, columns: int, target: GpuTarget) -> GpuRowSchedule:
    side = min(pow2(max(rows, 1)), SIDE_BY_SIDE)
    if side * columns <= MOST_ELEMENTS // 2:
        side = max(side, min(pow2(max(rows, 1)), 4096 // columns))
        return GpuRowSchedule(side, columns, _launch(side * columns, target))
    chunk = max(64, 4096 // side)
    return GpuRowSchedule(side, chunk, _launch(side * chunk, target), whole=False)


def _launch(elements: int, target: GpuTarget) -> Launch:
    """Thirty-two elements a thread, so that blocks share a unit.

    On an H200, rows of 8192 bf16: layer norm 3.77 TB/s with 8 warps, 2.86 with 16; softmax 4.03 and 4.12.
    """
    return Launch(pow2(max(1, min(16, elements // (target.warp_size * 32)))), 1)
