# SPDX-License-Identifier: Apache-2.0
"""Softmaxes over parts of the keys, and the kernel that combines them.

Each part leaves its maximum m, its sum s of exp(x - m) and its weighted sum o of values; the whole has m' = max m, and
its result is the sum of o exp(m - m') over the sum of s exp(m - m').
"""

from __future__ import annotations

from math import inf

from fusec.ir.index import Index, Symbol, symbol
from fusec.ir.indexing import pow2
from fusec.ir.types import Dim, DType, bool_, contiguous_strides, f32
from fusec.passes.lower.context import LoweringContext
from fusec.tile.attention import mean_of
from fusec.tile.nodes import Alloc, Iter, Map, Reduce, Statement
from fusec.tile.scalar import Apply, Buffer, Const, Load, ScalarExpr

LOG2E = 1.4426950408889634


class Parts:
    """What ``count`` parts of the keys leave for each row: ``row_max`` and ``row_sum`` [count, others..., rows], and
    ``out`` with the values behind. factor: of the maxima, as they are kept."""

    def __init__(
        self,
        context: LoweringContext,
        count: int,
        others: tuple[Iter, ...],
        rows: Dim,
        values: Dim,
        dtype: DType = f32,
        *,
        factor: float = 1.0,
    ) -> None:
        self.context, self.count, self.others, self.dtype, self.factor = context, count, others, dtype, factor
        shape = (count, *(i.extent if i.limit is None else i.limit for i in others), rows)
        self.row_max, self.row_sum = (self._scratch(name, shape) for name in ("part_max", "part_sum"))
        self.out = self._scratch("part_out", (*shape, values))

    def _scratch(self, name: str, shape: tuple[Dim, ...]) -> Buffer:
        return Buffer(self.context.unique(name), self.dtype, shape, contiguous_strides(shape), "parameter")

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        return self.row_max, self.row_sum, self.out

    def at(self, part: Symbol, row: Index) -> tuple[Index, ...]:
        return (part, *(i.var for i in self.others), row)


ONE_ROW = Iter(symbol("ri", 0, 0), 1)


def combine(
    parts: Parts, row: Index, value: Iter, *, guarded: bool, rows: Iter = ONE_ROW
) -> tuple[list[Statement], ScalarExpr, tuple[Load, Load]]:
    """Code that combines the parts of some rows, of which each is row ``row``; the result at it and ``value``, and its
    maximum and sum.

    guarded: see :func:`fusec.tile.attention.mean_of`.
    """
    padded = pow2(parts.count)
    part = Iter(symbol("part", 0, padded - 1), padded, None if padded == parts.count else parts.count)
    at, index = (rows.var,), parts.at(part.var, row)
    d = parts.dtype
    top, shift, row_sum = (_tile(parts, n, rows.extent) for n in ("top", "shift", "row_sum"))
    weights, out = _tile(parts, "weights", rows.extent, padded), _tile(parts, "out", rows.extent, value.extent)
    weight = Load(weights, (rows.var, part.var))
    power = exp_of(Load(parts.row_max, index), Load(shift, at), parts.factor)
    code: list[Statement] = [
        Alloc(top),
        Reduce((rows, part), top, at, "max", Load(parts.row_max, index)),
        Alloc(shift),
        Map((rows,), shift, at, finite_or_zero(Load(top, at))),
        Alloc(weights),
        Map((rows, part), weights, (rows.var, part.var), power),
        Alloc(row_sum),
        Reduce((rows, part), row_sum, at, "sum", Apply("mul", (weight, Load(parts.row_sum, index)), d)),
        Alloc(out),
        Reduce(
            (rows, part, value),
            out,
            (rows.var, value.var),
            "sum",
            Apply("mul", (weight, Load(parts.out, (*index, value.var))), d),
        ),
    ]
    mean = mean_of(Load(out, (rows.var, value.var)), Load(row_sum, at), guarded=guarded)
    return code, mean, (Load(top, at), Load(row_sum, at))


def times(a: ScalarExpr, factor: float) -> ScalarExpr:
    """``a`` times a constant."""
    return a if factor == 1.0 else Apply("mul", (a, Const(factor, a.dtype)), a.dtype)


def exp_of(a: ScalarExpr, b: ScalarExpr, factor: float = 1.0) -> ScalarExpr:
    """e to the power of ``(a - b) * factor``, by a power of 2; exactly 1 where they are the same."""
    return Apply("exp2", (times(Apply("sub", (a, b), a.dtype), factor * LOG2E),), a.dtype)


def exp2_of(a: ScalarExpr, b: ScalarExpr) -> ScalarExpr:
    """2 to the power of ``a - b``."""
    return Apply("exp2", (Apply("sub", (a, b), a.dtype),), a.dtype)


def finite_or_zero(row_max: Load) -> ScalarExpr:
    """What a row's scores are shifted by: its maximum, or 0 where all its scores are -inf."""
    return Apply(
        "select",
        (Apply("eq", (row_max, Const(-inf, row_max.dtype)), bool_), Const(0.0, row_max.dtype), row_max),
        row_max.dtype,
    )


def _tile(parts: Parts, name: str, *shape: int) -> Buffer:
    return parts.context.tile(name, parts.dtype, *shape)
