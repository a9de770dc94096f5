# SPDX-License-Identifier: Apache-2.0
"""Sums of floats, whose error does not grow with their length.

Short blocks of terms are added up in the terms' own dtype, and what f32 makes of a block joins totals in f64. A block
of cheap terms is a balanced tree (pairwise summation; Higham, *Accuracy and Stability of Numerical Algorithms*, 4.1):
where they are all equal, the sum is exact, and so is a mean that is divided in f64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tvm import tirx

from fusec.codegen.tvm import tir
from fusec.codegen.tvm.accumulators import Monoid, Registers, across
from fusec.codegen.tvm.casts import cast, register_type
from fusec.codegen.tvm.context import Context, Numbers, distinct
from fusec.codegen.tvm.domain import coerce, iter_count, outer_loops, split_lanes, static_count
from fusec.codegen.tvm.reduction import ACCUMULATORS, STRIP, Reduction, Strip
from fusec.codegen.tvm.scalars import Points
from fusec.codegen.tvm.tir import Node, Value
from fusec.codegen.tvm.vector import Code
from fusec.ir.ops import OPS
from fusec.ir.types import f32, f64
from fusec.tile.nodes import Iter, Reduce
from fusec.tile.scalar import Apply, Load

TREE = 32
"""Vectors of cheap terms along the lanes that are written out and added up as a tree, so that f64 costs little."""

ROWS = 16
"""The same across the lanes, where a few neighbouring vectors are added up at once."""

SHORT_SUM = 16
"""Additions of other terms into one accumulator before it joins the totals."""

CHEAP_FLOPS = 4
"""What a term may cost to be written out so often."""

Add = Callable[[Code, Value], None]


class Sum(Reduction):
    """Terms of f32 may be summed up into an f64 target; blocks of them are still added in f32."""

    def __init__(self, context: Context, numbers: Numbers, statement: Reduce) -> None:
        super().__init__(context, numbers, statement)
        in_f32 = register_type(statement.value.dtype) == "float32" or register_type(statement.target.dtype) == "float32"
        self.monoid = Monoid("sum", f32 if in_f32 else f64)
        self.total = Monoid("sum", f64)
        self.wide = statement.target.dtype is f64
        self.cheap = _flops(statement) <= CHEAP_FLOPS

    def _widened(self, code: Code, value: Value) -> Value:
        return value if value.type == "float64" else cast(code, value, f64)

    def _finish(self, points: Points, value: Value) -> None:
        code, target = points.code, self.statement.target
        if not self.statement.fresh:
            old = points.value(Load(target, self.statement.index))
            if value.type != old.type:
                value, old = self._widened(code, value), self._widened(code, old)
            value = code.add(value, old)
        points.store(target, self.statement.index, coerce(code, value, target.dtype))

    # along the lanes

    def _along(self, code: Code, inside: Sequence[Iter], last: Iter) -> None:
        lanes = self._lanes(last)
        totals = Registers(code, self.total, lanes, 1)
        totals.clear(code)

        def join(inner: Code, value: Value) -> None:
            totals.update(inner, 0, self._widened(inner, value))

        def one_pass(inner: Code) -> None:
            self._where_seen(inner, lambda seen: self._terms(seen, last, lanes, join))

        outer_loops(self.context, code, inside, one_pass)
        self._finish(self._single(code), across(code, self.total, code.let(totals.read(0))))

    def _block(self) -> int:
        """Vectors of terms that are added up before they join the totals."""
        return TREE if self.cheap else ACCUMULATORS * SHORT_SUM

    def _terms(self, code: Code, last: Iter, lanes: int, join: Add) -> None:
        """One pass over the last iterator: the sums of its blocks, and what is left over, joined in turn."""
        split = split_lanes(self.context, code, last, lanes)
        uniform = self._single(code)
        size = self._block()
        if isinstance(split.full, int):
            self._whole_blocks(code, last, lanes, self._number(split.full // size), uniform, join)
            left: list[Value] = []
            done = split.full // size * size
            self._left(code, last, lanes, done, split.full - done, uniform, left)
            if split.rest:
                left.append(self.masked(code, last, lanes, split.full, split.rest))
            for value in left if self.wide else [self._added(code, left)] if left else []:
                join(code, value)
            return
        assert not isinstance(split.rest, int)
        chunks = code.let_index(tirx.truncdiv(split.full, self._number(size)), self.context.index_type)
        self._whole_blocks(code, last, lanes, chunks, uniform, join)
        first = code.let_index(tirx.Mul(chunks, self._number(size)), self.context.index_type)
        join(code, self._round_robin(code, last, lanes, first, tirx.Sub(split.full, first), uniform))
        inner = code.nested()
        join(inner, self.masked(inner, last, lanes, split.full, split.rest))
        code.append(tir.when(tirx.GT(split.rest, self._number(0)), inner.statements))

    def _whole_blocks(self, code: Code, last: Iter, lanes: int, count: Node, uniform: Points, join: Add) -> None:
        if isinstance(count, tirx.IntImm) and int(count) == 0:
            return
        counter = tir.variable(code.fresh("block"), self.context.index_type)
        inner = code.nested()
        first = inner.let_index(tirx.Mul(counter, self._number(self._block())), self.context.index_type)
        if self.cheap:
            join(inner, self._tree(inner, last, lanes, first, range(TREE), uniform))
        else:
            join(inner, self._round_robin(inner, last, lanes, first, self._block(), uniform))
        code.append(tir.loop(counter, count, inner.statements, dtype=self.context.index_type))

    def _left(
        self, code: Code, last: Iter, lanes: int, first: int, count: int, uniform: Points, found: list[Value]
    ) -> None:
        """The sums of fewer vectors than a block has, of powers of two where the terms are cheap."""
        if not self.cheap:
            if count:
                found.append(self._round_robin(code, last, lanes, self._number(first), count, uniform))
            return
        size = TREE
        while (size := size // 2) > 0:
            if count & size:
                found.append(self._tree(code, last, lanes, self._number(first), range(size), uniform))
                first += size

    def _round_robin(
        self, code: Code, last: Iter, lanes: int, first: Node, count: int | Node, uniform: Points
    ) -> Value:
        """The sum of some vectors, added to a few accumulators in turn."""
        width = ACCUMULATORS if not isinstance(count, int) or count > 1 else 1
        partial = Registers(code, self.monoid, lanes, width)
        partial.clear(code)
        self._blocks(code, partial, last, first, count, uniform)
        return self._added(code, [code.let(partial.read(i)) for i in range(width)])

    def _tree(self, code: Code, last: Iter, lanes: int, first: Node, which: range, uniform: Points) -> Value:
        if len(which) == 1:
            number = tirx.Add(first, self._number(which.start))
            start = code.let_index(tirx.Mul(number, self._number(lanes)), self.context.index_type)
            return self.operand(self._points(code, last, lanes, start, None, uniform))
        middle = len(which) // 2
        low, high = (self._tree(code, last, lanes, first, part, uniform) for part in (which[:middle], which[middle:]))
        return code.add(tir.widen(low, lanes), high)

    def _added(self, code: Code, values: Sequence[Value]) -> Value:
        """The sum of a few values, pairs of neighbours first."""
        while len(values) > 1:
            pairs = [values[i : i + 2] for i in range(0, len(values), 2)]
            values = [code.add(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
        return values[0]

    # across the lanes

    def _strip(
        self, code: Code, inside: Sequence[Iter], last: Iter, lanes: int, starts: Sequence[Node], valid: Node | None
    ) -> None:
        strip = Strip(last, starts, valid, 1)
        rows = static_count(inside[-1]) if inside else 1
        if len(inside) < 2 and self.seen is None and rows is not None and 0 < rows <= self._few() and not self.wide:
            sums = self._few_rows(code, inside, strip, lanes, rows)
            sums = [code.add(v, code.constant(v, 0.0)) for v in sums]  # a sum of negative zeros is 0
        else:
            totals = Registers(code, self.total, lanes, len(starts))
            totals.clear(code)
            self._all_rows(code, totals, inside, strip)
            sums = [code.let(totals.read(i)) for i in range(len(starts))]
        for start, value in zip(starts, sums, strict=True):
            self._finish(self._points(code, last, lanes, start, valid, None), tir.widen(value, lanes))

    def _few(self) -> int:
        """Rows that are added up without totals."""
        return ROWS if self.cheap else STRIP

    def _few_rows(self, code: Code, inside: Sequence[Iter], strip: Strip, lanes: int, rows: int) -> list[Value]:
        if not inside:
            uniform = self._single(code)
            offsets = [self._points(code, strip.last, lanes, start, strip.valid, uniform) for start in strip.starts]
            return [self.operand(points) for points in offsets]
        return self._rows_tree(code, inside[-1], self._number(0), range(rows), strip, lanes)

    def _rows_tree(self, code: Code, rows: Iter, first: Node, which: range, strip: Strip, lanes: int) -> list[Value]:
        """For each block of lanes the sum of some rows."""
        if len(which) == 1:
            offset = tirx.Add(first, self._number(which.start))
            self.context.loops[rows.var] = code.let_index(offset, self.context.index_type, rows.var.name)
            uniform = self._single(code)
            offsets = [self._points(code, strip.last, lanes, start, strip.valid, uniform) for start in strip.starts]
            return [tir.widen(self.operand(points), lanes) for points in offsets]
        middle = len(which) // 2
        low, high = (
            self._rows_tree(code, rows, first, part, strip, lanes) for part in (which[:middle], which[middle:])
        )
        return [code.add(a, b) for a, b in zip(low, high, strict=True)]

    def _all_rows(self, code: Code, totals: Registers, inside: Sequence[Iter], strip: Strip) -> None:
        if not inside:
            self._where_seen(
                code, lambda seen: self._join(seen, totals, self._few_rows(seen, (), strip, totals.lanes, 1))
            )
            return
        *others, rows = inside
        outer_loops(self.context, code, others, lambda inner: self._rows_in_blocks(inner, totals, rows, strip))

    def _join(self, code: Code, totals: Registers, sums: Sequence[Value]) -> None:
        for i, value in enumerate(sums):
            totals.update(code, i, self._widened(code, value))

    def _rows_in_blocks(self, code: Code, totals: Registers, rows: Iter, strip: Strip) -> None:
        static, dtype = static_count(rows), self.context.index_type
        if static is None:
            count = code.let_index(tirx.Max(iter_count(self.context, rows), self._number(0)), dtype, "rows")
        else:
            count = self._number(static)
        if not self.cheap or self.seen is not None:
            self._loop_over_blocks(code, totals, rows, count, strip)
            return
        blocks = (
            code.let_index(tirx.truncdiv(count, self._number(ROWS)), dtype)
            if static is None
            else self._number(static // ROWS)
        )
        counter = tir.variable(code.fresh("block"), dtype)
        inner = code.nested()
        first = inner.let_index(tirx.Mul(counter, self._number(ROWS)), dtype)
        self._join(inner, totals, self._rows_tree(inner, rows, first, range(ROWS), strip, totals.lanes))
        if static is None or static >= ROWS:
            code.append(tir.loop(counter, blocks, inner.statements, dtype=dtype))
        if static is not None:
            self._rows_left(code, totals, rows, static, strip)
            return
        done = code.let_index(tirx.Mul(blocks, self._number(ROWS)), dtype)
        self._loop_over_blocks(code, totals, rows, count, strip, done)

    def _rows_left(self, code: Code, totals: Registers, rows: Iter, count: int, strip: Strip) -> None:
        done, size = count // ROWS * ROWS, ROWS
        while (size := size // 2) > 0:
            if count & size:
                first = self._number(done)
                self._join(code, totals, self._rows_tree(code, rows, first, range(size), strip, totals.lanes))
                done += size

    def _loop_over_blocks(
        self, code: Code, totals: Registers, rows: Iter, count: Node, strip: Strip, begin: Node | None = None
    ) -> None:
        """The rows from ``begin`` on in blocks of SHORT_SUM, each added up by itself first."""
        dtype, size = self.context.index_type, self._number(SHORT_SUM)
        begin = self._number(0) if begin is None else begin
        blocks = tirx.truncdiv(tirx.Add(tirx.Sub(count, begin), tirx.Sub(size, self._number(1))), size)
        counter = tir.variable(code.fresh("block"), dtype)
        inner = code.nested()
        ways = STRIP // len(strip.starts)
        partial = Registers(inner, self.monoid, totals.lanes, len(strip.starts) * ways)
        partial.clear(inner)
        first = inner.let_index(tirx.Add(begin, tirx.Mul(counter, size)), dtype)
        length = inner.let_index(tirx.Min(size, tirx.Sub(count, first)), dtype)
        self._rows(inner, partial, rows, first, length, replace(strip, ways=ways))
        sums = [inner.let(partial.read(i)) for i in range(len(partial.buffers))]
        each = len(strip.starts)
        self._join(inner, totals, [self._added(inner, sums[i::each]) for i in range(each)])
        code.append(tir.loop(counter, blocks, inner.statements, dtype=dtype))


def _flops(statement: Reduce) -> int:
    found = (node for node in distinct(statement.value) if isinstance(node, Apply))
    return sum(max(OPS[node.op].flops, 1) if node.op in OPS else CHEAP_FLOPS for node in found)
