# SPDX-License-Identifier: Apache-2.0
"""A scan kernel on a GPU: a block holds rows, or a chunk of them at a time, in registers."""

from __future__ import annotations

from fusec.ir.index import add, mul, sub, symbol
from fusec.ir.indexing import delinearize, most
from fusec.ir.monoid import ReduceOp
from fusec.ir.types import DType
from fusec.passes.families.scan.rows import Cut, ScanRows, attributes_of
from fusec.passes.families.scan.schedule.gpu import GpuScanSchedule
from fusec.passes.lower.blocks import ROW_BLOCKS, WALKING_BLOCKS
from fusec.passes.lower.context import LoweredGroup, LoweringContext
from fusec.tile.nodes import Block, Grid, Iter, Statement, Store
from fusec.tile.scalar import Buffer, Const

CLEARED = 1024
"""Elements that a block clears."""


def lower_scan(context: LoweringContext, schedule: GpuScanSchedule) -> LoweredGroup:
    """One kernel, or where rows are cut into parts two: what each part gives, then the scans.

    Of parts that relay the first clears their marks.
    """
    relayed = (True, 32 * schedule.launch.warps) if schedule.relay else ()
    cut = Cut(schedule.chunk, schedule.beside, schedule.across, not schedule.across, schedule.parts, *relayed)
    rows = ScanRows(context, cut, _wide, backwards=schedule.relay and attributes_of(context).reverse)
    code = [s for op in rows.scans for s in rows.carry(op)]
    if schedule.parts == 1:
        grid = _grid(rows, [*code, *rows.chunks(rows.scanned()), *rows.ended()])
        traits = WALKING_BLOCKS if schedule.chunk == 1 else ROW_BLOCKS
        return context.finish("scan", (grid,), schedule.describe(), traits)
    totals = rows.totals()
    if schedule.relay:
        gathered = rows.gathered()
        scratch = [*totals.values(), *gathered.values()]
        bodies = ((_cleared(scratch),), (_grid(rows, [*code, *rows.relayed(totals, gathered)]),))
        return _in_two(context, bodies, scratch, schedule)
    before = [*code, *rows.chunks([s for op in rows.scans for s in rows.reduced(op)])]
    before += [rows.leave(op, totals[op]) for op in rows.scans]
    again = ScanRows(context, cut, _wide, backwards=True)  # what was read last is in cache
    after = [s for op in again.scans for s in (*again.carry(op), *again.start(op, totals[op]))]
    after += again.chunks(again.scanned())
    return _in_two(context, ((_grid(rows, before),), (_grid(again, after),)), [*totals.values()], schedule)


def _in_two(
    context: LoweringContext, bodies: tuple[Block, Block], scratch: list[Buffer], schedule: GpuScanSchedule
) -> LoweredGroup:
    """A kernel that writes scratch for what parts give, and one that scans."""
    warps = schedule.launch.warps
    traits = (ROW_BLOCKS, ROW_BLOCKS)
    return context.finish_in_two("scan", bodies[0], scratch, "scan", bodies[1], schedule.describe(), warps, traits)


def _cleared(totals: list[Buffer]) -> Grid:
    """Takes the marks of earlier calls away."""
    blocks = -(-most(totals[0].extent) // CLEARED)
    g, j = symbol("g", 0, blocks - 1), symbol("j", 0, CLEARED - 1)
    at, stores = add(mul(g, CLEARED), j), list[Statement]()
    for b in totals:
        each = Iter(j, CLEARED, sub(b.extent, mul(g, CLEARED)))
        zero = Const(0.0 if b.dtype.is_float else 0, b.dtype)
        stores.append(Store((each,), b, delinearize(at, b.shape), zero))
    return Grid((Iter(g, blocks),), tuple(stores))


def _wide(op: ReduceOp, dtype: DType) -> DType:
    """Half types add up in f32."""
    return dtype.accumulator


def _grid(rows: ScanRows, code: list[Statement]) -> Grid:
    parts = (Iter.over(rows.q, rows.cut.parts),) if rows.cut.parts > 1 else ()
    return Grid((*parts, Iter.over(rows.r, rows.rows), Iter.over(rows.c, rows.blocks)), tuple(code))
