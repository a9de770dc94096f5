# SPDX-License-Identifier: Apache-2.0
"""One reduction, its accumulators register-resident.

Two shapes. Along the lanes: several vector accumulators, combined at the end. Across them (the target's index
uses the last iterator): each lane has a result of its own, and the reduced iterators run inside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import tirx

from fusec.codegen.tvm import tir
from fusec.codegen.tvm.accumulators import Monoid, Registers, across
from fusec.codegen.tvm.context import Context, Numbers
from fusec.codegen.tvm.domain import coerce, iter_count, lane_count, outer_loops, split_lanes, static_count
from fusec.codegen.tvm.scalars import LaneBlock, Points
from fusec.codegen.tvm.tir import Node, Value
from fusec.codegen.tvm.vector import Code
from fusec.tile.nodes import Iter, Reduce
from fusec.tile.scalar import Apply, IndexValue, Load, ScalarExpr, symbols_in

ACCUMULATORS = 4
"""Vector accumulators of a reduction along the lanes: the latency of an addition over its throughput."""

STRIP = 4
"""Vectors of results that a reduction across the lanes makes at once. With fewer, rows are taken several at a time."""


@dataclass(frozen=True, eq=False)
class Strip:
    """Blocks of lanes that are reduced together: where each starts, how many lanes of the last count, and how many
    rows are taken at a time, each into accumulators of its own."""

    last: Iter
    starts: Sequence[Node]
    valid: Node | None
    ways: int


class Reduction:
    """Writes one reduction once the loops around it stand."""

    def __init__(self, context: Context, numbers: Numbers, statement: Reduce) -> None:
        self.context, self.numbers, self.statement = context, numbers, statement
        self.monoid = Monoid(statement.op, statement.target.dtype, statement.loose)
        self.seen: ScalarExpr | None = None
        self.term = statement.value
        if statement.branches:
            assert isinstance(statement.value, Apply)
            self.seen, self.term, _ = statement.value.args

    def operand(self, points: Points) -> Value:
        """The value to be reduced at a block, as the accumulator's type."""
        value = coerce(points.code, points.value(self.term), self.monoid.dtype)
        return points.code.byte(value) if value.type == "bool" else value

    def _lanes(self, last: Iter) -> int:
        values = (self.term, *(IndexValue(i) for i in self.statement.index))
        return lane_count(self.context, last, values, self.monoid.dtype)

    def _single(self, code: Code) -> Points:
        return Points(self.context, code, self.numbers, None, None)

    def _finish(self, points: Points, value: Value) -> None:
        """Stores a result, joined with what the target held unless fresh."""
        statement = self.statement
        if not statement.fresh:
            old = points.value(Load(statement.target, statement.index))
            old = points.code.byte(old) if old.type == "bool" else old
            value = self.monoid.combine(points.code, value, old)
        if statement.target.dtype.name == "bool":
            value = points.code.test(value)
        points.store(statement.target, statement.index, value)

    def _where_seen(
        self, code: Code, write: Callable[[Code], None], unseen: Callable[[Code], None] | None = None
    ) -> None:
        """What ``write`` makes runs where the statement's branch is taken, what ``unseen`` makes elsewhere."""
        if self.seen is None:
            write(code)
            return
        test = self._single(code).value(self.seen)
        then, orelse = code.nested(), code.nested()
        write(then)
        if unseen is not None:
            unseen(orelse)
        code.append(tir.when(test.node, then.statements, orelse.statements))

    # along the lanes

    def along_lanes(self, code: Code, inside: Sequence[Iter], last: Iter) -> None:
        if self.seen is None or symbols_in(self.seen) & {it.var for it in inside}:
            self._along(code, inside, last)
            return
        nothing = self.monoid.identity(1)
        self._where_seen(
            code,
            lambda inner: self._along(inner, inside, last),
            lambda inner: self._finish(self._single(inner), nothing),
        )

    def _along(self, code: Code, inside: Sequence[Iter], last: Iter) -> None:
        lanes = self._lanes(last)
        count = static_count(last)
        width = ACCUMULATORS if count is None or count >= 2 * lanes else 1
        totals = Registers(code, self.monoid, lanes, width)
        totals.clear(code)

        def one_pass(inner: Code) -> None:
            self._where_seen(inner, lambda seen: self._run(seen, totals, last))

        outer_loops(self.context, code, inside, one_pass)
        while width > 1:
            width //= 2
            for i in range(width):
                totals.update(code, i, code.let(totals.read(i + width)))
        self._finish(self._single(code), across(code, self.monoid, code.let(totals.read(0))))

    def _run(self, code: Code, totals: Registers, last: Iter) -> None:
        """One pass over the last iterator."""
        split = split_lanes(self.context, code, last, totals.lanes)
        uniform = self._single(code)
        self._blocks(code, totals, last, self._number(0), split.full, uniform)
        if not isinstance(split.rest, int) or split.rest > 0:
            self._rest(code, totals, last, split.full, split.rest)

    def _number(self, value: int | Node) -> Node:
        return self.context.integer(value)

    def _blocks(
        self, code: Code, totals: Registers, last: Iter, first: Node, count: int | Node, uniform: Points
    ) -> None:
        """Whole blocks from number ``first`` on, one accumulator each in turn."""
        width = len(totals.buffers)
        if isinstance(count, int):
            groups: int | Node = count // width
            left: int | Node = count % width
        else:
            groups = code.let_index(tirx.truncdiv(count, self._number(width)), self.context.index_type)
            left = code.let_index(tirx.truncmod(count, self._number(width)), self.context.index_type)
        self._block_loop(code, totals, last, first, groups, width, uniform)
        base = self._number(groups * width) if isinstance(groups, int) else tirx.Mul(groups, self._number(width))
        after = code.let_index(tirx.Add(first, base), self.context.index_type)
        self._block_loop(code, totals, last, after, left, 1, uniform)

    def _block_loop(
        self,
        code: Code,
        totals: Registers,
        last: Iter,
        first: Node,
        count: int | Node,
        width: int,
        uniform: Points,
    ) -> None:
        if isinstance(count, int) and count == 0:
            return
        counter = tir.variable(code.fresh(last.var.name), self.context.index_type)
        inner = code.nested()
        for i in range(width):
            number = tirx.Add(first, tirx.Add(tirx.Mul(counter, self._number(width)), self._number(i)))
            start = inner.let_index(tirx.Mul(number, self._number(totals.lanes)), self.context.index_type)
            points = self._points(inner, last, totals.lanes, start, None, uniform)
            totals.update(inner, i, self.operand(points))
        extent = self._number(count)
        code.append(tir.loop(counter, extent, inner.statements, dtype=self.context.index_type))

    def _points(
        self, code: Code, last: Iter, lanes: int, start: Node, valid: Node | None, uniform: Points | None
    ) -> Points:
        if lanes == 1:
            self.context.loops[last.var] = start
            return Points(self.context, code, self.numbers, None, None)
        return Points(self.context, code, self.numbers, LaneBlock(last.var, lanes, start, valid), uniform)

    def _rest(self, code: Code, totals: Registers, last: Iter, full: int | Node, rest: int | Node) -> None:
        inner = code.nested()
        totals.update(inner, 0, self.masked(inner, last, totals.lanes, full, rest))
        if isinstance(rest, int):
            code.append(*inner.statements)
        else:
            code.append(tir.when(tirx.GT(rest, self._number(0)), inner.statements))

    def masked(self, code: Code, last: Iter, lanes: int, full: int | Node, rest: int | Node) -> Value:
        """The last points, fewer than a vector: the lanes beyond count as the identity."""
        start = code.let_index(tirx.Mul(self._number(full), self._number(lanes)), self.context.index_type)
        valid = self._number(rest)
        mask = Value(tir.first_lanes(valid, lanes, self.context.index_type), "bool", lanes)
        term = self.operand(self._points(code, last, lanes, start, valid, None))
        return code.select(mask, term, self.monoid.identity(lanes))

    # across the lanes

    def across_lanes(self, code: Code, inside: Sequence[Iter], last: Iter) -> None:
        lanes = self._lanes(last)
        split = split_lanes(self.context, code, last, lanes)
        strips: int | Node
        width = STRIP if not isinstance(split.full, int) else 2 if split.full in (2, 3) else STRIP
        if isinstance(split.full, int):
            strips, left = split.full // width, split.full % width
        else:
            strips = code.let_index(tirx.truncdiv(split.full, self._number(width)), self.context.index_type)
            left = code.let_index(tirx.truncmod(split.full, self._number(width)), self.context.index_type)
        zero = self._number(0)
        self._strip_loop(code, inside, last, lanes, zero, strips, width)
        base = self._number(strips * width) if isinstance(strips, int) else tirx.Mul(strips, self._number(width))
        self._strip_loop(code, inside, last, lanes, base, left, 1)
        if isinstance(split.rest, int) and split.rest == 0:
            return
        inner = code.nested()
        full = self._number(split.full)
        start = inner.let_index(tirx.Mul(full, self._number(lanes)), self.context.index_type)
        valid = self._number(split.rest)
        self._strip(inner, inside, last, lanes, [start], valid)
        if isinstance(split.rest, int):
            code.append(*inner.statements)
        else:
            code.append(tir.when(tirx.GT(valid, zero), inner.statements))

    def _strip_loop(
        self, code: Code, inside: Sequence[Iter], last: Iter, lanes: int, first: Node, count: int | Node, width: int
    ) -> None:
        if isinstance(count, int) and count == 0:
            return
        counter = tir.variable(code.fresh(last.var.name), self.context.index_type)
        inner = code.nested()
        starts = []
        for i in range(width):
            number = tirx.Add(first, tirx.Add(tirx.Mul(counter, self._number(width)), self._number(i)))
            starts.append(inner.let_index(tirx.Mul(number, self._number(lanes)), self.context.index_type))
        self._strip(inner, inside, last, lanes, starts, None)
        extent = self._number(count)
        code.append(tir.loop(counter, extent, inner.statements, dtype=self.context.index_type))

    def _strip(
        self, code: Code, inside: Sequence[Iter], last: Iter, lanes: int, starts: Sequence[Node], valid: Node | None
    ) -> None:
        """The results of a few blocks of lanes, each reduced over the iterators inside."""
        ways = STRIP // len(starts) if inside and inside[-1].extent >= STRIP else 1
        totals = Registers(code, self.monoid, lanes, len(starts) * ways)
        onto = self._adds_on(inside) and ways == 1
        offsets = [self._points(code, last, lanes, start, valid, None) for start in starts]
        if onto:
            for i, points in enumerate(offsets):
                totals.write(code, i, points.value(Load(self.statement.target, self.statement.index)))
        else:
            totals.clear(code)
        self._reduce_rows(code, totals, inside, Strip(last, starts, valid, ways))
        count = len(starts)
        while ways > 1:
            ways //= 2
            for i in range(count * ways):
                totals.update(code, i, code.let(totals.read(i + count * ways)))
        for i, start in enumerate(starts):
            points = self._points(code, last, lanes, start, valid, None)
            if onto:
                points.store(self.statement.target, self.statement.index, code.let(totals.read(i)))
            else:
                self._finish(points, code.let(totals.read(i)))

    def _adds_on(self, inside: Sequence[Iter]) -> bool:
        """Whether rows are so few that they are added to what the target holds one by one."""
        statement = self.statement
        rows = [static_count(it) for it in inside]
        return not statement.fresh and statement.target.dtype.is_float and len(rows) == 1 and (rows[0] or STRIP) < STRIP

    def _reduce_rows(self, code: Code, totals: Registers, inside: Sequence[Iter], strip: Strip) -> None:
        if not inside:
            self._add_row(code, totals, strip, 0)
            return
        *others, rows = inside

        def all_rows(inner: Code) -> None:
            static = static_count(rows)
            count = (
                static
                if static is not None
                else inner.let_index(
                    tirx.Max(iter_count(self.context, rows), self._number(0)), self.context.index_type, "rows"
                )
            )
            self._rows(inner, totals, rows, self._number(0), count, strip)

        outer_loops(self.context, code, others, all_rows)

    def _add_row(self, code: Code, into: Registers, strip: Strip, way: int) -> None:
        """Reduces the values at one row into one set of accumulators."""
        self._where_seen(code, lambda seen: self._add_seen_row(seen, into, strip, way))

    def _add_seen_row(self, code: Code, into: Registers, strip: Strip, way: int) -> None:
        uniform = self._single(code)
        for i, start in enumerate(strip.starts):
            points = self._points(code, strip.last, into.lanes, start, strip.valid, uniform)
            into.update(code, way * len(strip.starts) + i, self.operand(points))

    def _rows(self, code: Code, into: Registers, rows: Iter, first: Node, count: int | Node, strip: Strip) -> None:
        """``count`` rows from ``first`` on, ``strip.ways`` at a time, then one by one."""
        ways = strip.ways
        if isinstance(count, int):
            self._row_loop(code, into, rows, first, self._number(count // ways), strip, ways)
            after, left = self._number(count // ways * ways), count % ways
            if left:
                self._row_loop(code, into, rows, tirx.Add(first, after), self._number(left), strip, 1)
            return
        groups = code.let_index(tirx.truncdiv(count, self._number(ways)), self.context.index_type)
        self._row_loop(code, into, rows, first, groups, strip, ways)
        if ways > 1:
            done = code.let_index(tirx.Mul(groups, self._number(ways)), self.context.index_type)
            self._row_loop(code, into, rows, tirx.Add(first, done), tirx.Sub(count, done), strip, 1)

    def _row_loop(
        self, code: Code, into: Registers, rows: Iter, first: Node, count: Node, strip: Strip, ways: int
    ) -> None:
        dtype = self.context.index_type
        step = tir.variable(code.fresh("row"), dtype)
        inner = code.nested()
        for way in range(ways):
            offset = tirx.Add(first, tirx.Add(tirx.Mul(step, self._number(ways)), self._number(way)))
            self.context.loops[rows.var] = inner.let_index(offset, dtype, rows.var.name)
            self._add_row(inner, into, strip, way)
        code.append(tir.loop(step, count, inner.statements, dtype=dtype))
