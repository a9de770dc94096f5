# SPDX-License-Identifier: Apache-2.0
"""A scan kernel on a GPU: a block holds rows, or a chunk of them at a time, in registers."""

from __future__ import annotations

from fusec.ir.monoid import ReduceOp
from fusec.ir.types import DType
from fusec.passes.families.scan.rows import Cut, ScanRows
from fusec.passes.families.scan.schedule.gpu import GpuScanSchedule
from fusec.passes.lower.blocks import ROW_BLOCKS, WALKING_BLOCKS
from fusec.passes.lower.context import LoweredGroup, LoweringContext
from fusec.tile.nodes import Grid, Iter, Statement


def lower_scan(context: LoweringContext, schedule: GpuScanSchedule) -> LoweredGroup:
    """One kernel, or where rows are cut into parts two: what each part gives, then the scans."""
    cut = Cut(schedule.chunk, schedule.beside, schedule.across, flat=not schedule.across, parts=schedule.parts)
    rows = ScanRows(context, cut, _wide)
    code = [s for op in rows.scans for s in rows.carry(op)]
    if schedule.parts == 1:
        grid = _grid(rows, [*code, *rows.chunks(rows.scanned()), *rows.ended()])
        traits = WALKING_BLOCKS if schedule.chunk == 1 else ROW_BLOCKS
        return context.finish("scan", (grid,), schedule.describe(), traits)
    totals = rows.totals()
    before = [*code, *rows.chunks([s for op in rows.scans for s in rows.reduced(op)])]
    before += [rows.leave(op, totals[op]) for op in rows.scans]
    again = ScanRows(context, cut, _wide, backwards=True)  # what was read last is in cache
    after = [s for op in again.scans for s in (*again.carry(op), *again.start(op, totals[op]))]
    after += again.chunks(again.scanned())
    return context.finish_in_two(
        "scan",
        (_grid(rows, before),),
        [*totals.values()],
        "scan",
        (_grid(again, after),),
        schedule.describe(),
        schedule.launch.warps,
        (ROW_BLOCKS, ROW_BLOCKS),
    )


def _wide(op: ReduceOp, dtype: DType) -> DType:
    """Half types add up in f32."""
    return dtype.accumulator


def _grid(rows: ScanRows, code: list[Statement]) -> Grid:
    parts = (Iter.over(rows.q, rows.cut.parts),) if rows.cut.parts > 1 else ()
    return Grid((*parts, Iter.over(rows.r, rows.rows), Iter.over(rows.c, rows.blocks)), tuple(code))
