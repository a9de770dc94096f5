# SPDX-License-Identifier: Apache-2.0
"""Schedules of a group of matmuls: how its right operands are read, and in which unit it multiplies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusec.errors import LoweringError
from fusec.ir.index import Symbol, symbol
from fusec.ir.indexing import last
from fusec.ir.lane_patterns import lane_pattern
from fusec.ir.types import DType
from fusec.passes.contraction import accumulator_dtype, contraction
from fusec.passes.families.gemm.mixed import reads_rows_in_place
from fusec.passes.families.gemm.schedule.along import AlongProblem, along_candidates, packing_seconds, staging_seconds
from fusec.passes.families.gemm.schedule.cpu import (
    GemmSchedule,
    Problem,
    gemm_candidates,
    gemm_seconds,
    staged_candidates,
    unpacked_candidates,
)
from fusec.passes.families.gemm.schedule.mixed import (
    MixedGemmSchedule,
    MixedProblem,
    mixed_candidates,
    predict_mixed,
    sum_dtype,
)
from fusec.passes.lower.context import LoweringContext, address_step, is_linear
from fusec.target.cpu import CpuTarget
from fusec.tile.scalar import Load, ScalarExpr, loads, offset_of

_PACKED_LANES = 16
"""Of a vector, to see how what it reads lies in memory."""

Schedules = list[GemmSchedule | MixedGemmSchedule]


def gemm_schedules(context: LoweringContext, target: CpuTarget, threads: int) -> Schedules:
    """Schedules of a group's matmuls, best predicted first. LoweringError where there is none.

    A right operand that stays from call to call is packed once, and read as packed. Any other is read where it lies,
    so that nothing has to tell when it changes, or packed at each call, where that takes less.
    """
    op = context.anchors("dot")[0]
    axes = contraction(op)
    if axes.k == 0:
        raise LoweringError("a matmul over an empty axis")
    low_precision = mixed_sum(context, target) is not None
    windows = shows_windows(context)
    if low_precision:
        problem = _mixed_problem(context)
        candidates = mixed_candidates(problem, target, threads)
        seconds = predict_mixed(problem, candidates[0], target, threads)
        packed: Schedules = [*candidates]
        across: Schedules = []
    else:
        dtype = accumulator_dtype(op)
        if dtype.name not in ("f32", "f64", "i32"):
            raise LoweringError(f"no matmul of {dtype} on this target")
        wide = Problem(axes.batches, axes.m, axes.n, axes.k, dtype.bits)
        found = gemm_candidates(wide, target, threads)
        seconds = gemm_seconds(wide, found[0], target, threads)
        packed = [*found]
        across = [*unpacked_candidates(wide, target, threads)]
    if axes.batch:
        return packed
    right = _right_operands(context)
    if _packs_once(context, right):
        return packed
    fits = isinstance(axes.extents.k, int) and (not low_precision or target.multiplies(op.operands[0].type.dtype))
    if fits and not windows and right.lies_along_k:
        return _with_along(_along_problem(context, right, low_precision), packed, seconds, target, threads)
    if windows and not low_precision and not right.steps_by_one(right.j):
        return _with_staged(_along_problem(context, right, low_precision), wide, packed, seconds, target, threads)
    return [*across, *packed] if right.steps_by_one(right.j) else packed


def shows_windows(context: LoweringContext) -> bool:
    """Whether neighbours along K are not evenly spaced in the left operand: it shows windows of an array."""
    op = context.anchors("dot")[0]
    axes = contraction(op)
    if axes.batch or not axes.rows or len(axes.inner) < 2:
        return False
    i, k = symbol("i", 0, last(axes.extents.m)), symbol("k", 0, last(axes.extents.k))
    element = context.inliner.at(op.operands[0], axes.operand_at(op, 0, 0, i, 0, k))
    return not all(is_linear(x, (k,)) for x in loads(element))


def _with_along(p: AlongProblem, packed: Schedules, seconds: float, target: CpuTarget, threads: int) -> Schedules:
    """Those that read the right operand along K and those that pack it, of which the first takes so many ``seconds``
    without the packing."""
    found = along_candidates(p, target, threads)
    along: Sequence[GemmSchedule] = sorted(found, key=found.__getitem__)
    if along and found[along[0]] <= seconds + packing_seconds(p, target, threads):
        return [*along, *packed]
    return [*packed, *along]


def _with_staged(
    p: AlongProblem, wide: Problem, packed: Schedules, seconds: float, target: CpuTarget, threads: int
) -> Schedules:
    """Those by which each task puts its columns in order, and those that pack all of them before, the faster first."""
    staged = staged_candidates(wide, target, threads)
    if not staged or not isinstance(p.m, int):
        return packed
    tasks = -(-p.m // staged[0].tile_m)
    taken = gemm_seconds(wide, staged[0], target, threads) + tasks * staging_seconds(p, target, threads)
    if taken <= seconds + packing_seconds(p, target, threads):
        return [*staged, *packed]
    return [*packed, *staged]


@dataclass(frozen=True)
class _Right:
    """The right operands' elements at a column ``j`` and a position ``k`` of K."""

    elements: tuple[ScalarExpr, ...]
    j: Symbol
    k: Symbol

    @property
    def largest(self) -> list[Load | None]:
        """Of the arrays that each is made from."""
        return [max(loads(e), key=lambda x: x.buffer.most, default=None) for e in self.elements]

    def steps_by_one(self, s: Symbol) -> bool:
        return all(x is not None and address_step(x, s) == 1 for x in self.largest)

    @property
    def lies_along_k(self) -> bool:
        """Whether neighbours along K are neighbours in memory, or the same element: two digits of a packed byte."""
        found = (x is not None and (address_step(x, self.k) == 1 or _is_packed_along(x, self.k)) for x in self.largest)
        return all(found)


def _is_packed_along(load: Load, k: Symbol) -> bool:
    flat = offset_of(load.buffer, load.index)
    pattern = lane_pattern(flat, k, _PACKED_LANES) if flat is not None else None
    return pattern is not None and 1 < pattern.span < _PACKED_LANES


def _right_operands(context: LoweringContext) -> _Right:
    """Of matmuls without batch axes."""
    ops = context.anchors("dot")
    axes = contraction(ops[0])
    j, k = symbol("j", 0, last(axes.extents.n)), symbol("k", 0, last(axes.extents.k))
    elements = (context.inliner.at(op.operands[1], axes.operand_at(op, 1, 0, 0, j, k)) for op in ops)
    return _Right(tuple(elements), j, k)


def _packs_once(context: LoweringContext, right: _Right) -> bool:
    """Whether what is packed of the right operands stays from call to call: it is made of nothing else but weights that
    are said to stay."""
    read = [x.buffer for element in right.elements for x in loads(element)]
    return bool(read) and all(context.input_of(buffer) in context.static for buffer in read)


def _along_problem(context: LoweringContext, right: _Right, low_precision: bool) -> AlongProblem:
    """low_precision: the operands' type is multiplied as it is."""
    op = context.anchors("dot")[0]
    axes = contraction(op)
    dtype = op.operands[0].type.dtype if low_precision else accumulator_dtype(op)
    computed = any(not isinstance(e, Load) or e.dtype != dtype for e in right.elements)
    source = right.largest[0]
    assert source is not None
    return AlongProblem(axes.m, axes.n, axes.k, dtype.itemsize, low_precision, computed, source.dtype.itemsize)


def mixed_sum(context: LoweringContext, target: CpuTarget) -> DType | None:
    """The type of the sums where all of a group's matmuls are of low-precision operands that the target multiplies as
    such."""
    ops = context.anchors("dot")
    dtypes = {v.type.dtype for op in ops for v in op.operands}
    extents = contraction(ops[0]).extents
    if len(dtypes) != 1 or not isinstance(extents.n, int) or not isinstance(extents.k, int):
        return None
    total = sum_dtype(dtypes.pop(), target)
    whole = total is not None and (total.is_float or all(op.result.type.dtype == total for op in ops))
    return total if whole else None


def _mixed_problem(context: LoweringContext) -> MixedProblem:
    op = context.anchors("dot")[0]
    axes = contraction(op)
    dtype = op.operands[0].type.dtype
    fixed = isinstance(axes.extents.m, int)
    return MixedProblem(axes.batches, axes.m, axes.n, axes.k, dtype, reads_rows_in_place(context), fixed)
