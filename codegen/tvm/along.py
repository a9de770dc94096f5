# SPDX-License-Identifier: Apache-2.0
"""Matmuls whose operands both have k's elements side by side: k lies on the lanes, each sum is a vector until its end.

So a weight of ``[columns, k]``, as ``torch.nn.Linear`` keeps it, is read where it lies. ``rows`` by ``columns`` vectors
of sums stay in registers over all of k; then each is added up, those of a row by one tree of shuffles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tvm import tirx

from fusec.codegen.tvm import tir
from fusec.codegen.tvm.casts import memory_type, register_type
from fusec.codegen.tvm.context import Context, load_index
from fusec.codegen.tvm.dot import DotWriter, RowBlock
from fusec.codegen.tvm.groups import SIGNS, multiply_groups
from fusec.codegen.tvm.tir import Node, Value
from fusec.codegen.tvm.vector import Code
from fusec.errors import LoweringError
from fusec.ir import index as ix
from fusec.ir.index import Index, Symbol, symbol
from fusec.tile.nodes import Dot, grouped
from fusec.tile.scalar import Load


class AlongWriter(DotWriter):
    """``span``: elements of k in one vector."""

    def __init__(self, context: Context, dot: Dot) -> None:
        self.context, self.dot = context, dot
        self.group = grouped(dot)
        self.signed = dot.a.dtype.name == "i8"
        self.check()
        self.type = register_type(dot.accumulator.dtype)
        self.lanes = context.target.lanes(dot.accumulator.dtype.bits)
        self.span = self.lanes * self.group
        self.vectors = dot.registers.columns
        self.flat = {id(load): load_index(load) for load in (dot.a, dot.b, dot.accumulator)}

    def check(self) -> None:
        columns = self.dot.registers.columns
        if columns & (columns - 1) or columns > self.context.target.lanes(self.dot.accumulator.dtype.bits):
            raise LoweringError(f"sums along k of {columns} columns")
        if self.group == 1:
            super().check()
        elif not self.context.target.multiplies(self.dot.a.dtype):
            raise LoweringError(f"{self.context.target.name} does not multiply {self.dot.a.dtype} in groups")

    def _block(self, code: Code, block: RowBlock, column: Index, remaining: Node | None) -> None:
        if remaining is None:
            last: Index | None = None
        else:
            last = symbol(code.fresh("end"), 0, max(self.dot.n.extent - 1, 0))
            node = tirx.Sub(tirx.Add(self.context.index(column), remaining), self._number(1))
            code.append(tir.bind(self.context.bind(last), node))
        sums = self._start(code, replace(block, rows=block.rows + self.signed))
        self._over_k(code, block, column, last, sums)
        self._add_up(code, block, column, sums)

    # k

    def _over_k(self, code: Code, block: RowBlock, column: Index, last: Index | None, sums: list[list[Node]]) -> None:
        count = self._count(code, self.dot.k, "depth")
        dtype = self.context.index_type
        whole = count // self.span if isinstance(count, int) else tirx.truncdiv(count, self._number(self.span))
        if not (isinstance(whole, int) and whole == 0):
            step = symbol(code.fresh("kb"), 0, max(0, self.dot.k.extent // self.span - 1))
            variable = self.context.bind(step)
            inner = code.nested()
            self._multiply(inner, block, column, last, ix.mul(step, self.span), sums, None)
            extent = self._number(whole)
            code.append(tir.loop(variable, extent, inner.statements, dtype=dtype))
        if isinstance(count, int):
            rest = count % self.span
            if rest:
                mask = tir.first_lanes(self._number(rest), self.span, dtype)
                self._multiply(code, block, column, last, count - rest, sums, mask)
            return
        left = code.let_index(tirx.truncmod(count, self._number(self.span)), dtype, "left")
        start = symbol(code.fresh("k"), 0, self.dot.k.extent)
        inner = code.nested()
        inner.append(tir.bind(self.context.bind(start), tirx.Sub(count, left)))
        self._multiply(inner, block, column, last, start, sums, tir.first_lanes(left, self.span, dtype))
        code.append(tir.when(tirx.GT(left, self._number(0)), inner.statements))

    def _multiply(
        self,
        code: Code,
        block: RowBlock,
        column: Index,
        last: Index | None,
        k: Index,
        sums: list[list[Node]],
        mask: Node | None,
    ) -> None:
        """One vector of k: each of the rows' with each of the columns'."""
        columns = []
        for j in range(self.vectors):
            at: Index = ix.add(column, j)
            if last is not None and j:
                at = ix.minimum(at, last)
            columns.append(
                self._read(code, "b", self.dot.b, {**self._coordinates(block, 0, k), self.dot.n.var: at}, mask)
            )
        if mask is None:
            self._fetch_columns(code, block, column, k)
        zero = tir.integer(0)
        for i, row in enumerate(sums):
            if i < block.rows:
                left = self._read(code, "a", self.dot.a, self._coordinates(block, i, k), mask)
                if self.signed:
                    left = self._bound(code, "s", tirx.bitwise_xor(left, tir.constant(SIGNS, "int32", self.lanes).node))
            else:
                left = tir.constant(SIGNS, "int32", self.lanes).node
            for total, right in zip(row, columns, strict=True):
                old = tirx.BufferLoad(total, [zero])
                code.append(tirx.BufferStore(total, self._accumulated(code, old, left, right), [zero]))

    def _coordinates(self, block: RowBlock, i: int, k: Index) -> Mapping[Symbol, Index]:
        return self._at(block, i, 0, 0, k)

    def _read(self, code: Code, name: str, load: Load, at: Mapping[Symbol, Index], mask: Node | None) -> Node:
        """A vector along k; small elements as groups of 32 bits."""
        memory = self.context.memory[load.buffer]
        offset = tir.ramp(self.context.index(self._flat_at(load, at)), self.span, 1, self.context.index_type)
        if mask is None:
            node = tirx.BufferLoad(memory, [offset])
        else:
            element = memory_type(load.dtype)
            node = tirx.op.masked_load(tir.vector_type(element, self.span), memory, offset, mask)
            node = tirx.Select(mask, node, tir.constant(0, element, self.span).node)  # else they may be anything
        if self.group > 1:
            node = tirx.reinterpret(f"int32x{self.lanes}", node)
        return self._bound(code, name, node)

    def _bound(self, code: Code, name: str, node: Node) -> Node:
        kind = "int32" if self.group > 1 else self.type
        variable = tir.variable(code.fresh(name), tir.vector_type(kind, self.lanes))
        code.append(tir.bind(variable, node))
        return variable

    def _accumulated(self, code: Code, total: Node, a: Node, b: Node) -> Node:
        if self.group > 1:
            return multiply_groups(self.context, self.group, total, a, b)
        return self._multiply_add(code, a, b, total)

    def _fetch_columns(self, code: Code, block: RowBlock, column: Index, k: Index) -> None:
        """Has the same position of the columns that come ``prefetch_bytes`` bytes later brought to the cache, once for
        all blocks of rows."""
        registers = self.dot.registers
        if not registers.prefetch_bytes or (isinstance(block.number, int) and block.number > 0):
            return
        memory = self.context.memory[self.dot.b.buffer]
        prefetch_bytes = registers.prefetch_bytes // self.dot.b.dtype.itemsize
        fetches = []
        for j in range(self.vectors):
            flat = self._flat_at(self.dot.b, {**self._coordinates(block, 0, k), self.dot.n.var: ix.add(column, j)})
            fetches.append(tir.fetch(memory, self.context.index(ix.add(flat, prefetch_bytes)), 2))
        code.append(*fetches)

    # the end

    def _add_up(self, code: Code, block: RowBlock, column: Index, sums: list[list[Node]]) -> None:
        zero = tir.integer(0)
        values = [[Value(tirx.BufferLoad(x, [zero]), self.type, self.lanes) for x in row] for row in sums]
        shifts = values.pop() if self.signed else None
        acc = self.dot.accumulator
        for i, row in enumerate(values):
            if shifts is not None:
                row = [code.sub(x, s) for x, s in zip(row, shifts, strict=True)]
            total = added_up(code, [code.let(x) for x in row])
            inner = code.nested()
            at = self._at(block, i, column, 0)
            offset = tir.ramp(self.context.index(self._flat_at(acc, at)), self.vectors, 1, self.context.index_type)
            memory = self.context.memory[acc.buffer]
            if not self.dot.fresh:
                before = Value(tirx.BufferLoad(memory, [offset]), self.type, self.vectors)
                total = inner.add(before, total)
            inner.append(tirx.BufferStore(memory, total.node, [offset]))
            if block.last is None or i == 0:
                code.append(*inner.statements)
            else:
                row_number = self.context.index(ix.add(block.start, i))
                code.append(tir.when(tirx.LE(row_number, self.context.loops[block.last]), inner.statements))


def added_up(code: Code, vectors: Sequence[Value]) -> Value:
    """The sum of each vector's lanes, side by side; their number is a power of two.

    Two vectors of parts become one of twice as many parts, half as long.
    """
    parts = 1
    while len(vectors) > 1:
        vectors = [_joined(code, a, b, parts) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
        parts *= 2
    (total,) = vectors
    while total.lanes > parts:
        total = _halved(code, total, parts)
    return total


def _joined(code: Code, a: Value, b: Value, parts: int) -> Value:
    size = a.lanes // parts
    starts = [s for vector in (0, a.lanes) for s in range(vector, vector + a.lanes, size)]
    low = [s + k for s in starts for k in range(size // 2)]
    high = [s + k for s in starts for k in range(size // 2, size)]
    return code.let(code.add(tir.shuffle(a, b, low), tir.shuffle(a, b, high)))


def _halved(code: Code, total: Value, parts: int) -> Value:
    size = total.lanes // parts
    low = [s + k for s in range(0, total.lanes, size) for k in range(size // 2)]
    high = [s + k for s in range(0, total.lanes, size) for k in range(size // 2, size)]
    return code.let(code.add(tir.shuffle(total, total, low), tir.shuffle(total, total, high)))
