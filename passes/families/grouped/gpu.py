# SPDX-License-Identifier: Apache-2.0
"""Grouped products on a GPU: tiles of rows that end with their group, in one persistent kernel.

The groups' ends are on the device, or known: each CTA counts the tiles of every group, then finds the group and the
first row of each of its tiles. No host needs to know them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fusec.errors import LoweringError
from fusec.ir.attributes import MOST_GROUPS, GroupedDotAttributes
from fusec.ir.index import Index, Symbol, add, floordiv, maximum, minimum, mod, mul, sub, symbol
from fusec.ir.indexing import last, most, pow2
from fusec.ir.nodes import Op, Value
from fusec.ir.types import DType, bool_, f32, i32
from fusec.passes.families.grouped.operands import operands_of
from fusec.passes.families.grouped.schedule.gpu import GpuGroupedSchedule, GroupedProblem
from fusec.passes.lower.blocks import GEMM_BLOCKS
from fusec.passes.lower.context import LoweredGroup, LoweringContext
from fusec.passes.lower.epilogue import epilogue_stores
from fusec.tile.nodes import Alloc, Choose, Dot, Grid, Iter, Let, Loop, Map, Reduce, RegisterTile, Statement
from fusec.tile.scalar import Apply, Buffer, Const, IndexValue, Load, ScalarExpr, loads, reindex

_NO_REGISTERS = RegisterTile(0, 0)


def grouped_problem(context: LoweringContext, usual: Callable[[Index], int] = most) -> GroupedProblem:
    """What schedules are chosen by. LoweringError for what no kernel multiplies.

    ``usual`` gives the number to take for rows whose extent is symbolic.
    """
    dots = context.anchors("grouped_dot")
    rows, matrices, _ = operands_of(dots[0])
    dtype, attributes = rows.type.dtype, dots[0].expect(GroupedDotAttributes)
    if not all(v.type.is_static for v in dots[0].operands[1:]) or not dtype.is_float or dtype.bits > 32:
        raise LoweringError(f"a grouped product of {rows.type} and {matrices[0].type}")
    (m, k), groups = rows.type.shape, attributes.apart or matrices[0].type.static_shape[0]
    if not isinstance(k, int):
        raise LoweringError(f"a grouped product of {rows.type}")
    if groups > MOST_GROUPS or not k:
        raise LoweringError(f"a grouped product of {groups} groups, {k} deep")
    n = matrices[0].type.static_shape[-attributes.rhs_contract]
    return GroupedProblem(usual(m), groups, attributes.sizes, n, k, dtype.bits, len(dots), dtype is f32)


def lower_grouped(context: LoweringContext, schedule: GpuGroupedSchedule) -> LoweredGroup:
    """The persistent kernel."""
    return _Grouped(context, schedule).lower()


class _Grouped:
    def __init__(self, context: LoweringContext, schedule: GpuGroupedSchedule) -> None:
        self.context, self.schedule = context, schedule
        s = schedule
        self.problem = p = grouped_problem(context)
        self.ops = context.anchors("grouped_dot")
        self.attributes = attributes = self.ops[0].expect(GroupedDotAttributes)
        self.rows = rows = self.ops[0].operands[0].type.shape[0]
        """How many rows there are."""
        self.known = bool(attributes.sizes) and sum(attributes.sizes) == rows
        """Whether the groups are all rows; else those behind the last one are a group without a matrix."""
        self.count = p.groups + (not self.known)
        self.column_tiles = -(-p.n // s.n)
        tiles = -(-most(rows) // s.m) + min(self.count, most(rows))
        self.i, self.j, self.k = symbol("i", 0, last(rows)), symbol("j", 0, p.n - 1), symbol("k", 0, p.k - 1)
        self.cta = symbol("cta", 0, s.ctas - 1)
        self.total, self.pid = symbol("total", 0, tiles), symbol("pid", 0, tiles * self.column_tiles - 1)
        self.group, self.first = symbol("group", 0, self.count - 1), symbol("first", 0, most(rows) - 1)
        self.end = symbol("end", 0, most(rows))
        self.mi, self.ni = symbol("mi", 0, s.m - 1), symbol("ni", 0, s.n - 1)
        self.ki, self.k0 = symbol("ki", 0, s.k - 1), symbol("k0", 0, p.k - 1)
        self.gi, self.gj = symbol("gi", 0, pow2(self.count) - 1), symbol("gj", 0, pow2(self.count) - 1)
        self.depth = symbol("depth", 0, p.k)
        self.groups = self._over(self.gi)

    def _over(self, var: Symbol) -> Iter:
        extent = pow2(self.count)
        return Iter(var, extent, None if extent == self.count else self.count)

    def lower(self) -> LoweredGroup:
        s = self.schedule
        code = self._tiles()
        row_tile, column_tile = self._tile()
        body = [*self._find(row_tile), *self._multiply(mul(column_tile, s.n))]
        code.append(Loop(self.pid, self.cta, mul(self.total, self.column_tiles), s.ctas, tuple(body)))
        grid = Grid((Iter(self.cta, s.ctas),), tuple(code))
        return self.context.finish("grouped", (grid,), s.describe(), replace(GEMM_BLOCKS, tma_tiles=False))

    # Which tiles there are

    def _tiles(self) -> list[Statement]:
        """Of each group its first row, its end, its tiles, and those of it and all before; and how many there are."""
        one = pow2(self.count)
        self.starts, self.stops, self.counts, self.before = (
            Buffer(self.context.unique(name), i32, (one,), (1,), "tile")
            for name in ("starts", "stops", "tiles", "upto")
        )
        at, code = (self.gi,), list[Statement]()
        for buffer, value in (
            (self.stops, self._stop()),
            (self.starts, self._start()),
            (self.counts, self._count()),
        ):
            code += [Alloc(buffer), Map((self.groups,), buffer, at, value)]
        counted = self._where(_at_most(_at(self.gj), _at(self.gi)), Load(self.counts, (self.gj,)))
        code += [Alloc(self.before), Reduce((self.groups, self._over(self.gj)), self.before, at, "sum", counted)]
        return [*code, *self._scalar(self.total, Load(self.counts, at))]

    def _stop(self) -> ScalarExpr:
        """Where a group ends; the last one ends with the rows."""
        if self.attributes.sizes:
            return self._of_sizes(lambda group: _at_most(_number(group), _at(self.gi)))
        whole = _apply("eq", _at(self.gi), _number(self.problem.groups), bool_)
        end = self._end_of(minimum(self.gi, self.problem.groups - 1))
        return Apply("select", (whole, self._all(), end), i32)

    def _start(self) -> ScalarExpr:
        """The end of the group before."""
        if self.attributes.sizes:
            return self._of_sizes(lambda group: _at_most(_number(group + 1), _at(self.gi)))
        return self._where(_at_most(_number(1), _at(self.gi)), self._end_of(maximum(sub(self.gi, 1), 0)))

    def _end_of(self, group: Index) -> ScalarExpr:
        """Where a group ends by the data, within the rows."""
        end = self.context.inliner.at(operands_of(self.ops[0]).ends[0], (group,))
        end = end if end.dtype is i32 else Apply("cast", (end,), i32)
        return _apply("minimum", _apply("maximum", end, _number(0)), self._all())

    def _all(self) -> ScalarExpr:
        """How many rows there are."""
        return IndexValue(self.rows, i32)

    def _of_sizes(self, condition: Callable[[int], ScalarExpr]) -> ScalarExpr:
        """The sum of the sizes of the groups for which a condition holds."""
        total: ScalarExpr = _number(0)
        rest = () if self.known else (sub(self.rows, sum(self.attributes.sizes)),)
        for group, size in enumerate((*self.attributes.sizes, *rest)):
            if size != 0:
                total = _apply("add", total, self._where(condition(group), IndexValue(size, i32)))
        return total

    def _count(self) -> ScalarExpr:
        m, at = self.schedule.m, (self.gi,)
        rows = _apply("sub", Load(self.stops, at), Load(self.starts, at))
        up = _apply("add", _apply("maximum", rows, _number(0)), _number(m - 1))
        return _apply("floordiv", up, _number(m))

    def _tile(self) -> tuple[Index, Index]:
        """Tile number to row tile and column tile, columns within groups of row tiles."""
        per_group = self.column_tiles * self.schedule.group
        first = mul(floordiv(self.pid, per_group), self.schedule.group)
        inside = mod(self.pid, per_group)
        if self.column_tiles == 1:
            return self.pid, 0
        rows = minimum(sub(self.total, first), self.schedule.group)
        return add(first, mod(inside, rows)), floordiv(inside, rows)

    def _find(self, tile: Index) -> list[Statement]:
        """The group of a row tile, the tile's first row, and the end of the group."""
        at, number = (self.gi,), IndexValue(tile, i32)
        passed = _at_most(Load(self.before, at), number)
        code = self._scalar(self.group, self._where(passed, _number(1)))
        here = _equal(_at(self.gi), IndexValue(self.group, i32))
        inside = _apply("sub", number, _apply("sub", Load(self.before, at), Load(self.counts, at)))
        row = _apply("add", Load(self.starts, at), _apply("mul", inside, _number(self.schedule.m)))
        code += self._scalar(self.first, self._where(here, row))
        code += self._scalar(self.end, self._where(here, Load(self.stops, at)))
        if not self.known:
            multiplied = self._where(_at_most(_at(self.gi), _number(self.problem.groups - 1)), _number(self.problem.k))
            code += self._scalar(self.depth, self._where(here, multiplied))
        return code

    def _scalar(self, to: Symbol, value: ScalarExpr) -> list[Statement]:
        """The sum of a value over the groups, as an index."""
        found = Buffer(self.context.unique(to.name), i32, (), (), "tile")
        return [Alloc(found), Reduce((self.groups,), found, (), "sum", value), Let(to, Load(found, ()))]

    def _where(self, condition: ScalarExpr, value: ScalarExpr) -> ScalarExpr:
        return Apply("select", (condition, value, _number(0)), i32)

    # What a tile is

    def _multiply(self, column0: Index) -> list[Statement]:
        s, p = self.schedule, self.problem
        rows = Iter(self.mi, s.m, sub(self.rows, self.first))
        columns = Iter(self.ni, s.n, None if p.n % s.n == 0 else sub(p.n, column0))
        depth = Iter(self.ki, s.k, None if p.k % s.k == 0 else sub(p.k, self.k0))
        shift: dict[Symbol, Index] = {
            self.i: add(self.first, self.mi),
            self.j: add(column0, self.ni),
            self.k: add(self.k0, self.ki),
        }
        left = self._operand(self.ops[0].operands[0], (self.i, self.k), shift)
        before: list[Statement] = []
        steps: list[Statement] = []
        totals: list[Load] = []
        for op in self.ops:
            name = "acc" if len(self.ops) == 1 else f"acc_{op.result.name}"
            acc = Buffer(self.context.unique(name), f32, (s.m, s.n), (s.n, 1), "tile")
            totals.append(Load(acc, (self.mi, self.ni)))
            block = Iter(self.mi, s.m), Iter(self.ni, s.n)
            before += [Alloc(acc), Map(block, acc, (self.mi, self.ni), Const(0.0, f32))]
            right, chosen = self._right(op, shift)
            before += chosen
            steps.append(Dot(rows, columns, depth, totals[-1], left, right, False, _NO_REGISTERS))
        loop = Loop(self.k0, 0, p.k if self.known else self.depth, s.k, tuple(steps))
        inside = Iter(self.mi, s.m, sub(self.end, self.first))
        point = (self.i, self.j)
        stores = epilogue_stores(self.context, "grouped", self.ops, point, shift, (inside, columns), totals)
        return [*before, loop, *stores]

    def _right(self, op: Op, shift: dict[Symbol, Index]) -> tuple[Load, list[Statement]]:
        """An element of a group's matrix; where each is an array of its own, after its choice."""
        inner = (self.k, self.j) if self.attributes.rhs_contract == 1 else (self.j, self.k)
        group = self.group if self.known else minimum(self.group, self.problem.groups - 1)
        matrices = operands_of(op).matrices
        if not self.attributes.apart:
            return self._operand(matrices[0], (group, *inner), shift), []
        elements = [self._operand(m, inner, shift) for m in matrices]
        first, buffer = elements[0], elements[0].buffer
        layout = (first.index, buffer.dtype, buffer.shape, buffer.strides)
        if any((e.index, e.buffer.dtype, e.buffer.shape, e.buffer.strides) != layout for e in elements):
            raise LoweringError("matrices of a grouped product that lie differently in memory")
        chosen = replace(buffer, name=self.context.unique(f"{op.result.name}_matrix"))
        return Load(chosen, first.index), [Choose(chosen, group, tuple(e.buffer for e in elements))]

    def _operand(self, value: Value, index: tuple[Index, ...], shift: dict[Symbol, Index]) -> Load:
        element = reindex(self.context.inliner.at(value, index), shift)
        if not isinstance(element, Load) or any(x is not element for x in loads(element)):
            raise LoweringError(f"{value} of a grouped product is not in memory")
        return element


def _number(value: int) -> Const:
    return Const(value, i32)


def _at(s: Symbol) -> IndexValue:
    return IndexValue(s, i32)


def _as_i32(e: ScalarExpr) -> ScalarExpr:
    return e if e.dtype is i32 else Apply("cast", (e,), i32)


def _apply(op: str, a: ScalarExpr, b: ScalarExpr, dtype: DType = i32) -> ScalarExpr:
    return Apply(op, (a, b), dtype)


def _at_most(a: ScalarExpr, b: ScalarExpr) -> ScalarExpr:
    return _apply("le", a, b, bool_)


def _equal(a: ScalarExpr, b: ScalarExpr) -> ScalarExpr:
    return _apply("eq", a, b, bool_)
