# SPDX-License-Identifier: Apache-2.0
"""Rows: reductions over the same rows, and the maps around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fusec.ir.attributes import ReduceAttributes
from fusec.ir.index import product
from fusec.ir.indexing import most
from fusec.ir.nodes import Op, Value
from fusec.passes.families.family import CpuMachine, CpuMember, Family, GpuMachine, GpuMember, foreign
from fusec.passes.families.languages import InCuda, in_both, stream_of
from fusec.passes.families.row.columns import lower_rows_and_columns
from fusec.passes.families.row.cpu import lower_row, reduced_is_innermost
from fusec.passes.families.row.gpu import lower_row as lower_gpu_row
from fusec.passes.families.row.match import match_rows
from fusec.passes.families.row.online import is_one_or_more
from fusec.passes.families.row.schedule.columns import column_candidates, walk_seconds
from fusec.passes.families.row.schedule.cpu import RowSchedule, row_schedule
from fusec.passes.families.row.schedule.gpu import (
    LIGHT_BLOCKS,
    GpuRowSchedule,
    cluster_candidates,
    row_candidates,
    row_seconds,
)
from fusec.passes.families.row.wide import lower_wide_row
from fusec.passes.groups.columns import rows_and_columns
from fusec.passes.lower.context import LoweredGroup, LoweringContext
from fusec.passes.schedule.base import CpuSchedule, GpuSchedule
from fusec.target.gpu import GpuTarget


def _anchors(context: LoweringContext) -> list[Op]:
    return rows_and_columns(context.body.ops, context.producers)[0]


def _cpu_candidates(context: LoweringContext, machine: CpuMachine) -> list[RowSchedule]:
    op = _anchors(context)[0]
    shape = op.operands[0].type.shape
    reduced = most(product(shape[a] for a in op.expect(ReduceAttributes).axes))
    rows = most(product(shape)) // max(reduced, 1)
    return [row_schedule(rows, reduced, machine.threads, machine.target)]


def _cpu_lower(context: LoweringContext, schedule: CpuSchedule) -> LoweredGroup:
    if not isinstance(schedule, RowSchedule):
        raise foreign("row", schedule)
    return lower_row(context, schedule)


def _gpu_candidates(context: LoweringContext, machine: GpuMachine) -> list[GpuSchedule]:
    """Rows that a cluster of blocks holds are read once, where one block would read them again."""
    sums = rows_and_columns(context.body.ops, context.producers)[1]
    if sums:
        return _column_candidates(context, machine, sums[0].parts)
    length, across = _row_length(context)
    light = _is_light(context)
    found = _row_candidates(context, machine.target, light and not across)
    elements = max(v.type.most for o in _anchors(context) for v in o.operands)
    large = [v for v in context.body.inputs if v.type.most >= elements]
    again = any(v.type.most >= elements for v in _late_outputs(context))
    twice = float(sum(v.type.most_bytes for v in large)) if again else 0.0
    stream, rows = stream_of(context.body), elements // max(length, 1)
    if light and twice / max(rows, 1) * LIGHT_BLOCKS * machine.target.sms <= machine.target.l2:
        twice = 0.0

    def timed(found: Sequence[GpuRowSchedule], cuda: bool) -> list[GpuRowSchedule]:
        seconds = (row_seconds(rows, s, stream, machine.target, again=twice, cuda=cuda) for s in found)
        return [replace(s, seconds=t) for s, t in zip(found, seconds, strict=True)]

    held: list[GpuRowSchedule] = []
    if machine.writes_cuda(context) and not across and not (machine.triton and light and _has_targets(context)):
        held = cluster_candidates(length, sum(v.type.dtype.bits for v in large), machine.target)
    return in_both(context, machine, timed(found, cuda=False), timed((*found, *held), cuda=True))


def _column_candidates(context: LoweringContext, machine: GpuMachine, parts: int) -> list[GpuSchedule]:
    """Of rows whose columns are added up on the way."""
    length, _ = _row_length(context)
    whole = max(o.operands[0].type.most for o in _anchors(context))
    bits = sum(v.type.dtype.bits for v in context.body.inputs if v.type.most >= whole)
    stream = stream_of(context.body)

    def timed(triton: bool) -> list[GpuRowSchedule]:
        found = column_candidates(length, bits, machine.target, triton=triton)
        return [replace(s, seconds=walk_seconds(parts, stream, machine.target, cuda=not triton)) for s in found]

    return in_both(context, machine, timed(True), timed(False))


def _row_length(context: LoweringContext) -> tuple[int, bool]:
    """Elements of a row, and whether neighbours in memory are of neighbouring rows."""
    op = _anchors(context)[0]
    shape, axes = op.operands[0].type.shape, op.expect(ReduceAttributes).axes
    retained = tuple(a for a in range(len(shape)) if a not in axes)
    return most(product(shape[a] for a in axes)), not reduced_is_innermost(context, op, shape, retained)


def _row_candidates(context: LoweringContext, target: GpuTarget, light: bool) -> list[GpuRowSchedule]:
    anchors = _anchors(context)
    op = anchors[0]
    length, across = _row_length(context)
    rows = most(op.operands[0].type.count) // max(length, 1)
    largest = max(context.body.inputs, key=lambda v: v.type.most, default=op.operands[0])
    bits = max(8, largest.type.dtype.bits)
    again = any(v.type.most > rows for v in _late_outputs(context))
    steps, light = _steps(context), light and again
    return row_candidates(rows, length, target, bits=bits, across=across, steps=steps, again=again, light=light)


def _is_light(context: LoweringContext) -> bool:
    """Whether a kernel's dear functions are exponentials below a row's maximum, and its elements of 16 bits: a softmax,
    a loss and its gradient."""
    sums = [op for op in _anchors(context) if is_one_or_more(op, context.producers)]
    most = max(v.type.most for o in _anchors(context) for v in o.operands)
    return bool(sums) and all(v.type.dtype.bits == 16 for v in context.body.outputs if v.type.most >= most)


def _has_targets(context: LoweringContext) -> bool:
    """Whether such a kernel has a target in each row, a loss: CUDA's clusters, whose exponentials are exact, take 1.5
    times Triton's time for it and its gradient, and three quarters of it for a softmax alone."""
    return any(v.type.dtype.kind in ("int", "uint") for v in context.body.inputs)


def _late_outputs(context: LoweringContext) -> list[Value]:
    """Outputs that need a reduction's result: those of a chunk can't be stored while the row is reduced."""
    late: set[Value] = set()
    for op in context.body.ops:
        if op.definition.kind == "reduce" or not late.isdisjoint(op.operands):
            late.update(op.results)
    return [v for v in context.body.outputs if v in late]


def _steps(context: LoweringContext) -> int:
    """The most reductions that are made one of another's result."""
    level: dict[Value, int] = {}
    for op in context.body.ops:
        before = max((level.get(v, 0) for v in op.operands), default=0)
        level |= dict.fromkeys(op.results, before + (op.definition.kind == "reduce"))
    return max(level.values(), default=0)


def _gpu_lower(context: LoweringContext, schedule: GpuSchedule) -> LoweredGroup:
    match schedule:
        case InCuda():
            return _gpu_lower(context, schedule.schedule)
        case GpuRowSchedule():
            lower = lower_gpu_row if schedule.whole else lower_wide_row
            if rows_and_columns(context.body.ops, context.producers)[1]:
                lower = lower_rows_and_columns
            lowered = lower(context, schedule)
            return replace(lowered, kernel=replace(lowered.kernel, cluster=schedule.cluster))
        case _:
            raise foreign("row", schedule)


ROW = Family(
    "row",
    match_rows,
    CpuMember({"row": RowSchedule}, _cpu_candidates, _cpu_lower),
    GpuMember(_gpu_candidates, _gpu_lower),
)
