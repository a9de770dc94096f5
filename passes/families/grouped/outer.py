# SPDX-License-Identifier: Apache-2.0
"""Sums of outer products of groups of rows on a GPU: the gradient of the matrices that the rows are multiplied with.

A CTA has a tile of one group's sum, and goes over the group's rows: whole steps first, through tensor descriptors, then
what is left up to the group's end. Where a group ends is read on the device.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fusec.errors import LoweringError
from fusec.ir.index import Index, Symbol, add, floordiv, maximum, minimum, mod, mul, sub, symbol
from fusec.ir.indexing import ceildiv, last, most
from fusec.ir.nodes import Value
from fusec.ir.types import bool_, f32, i32
from fusec.passes.families.grouped.schedule.outer import GpuOuterSchedule, OuterProblem
from fusec.passes.lower.blocks import GEMM_BLOCKS
from fusec.passes.lower.context import LoweredGroup, LoweringContext
from fusec.passes.lower.epilogue import epilogue_stores
from fusec.tile.nodes import Alloc, Dot, Grid, Iter, Let, Loop, Map, RegisterTile, Statement
from fusec.tile.scalar import Apply, Buffer, Const, IndexValue, Load, ScalarExpr, loads, reindex

_NO_REGISTERS = RegisterTile(0, 0)

_RUN = 64
"""Rows after which sums of f32 go to the sum of all: the library's error is that of its split sums, and twice it is
promised."""


def outer_problem(context: LoweringContext, usual: Callable[[Index], int] = most) -> OuterProblem:
    """What schedules are chosen by. LoweringError for what no kernel adds up."""
    lhs, rhs, ends = (v.type for v in context.anchors("grouped_outer")[0].operands)
    if not lhs.dtype.is_float or lhs.dtype.bits > 32 or not ends.is_static:
        raise LoweringError(f"outer products of {lhs} and {rhs}")
    (m, p), q = lhs.shape, rhs.shape[1]
    if not isinstance(p, int) or not isinstance(q, int) or not ends.size:
        raise LoweringError(f"outer products of {lhs} and {rhs}")
    halves = all(v.type.dtype.is_half for v in context.body.outputs)
    return OuterProblem(usual(m), ends.size, p, q, lhs.dtype.bits, lhs.dtype is f32, halves)


def lower_outer(context: LoweringContext, schedule: GpuOuterSchedule) -> LoweredGroup:
    """The kernel."""
    return _Outer(context, schedule).lower()


class OuterProducts:
    """What kernels in all languages have in common: the operands' elements and where groups begin and end."""

    def __init__(self, context: LoweringContext) -> None:
        self.context = context
        self.problem = p = outer_problem(context)
        (self.op,) = context.anchors("grouped_outer")
        self.rows = rows = self.op.operands[0].type.shape[0]
        self.wide = f32
        self.g = symbol("g", 0, p.groups - 1)
        self.i, self.j, self.k = symbol("i", 0, p.p - 1), symbol("j", 0, p.q - 1), symbol("k", 0, last(rows))

    def first_of(self, group: Index) -> ScalarExpr:
        """A group's first row."""
        before = self._end(maximum(sub(group, 1), 0))
        has = Apply("ge", (IndexValue(group, i32), Const(1, i32)), bool_)
        return Apply("select", (has, before, Const(0, i32)), i32)

    def end_of(self, group: Index) -> ScalarExpr:
        """Where a group ends by the data, within the rows; not before it begins."""
        return Apply("maximum", (self._end(group), self.first_of(group)), i32)

    def _end(self, group: Index) -> ScalarExpr:
        end = self.context.inliner.at(self.op.operands[2], (group,))
        end = end if end.dtype is i32 else Apply("cast", (end,), i32)
        least = Apply("maximum", (end, Const(0, i32)), i32)
        return Apply("minimum", (least, IndexValue(self.rows, i32)), i32)

    def element(self, value: Value, index: tuple[Index, ...]) -> Load:
        """An operand's element, in memory. LoweringError for one that is computed."""
        element = self.context.inliner.at(value, index)
        if not isinstance(element, Load) or any(x is not element for x in loads(element)):
            raise LoweringError(f"{value} of outer products is not in memory")
        return element


class _Outer(OuterProducts):
    def __init__(self, context: LoweringContext, schedule: GpuOuterSchedule) -> None:
        super().__init__(context)
        self.schedule = s = schedule
        p, rows = self.problem, self.rows
        self.row_tiles, self.column_tiles = ceildiv(p.p, s.m), ceildiv(p.q, s.n)
        self.pid = symbol("pid", 0, last(mul(self.row_tiles, self.column_tiles)))
        self.mi, self.ni, self.ki = (symbol(n, 0, size - 1) for n, size in (("mi", s.m), ("ni", s.n), ("ki", s.k)))
        self.k0, self.k1 = symbol("k0", 0, last(rows)), symbol("k1", 0, last(rows))
        self.start, self.whole, self.end = (symbol(n, 0, most(rows)) for n in ("start", "whole", "end"))

    def lower(self) -> LoweredGroup:
        p, s = self.problem, self.schedule
        row, column = self._tile()
        row0, column0 = mul(row, s.m), mul(column, s.n)
        rows = Iter(self.mi, s.m, None if p.p % s.m == 0 else sub(p.p, row0))
        columns = Iter(self.ni, s.n, None if p.q % s.n == 0 else sub(p.q, column0))
        acc = self.context.tile("acc", f32, s.m, s.n)
        total = Load(acc, (self.mi, self.ni))
        block = Iter(self.mi, s.m), Iter(self.ni, s.n)
        shift: dict[Symbol, Index] = {self.i: add(row0, self.mi), self.j: add(column0, self.ni)}

        def step(k: Symbol, depth: Iter, total: Load = total) -> Dot:
            at = {**shift, self.k: add(k, self.ki)}
            left, right = (
                self._operand(v, (self.k, x), at) for v, x in zip(self.op.operands, (self.i, self.j), strict=False)
            )
            return Dot(rows, columns, depth, total, left, right, False, _NO_REGISTERS)

        past = Iter(self.ki, s.k, sub(self.end, self.k1))
        point = (self.g, self.i, self.j)
        body = (
            *self._bounds(),
            *(Alloc(acc), Map(block, acc, (self.mi, self.ni), Const(0.0, f32))),
            self._whole_steps(block, total, partial(step, self.k0, Iter(self.ki, s.k))),
            Loop(self.k1, self.whole, self.end, s.k, (step(self.k1, past),)),
            *epilogue_stores(self.context, "grouped", (self.op,), point, shift, (rows, columns), (total,)),
        )
        iters = (Iter(self.g, p.groups), Iter.over(self.pid, mul(self.row_tiles, self.column_tiles)))
        return self.context.finish("grouped", (Grid(iters, body),), s.describe(), GEMM_BLOCKS)

    def _whole_steps(self, block: tuple[Iter, Iter], total: Load, step: Callable[..., Dot]) -> Loop:
        """The loop over a group's whole steps; of f32 over runs of rows with a sum each, added to the sum of all."""
        s = self.schedule
        if not self.problem.exact:
            return Loop(self.k0, self.start, self.whole, s.k, (step(),))
        own = self.context.tile("run", f32, s.m, s.n)
        run, at = symbol("run", 0, last(self.rows)), (self.mi, self.ni)
        end = minimum(add(run, max(_RUN, s.k)), self.whole)
        body: tuple[Statement, ...] = (
            Alloc(own),
            Map(block, own, at, Const(0.0, f32)),
            Loop(self.k0, run, end, s.k, (step(Load(own, at)),)),
            Map(block, total.buffer, at, Apply("add", (total, Load(own, at)), f32)),
        )
        return Loop(run, self.start, self.whole, max(_RUN, s.k), body)

    def _tile(self) -> tuple[Index, Index]:
        """Tile number to row tile and column tile, columns within groups of row tiles."""
        group = min(self.schedule.group, most(self.row_tiles))
        per_group = mul(self.column_tiles, group)
        first, inside = mul(floordiv(self.pid, per_group), group), mod(self.pid, per_group)
        rows = maximum(minimum(sub(self.row_tiles, first), group), 1)
        if self.row_tiles % group == 0:
            rows = group
        return add(first, mod(inside, rows)), floordiv(inside, rows)

    def _bounds(self) -> list[Statement]:
        """A group's first row, its end, and the end of its whole steps."""
        start = self.first_of(self.g)
        end = Apply("maximum", (self._end(self.g), IndexValue(self.start, i32)), i32)
        code = [*self._scalar(self.start, start), *self._scalar(self.end, end)]
        length = sub(self.end, self.start)
        whole = add(self.start, mul(floordiv(length, self.schedule.k), self.schedule.k))
        return [*code, *self._scalar(self.whole, IndexValue(whole, i32))]

    def _scalar(self, to: Symbol, value: ScalarExpr) -> list[Statement]:
        found = Buffer(self.context.unique(to.name), i32, (), (), "tile")
        return [Alloc(found), Map((), found, (), value), Let(to, Load(found, ()))]

    def _operand(self, value: Value, index: tuple[Index, ...], shift: dict[Symbol, Index]) -> Load:
        element = reindex(self.element(value, index), shift)
        assert isinstance(element, Load)
        return element
