# SPDX-License-Identifier: Apache-2.0
"""Map and Store: a value at every point of a domain.

A load that walks memory along an outer iterator instead of the lanes (a transposed operand) is read in square
blocks, each row a vector, and transposed in registers; one element at a time would use each cache line 16 times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tvm import tirx

from fusec.codegen.tvm import tir
from fusec.codegen.tvm.casts import memory_type, register_type
from fusec.codegen.tvm.context import Context, Numbers, distinct, flat_index, used_once
from fusec.codegen.tvm.domain import LaneLoop, coerce, lane_count, lane_loop, outer_loops, split_lanes
from fusec.codegen.tvm.scalars import LaneBlock, Points, is_within
from fusec.codegen.tvm.short import short_nodes
from fusec.codegen.tvm.tir import Node, Value
from fusec.codegen.tvm.transpose import emit_transpose, find_transpose, transposed
from fusec.codegen.tvm.vector import Code
from fusec.codegen.tvm.words import emit_interleaved, in_words
from fusec.ir import index as ix
from fusec.ir import indexing
from fusec.ir.index import Expr, Index, Symbol
from fusec.ir.types import bf16
from fusec.tile.nodes import Iter, Map, Store
from fusec.tile.scalar import Apply, IndexValue, Load, ScalarExpr

GROUP = 4
"""Square blocks taken along the memory of a transposed load before the next lanes: whole runs of cache lines."""


def emit_pointwise(context: Context, code: Code, numbers: Numbers, statement: Map | Store) -> None:
    copied = in_words(context, code, statement) or statement

    def plain(inner: Code) -> None:
        transpose = find_transpose(copied, context)
        for part in (copied,) if transpose is None else emit_transpose(context, inner, transpose):
            _Writer(context, numbers, _lanes_along_memory(part)).write(inner)

    if not emit_interleaved(context, code, copied, plain):
        plain(code)


def emit_beside(context: Context, code: Code, numbers: Numbers, stores: Sequence[Store]) -> None:
    """Stores over one domain, each result a step ahead of the next: what they share is read once, and is alive for as
    long as the next ones need it."""
    *outer, last = stores[0].domain
    operands = [_store_operand(s) for s in stores]
    values = (*operands, *(IndexValue(i) for s in stores for i in s.index))
    lanes = lane_count(context, last, values, stores[0].target.dtype)
    non_temporal = any(s.non_temporal for s in stores)

    def body(points: Points) -> None:
        points.non_temporal = non_temporal
        points.together(operands)
        for store, operand in zip(stores, operands, strict=True):
            points.store(store.target, store.index, coerce(points.code, points.value(operand), store.target.dtype))

    outer_loops(context, code, outer, lambda inner: lane_loop(context, inner, numbers, last, lanes, body, 1))


def _lanes_along_memory(statement: Map | Store) -> Map | Store:
    """The statement with the iterator last along which the target's elements are adjacent."""
    domain = statement.domain
    flat = flat_index(statement.index, statement.target.strides)
    if len(domain) < 2 or indexing.coefficient(flat, domain[-1].var) in (1, -1):
        return statement
    for position, it in enumerate(domain[:-1]):
        free = not any(other.limit is not None and it.var in ix.symbols_of(other.limit) for other in domain)
        if free and it.extent >= 8 and indexing.coefficient(flat, it.var) == 1:
            return replace(statement, domain=(*domain[:position], *domain[position + 1 :], it))
    return statement


@dataclass(frozen=True, eq=False)
class _Transposition:
    """``loads`` are adjacent in memory along the iterator ``along``, one of the outer ones."""

    along: Iter
    others: tuple[Iter, ...]
    loads: tuple[Load, ...]


class _Writer:
    def __init__(self, context: Context, numbers: Numbers, statement: Map | Store) -> None:
        self.context, self.numbers, self.statement = context, numbers, statement
        self.operand = _store_operand(statement)
        halves = statement.target.dtype is bf16
        self.short = short_nodes(self.operand, numbers) if halves else frozenset()
        self.single = used_once(self.operand, numbers)
        self.non_temporal = isinstance(statement, Store) and statement.non_temporal

    def write(self, code: Code) -> None:
        if not self.statement.domain:
            self.body(Points(self.context, code, self.numbers, None, None))
            return
        *outer, last = self.statement.domain
        values = (self.operand, *(IndexValue(i) for i in self.statement.index))
        lanes = lane_count(self.context, last, values, self.statement.target.dtype)
        transposition = self.find_transposition(outer, last, lanes)
        if transposition is None:
            outer_loops(self.context, code, outer, lambda inner: self.lanes(inner, last, lanes))
            return
        squares = _Squares(self, transposition, last, lanes)
        outer_loops(self.context, code, transposition.others, squares.write)

    def lanes(self, code: Code, last: Iter, lanes: int) -> None:
        lane_loop(self.context, code, self.numbers, last, lanes, self.body)

    def body(self, points: Points) -> None:
        points.non_temporal = self.non_temporal
        for load in self.statement.prefetch:
            points.fetch(load)
        if isinstance(self.operand, Load) and self.operand.dtype == self.statement.target.dtype:
            points.move(self.operand, self.statement.target, self.statement.index)
            return
        points.short, points.single = self.short, self.single
        computed = coerce(points.code, points.value(self.operand), self.statement.target.dtype)
        points.store(self.statement.target, self.statement.index, computed)

    def find_transposition(self, outer: Sequence[Iter], last: Iter, lanes: int) -> _Transposition | None:
        if lanes < 4 or last.extent < lanes:
            return None
        nodes = distinct(self.operand)
        guarded = any(isinstance(n, Apply) and n.op == "select" for n in nodes)
        strided = [n for n in nodes if isinstance(n, Load) and _step(n, last.var) not in (None, 0, 1)]
        for it in reversed(outer):
            others = tuple(other for other in outer if other is not it)
            bound = any(o.limit is not None and it.var in ix.symbols_of(o.limit) for o in (*others, last))
            loads = tuple(n for n in strided if _step(n, it.var) == 1 and (is_within(n) or not guarded))
            if loads and it.extent >= lanes and not bound:
                return _Transposition(it, others, loads)
        return None


def _step(load: Load, symbol: Symbol) -> int | None:
    """Elements from one point to the next along the symbol; None for a gather or an uneven walk."""
    subscripts: list[Index] = []
    for i in load.index:
        if not isinstance(i, int | Expr):
            return None
        subscripts.append(i)
    return indexing.coefficient(flat_index(subscripts, load.buffer.strides), symbol)


def _store_operand(statement: Map | Store) -> ScalarExpr:
    """The value without a last cast to the buffer's half type: the store rounds."""
    value, dtype = statement.value, statement.target.dtype
    narrow = dtype.name in ("f16", "bf16") or dtype.kind == "float8"
    if isinstance(value, Apply) and value.op == "cast" and value.dtype == dtype and narrow:
        inner = value.args[0]
        if register_type(inner.dtype) == "float32":
            return inner
    return value


class _Squares:
    """The loops over square blocks: ``lanes`` points of ``along`` by ``lanes`` points of the last iterator."""

    def __init__(self, writer: _Writer, transposition: _Transposition, last: Iter, lanes: int) -> None:
        self.writer, self.context = writer, writer.context
        self.along, self.loads = transposition.along, transposition.loads
        self.last, self.size = last, lanes

    def write(self, code: Code) -> None:
        rows = split_lanes(self.context, code, self.along, self.size)
        columns = split_lanes(self.context, code, self.last, self.size)
        whole = rows.full
        if isinstance(whole, int):
            groups: int | Node = whole // GROUP
            left: int | Node = whole % GROUP
            done: Node = self._number(whole // GROUP * GROUP)
        else:
            groups = code.let_index(tirx.truncdiv(whole, self._number(GROUP)), self.context.index_type)
            left = code.let_index(tirx.truncmod(whole, self._number(GROUP)), self.context.index_type)
            done = code.let_index(tirx.Sub(whole, left), self.context.index_type)
        self._loop(
            code,
            groups,
            lambda inner, number: self._group(inner, tirx.Mul(number, self._number(GROUP)), GROUP, columns),
        )
        self._loop(code, left, lambda inner, number: self._group(inner, tirx.Add(done, number), 1, columns))
        self._rest(code, rows)

    def _number(self, value: int | Node) -> Node:
        return self.context.integer(value)

    def _loop(self, code: Code, count: int | Node, body: Callable[[Code, Node], None]) -> None:
        if isinstance(count, int) and count == 0:
            return
        counter = tir.variable(code.fresh("square"), self.context.index_type)
        inner = code.nested()
        body(inner, counter)
        extent = self._number(count)
        code.append(tir.loop(counter, extent, inner.statements, dtype=self.context.index_type))

    def _group(self, code: Code, first: Node, count: int, columns: LaneLoop) -> None:
        """``count`` blocks of rows from block number ``first`` on, across all columns."""
        self._loop(code, columns.full, lambda inner, block: self._squares(inner, first, count, block))
        if isinstance(columns.rest, int) and columns.rest == 0:
            return
        full = self._number(columns.full)
        rest = self._number(columns.rest)
        start = code.let_index(tirx.Mul(full, self._number(self.size)), self.context.index_type)

        def row(inner: Code, number: Node) -> None:
            base = tirx.Mul(first, self._number(self.size))
            self._bind_row(inner, tirx.Add(base, number))
            self.writer.body(self._points(inner, start, rest))

        inner = code.nested()
        self._loop(inner, count * self.size, row)
        code.append(tir.when(tirx.GT(rest, self._number(0)), inner.statements))

    def _bind_row(self, code: Code, offset: Node) -> None:
        self.context.loops[self.along.var] = code.let_index(offset, self.context.index_type, self.along.var.name)

    def _points(self, code: Code, start: Node, valid: Node | None = None) -> Points:
        block = LaneBlock(self.last.var, self.size, start, valid)
        return Points(self.context, code, self.writer.numbers, block, None)

    def _squares(self, code: Code, first: Node, count: int, column: Node) -> None:
        size = self._number(self.size)
        start = code.let_index(tirx.Mul(column, size), self.context.index_type, self.last.var.name)
        for i in range(count):
            block = tirx.Add(first, self._number(i))
            base = code.let_index(tirx.Mul(block, size), self.context.index_type)
            self._square(code, base, start)

    def _square(self, code: Code, base: Node, start: Node) -> None:
        blocks = {self.writer.numbers.number(load): self._transposed(code, load, base, start) for load in self.loads}

        def row(inner: Code, number: Node) -> None:
            self._bind_row(inner, tirx.Add(base, number))
            points = self._points(inner, start)
            offset = tir.ramp(tirx.Mul(number, self._number(self.size)), self.size, 1, self.context.index_type)
            for key, (scratch, element) in blocks.items():
                points.staged[key] = Value(tirx.BufferLoad(scratch, [offset]), element, self.size)
            self.writer.body(points)

        self._loop(code, self.size, row)

    def _transposed(self, code: Code, load: Load, base: Node, start: Node) -> tuple[Node, str]:
        """The block in scratch memory, a row for each point of ``along``."""
        element = memory_type(load.dtype)
        scratch, allocate = tir.stack(code.fresh("transposed"), element, self.size * self.size)
        code.append(allocate)
        flat = flat_index((i for i in load.index if isinstance(i, int | Expr)), load.buffer.strides)
        memory = self.context.memory[load.buffer]
        rows = []
        for lane in range(self.size):
            at = {self.last.var: tirx.Add(start, self._number(lane)), self.along.var: base}
            offset = tir.ramp(self.context.index(flat, at), self.size, 1, self.context.index_type)
            rows.append(code.let(Value(tirx.BufferLoad(memory, [offset]), element, self.size), load.buffer.name))
        for number, row in enumerate(transposed(code, rows)):
            offset = tir.ramp(self._number(number * self.size), self.size, 1, self.context.index_type)
            code.append(tirx.BufferStore(scratch, row.node, [offset]))
        return scratch, element

    def _rest(self, code: Code, rows: LaneLoop) -> None:
        """The last points of ``along``, fewer than a block, one after the other."""
        full = self._number(rows.full)
        base = tirx.Mul(full, self._number(self.size))

        def row(inner: Code, number: Node) -> None:
            self._bind_row(inner, tirx.Add(base, number))
            self.writer.lanes(inner, self.last, self.size)

        self._loop(code, rows.rest, row)
