# SPDX-License-Identifier: Apache-2.0
"""A scan kernel on a CPU: rows chunk by chunk, each of which is in L1 from its scan to its last store."""

from __future__ import annotations

from dataclasses import replace

from fusec.ir.index import Index, add, minimum, mul, symbol
from fusec.ir.indexing import ceildiv, last
from fusec.ir.monoid import ReduceOp
from fusec.ir.types import DType, f32, f64
from fusec.passes.families.scan.rows import Cut, ScanRows
from fusec.passes.families.scan.schedule.cpu import ScanSchedule
from fusec.passes.lower.context import LoweredGroup, LoweringContext, is_large
from fusec.tile.nodes import Grid, Iter, Loop, Statement, Store
from fusec.tile.scalar import Buffer


def lower_scan(context: LoweringContext, schedule: ScanSchedule) -> LoweredGroup:
    """One kernel, or where rows are cut into parts two: what each part gives, then the scans."""
    cut = Cut(schedule.chunk, schedule.lanes, across=schedule.lanes > 0, parts=schedule.parts)
    sizes = (("rows", schedule.task_rows), ("chunk", schedule.chunk), ("lanes", schedule.lanes))
    details = tuple((name, n) for name, n in (*sizes, ("parts", schedule.parts)) if n > (name in ("rows", "parts")))
    if schedule.parts == 1:
        rows = ScanRows(context, cut, wide_of)
        code = [s for op in rows.scans for s in rows.carry(op)]
        code += [*rows.chunks(_streamed(context, rows.scanned(), schedule)), *rows.ended()]
        return context.finish("scan", (_grid(rows, code, schedule.task_rows),), details)
    return _in_parts(context, cut, schedule, details)


def _in_parts(
    context: LoweringContext, cut: Cut, schedule: ScanSchedule, details: tuple[tuple[str, int], ...]
) -> LoweredGroup:
    """A kernel that leaves what each part gives, and one that scans each from what those before it gave."""
    rows = ScanRows(context, cut, wide_of)
    code = [s for op in rows.scans for s in rows.carry(op)]
    totals = rows.totals()
    before = [*code, *rows.chunks([s for op in rows.scans for s in rows.reduced(op)])]
    before += [rows.leave(op, totals[op]) for op in rows.scans]
    after = [*code, *(s for op in rows.scans for s in rows.start(op, totals[op]))]
    after += rows.chunks(_streamed(context, rows.scanned(), schedule))
    kernels = (_grid(rows, before, 1), _grid(rows, after, 1))
    scratch: list[Buffer] = [*totals.values()]
    return context.finish_in_two("scan", (kernels[0],), scratch, "scan", (kernels[1],), details, warps=0)


def wide_of(op: ReduceOp, dtype: DType) -> DType:
    """The dtype in which a scan adds up: as PyTorch's do on a CPU, f32 in f64. What picks one of two needs no more."""
    if op in ("max", "min"):
        return dtype.accumulator
    return f64 if dtype is f32 else dtype.accumulator


def _streamed(context: LoweringContext, code: list[Statement], schedule: ScanSchedule) -> list[Statement]:
    """Large results go past the caches."""
    large = {context.buffers[v] for v in context.body.outputs if is_large(v, schedule.non_temporal_bytes)}
    return [replace(s, non_temporal=s.target in large) if isinstance(s, Store) else s for s in code]


def _grid(rows: ScanRows, code: list[Statement], task: int) -> Grid:
    """A point for each task."""
    parts = (Iter.over(rows.q, rows.cut.parts),) if rows.cut.parts > 1 else ()
    if rows.lane is not None or parts:
        inner = (Iter.over(rows.c, rows.blocks),) if rows.lane is not None else ()
        return Grid((*parts, Iter.over(rows.r, rows.rows), *inner), tuple(code))
    tasks = ceildiv(rows.rows, task)
    g = symbol("g", 0, last(tasks))
    stop: Index = add(mul(g, task), task)
    stop = stop if isinstance(rows.rows, int) and rows.rows % task == 0 else minimum(stop, rows.rows)
    return Grid((Iter.over(g, tasks),), (Loop(rows.r, mul(g, task), stop, 1, tuple(code)),))
