# SPDX-License-Identifier: Apache-2.0
"""An attention's weights: powers of two of its scores, and their sums.

Queries lie on vector lanes. A few vectors of queries by one key, or by a pair of keys, are computed side by side: what
one of them waits for, the others fill.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx

from fusec.codegen.tvm import math, tir
from fusec.codegen.tvm.casts import register_type
from fusec.codegen.tvm.context import Context, Numbers, load_index
from fusec.codegen.tvm.domain import coerce, iter_count, static_count
from fusec.codegen.tvm.scalars import LaneBlock, Points
from fusec.codegen.tvm.tir import Node, Value
from fusec.codegen.tvm.vector import Code
from fusec.errors import LoweringError
from fusec.ir import index as ix
from fusec.ir import indexing
from fusec.ir.index import symbol
from fusec.ir.types import bf16
from fusec.tile.nodes import SoftmaxExp
from fusec.tile.scalar import Load

CHAINS = 4
"""Vectors of weights that are computed side by side."""

SHORT_SUM = 8
"""Weights that are added up in a register before they join the sum of a block of keys."""


def emit_softmax_exp(context: Context, code: Code, numbers: Numbers, statement: SoftmaxExp) -> None:
    _Writer(context, numbers, statement).write(code)


class _Writer:
    def __init__(self, context: Context, numbers: Numbers, statement: SoftmaxExp) -> None:
        self.context, self.numbers, self.statement = context, numbers, statement
        self.dtype = statement.row_sum.dtype
        self.lanes = context.target.lanes(self.dtype.bits)
        self.ways = 2 if statement.weights.dtype is bf16 else 1
        self.flat = load_index(statement.weights)
        self._check()

    def _check(self) -> None:
        """LoweringError for weights that don't lie as they must."""
        w, lane = self.statement, symbol("lane", 0, self.lanes - 1)
        count = static_count(w.queries)
        if count is None or count % self.lanes:
            raise LoweringError(f"{w.queries.var} does not fill vectors")
        block = symbol("block", 0, max(0, count // self.lanes - 1))
        query = ix.add(ix.mul(block, self.lanes), lane)
        if indexing.coefficient(indexing.substitute(self.flat, {w.queries.var: query}), lane) != self.ways:
            raise LoweringError(f"the weights of neighbouring queries are not {self.ways} apart")
        if self.ways == 1:
            return
        keys = static_count(w.keys)
        pair = symbol("pair", 0, max(0, w.keys.extent // 2 - 1))
        unit = symbol("unit", 0, 1)
        offset = indexing.substitute(self.flat, {w.keys.var: ix.add(ix.mul(pair, 2), unit)})
        if keys is None or keys % 2 or indexing.coefficient(offset, unit) != 1 or not self.context.target.has_avx512:
            raise LoweringError("weights of bf16 that are no pairs of keys")

    def write(self, code: Code) -> None:
        vectors = (static_count(self.statement.queries) or 0) // self.lanes
        width = max(1, CHAINS // self.ways)
        for first in range(0, vectors, width):
            starts = [i * self.lanes for i in range(first, min(first + width, vectors))]
            self._strip(code, starts, () if first else self.statement.prefetch)

    def _number(self, value: int) -> Node:
        return self.context.integer(value)

    def _points(self, code: Code, start: int) -> Points:
        block = LaneBlock(self.statement.queries.var, self.lanes, self._number(start))
        return Points(self.context, code, self.numbers, block, None)

    def _strip(self, code: Code, starts: Sequence[int], prefetch: Sequence[Load]) -> None:
        """All keys for a few vectors of queries; what is fetched ``prefetch`` at each.

        The weights of every SHORT_SUM steps are added up by themselves: equal ones, such as those of scores that a mask
        makes 0, would else be rounded the same way each time.
        """
        statement, dtype = self.statement, self.context.index_type
        shifts = [self._points(code, s).value(statement.shift) for s in starts]
        sums = [self._register(code) for _ in starts]
        keys = static_count(statement.keys)
        steps = None if keys is None else keys // self.ways
        count = (
            code.let_index(iter_count(self.context, statement.keys), dtype) if steps is None else self._number(steps)
        )
        block, step = (tir.variable(code.fresh("keys"), dtype) for _ in range(2))
        outer = code.nested()
        partial = [[self._register(outer) for _ in starts] for _ in range(self.ways)]
        first = outer.let_index(tirx.Mul(block, self._number(SHORT_SUM)), dtype)
        inner = outer.nested()
        self._step(inner, starts, shifts, partial, inner.let_index(tirx.Add(first, step), dtype), prefetch)
        if steps is not None and steps % SHORT_SUM == 0:
            length = self._number(SHORT_SUM)
        else:
            length = outer.let_index(tirx.Min(self._number(SHORT_SUM), tirx.Sub(count, first)), dtype)
        outer.append(tir.loop(step, length, inner.statements, dtype=dtype))
        for into, *registers in zip(sums, *partial, strict=True):
            for register in registers:
                outer.append(tirx.BufferStore(into, outer.add(self._read(into), self._read(register)).node, [_ZERO]))
        blocks = tirx.truncdiv(tirx.Add(count, self._number(SHORT_SUM - 1)), self._number(SHORT_SUM))
        code.append(tir.loop(block, blocks, outer.statements, dtype=dtype))
        for start, register in zip(starts, sums, strict=True):
            points = self._points(code, start)
            row_sum = code.add(points.value(statement.row_sum), self._read(register))
            points.store_at(statement.row_sum.buffer, load_index(statement.row_sum), row_sum)

    def _step(
        self,
        code: Code,
        starts: Sequence[int],
        shifts: Sequence[Value],
        sums: Sequence[Sequence[Node]],
        step: Node,
        prefetch: Sequence[Load],
    ) -> None:
        """One key, or a pair of them: the weights stored, and added to the sums."""
        statement, dtype = self.statement, self.context.index_type
        powers: list[list[Value]] = []
        for way, registers in enumerate(sums):
            offset = tirx.Add(tirx.Mul(step, self._number(self.ways)), self._number(way))
            self.context.loops[statement.keys.var] = code.let_index(offset, dtype, statement.keys.var.name)
            powers.append([self._power(code, start, shift) for start, shift in zip(starts, shifts, strict=True)])
            for register, power in zip(registers, powers[-1], strict=True):
                code.append(tirx.BufferStore(register, code.add(self._read(register), power).node, [_ZERO]))
        if self.ways == 2:  # from the position of the pair's first key on
            self.context.loops[statement.keys.var] = code.let_index(tirx.Mul(step, self._number(2)), dtype)
        for start, *found in zip(starts, *powers, strict=True):
            self._store(code, start, found)
        for load in prefetch:
            code.append(tir.fetch(self.context.memory[load.buffer], self.context.index(load_index(load)), level=2))

    def _register(self, code: Code) -> Node:
        element = register_type(self.dtype)
        buffer, allocate = tir.registers(code.fresh("sum"), element, self.lanes)
        code.append(allocate, tirx.BufferStore(buffer, tir.constant(0, element, self.lanes).node, [_ZERO]))
        return buffer

    def _read(self, register: Node) -> Value:
        return Value(tirx.BufferLoad(register, [_ZERO]), register_type(self.dtype), self.lanes)

    def _power(self, code: Code, start: int, shift: Value) -> Value:
        """The weights of one key for one vector of queries."""
        points = self._points(code, start)
        score = tir.widen(coerce(code, points.value(self.statement.score), self.dtype), self.lanes)
        exponent = code.mul(code.sub(score, shift), code.constant(score, self.statement.factor))
        return math.weight(code, exponent, short=self.ways == 2)

    def _store(self, code: Code, start: int, powers: Sequence[Value]) -> None:
        if self.ways == 1:
            self._points(code, start).store_at(self.statement.weights.buffer, self.flat, powers[0])
            return
        first, second = (code.add(code.reinterpret(p, "int32"), tir.constant(_HALF, "int32")) for p in powers)
        low = code.bitwise("shift_right", code.reinterpret(first, "uint32"), tir.constant(16, "uint32"))
        high = code.bitwise("bitwise_and", code.reinterpret(second, "uint32"), tir.constant(_UPPER, "uint32"))
        pairs = code.reinterpret(code.bitwise("bitwise_or", low, high), "int32")
        at = self.context.index(indexing.substitute(self.flat, {self.statement.queries.var: start}))
        offset = tir.ramp(at, 2 * self.lanes, 1, self.context.index_type)
        node = tirx.reinterpret(f"uint16x{2 * self.lanes}", pairs.node)
        code.append(tirx.BufferStore(self.context.memory[self.statement.weights.buffer], node, [offset]))


_ZERO = tir.integer(0)
_HALF, _UPPER = 0x8000, 0xFFFF0000
"""Half of the last digit that bf16 keeps of a positive f32, which rounds it to nearest; and the bits that it keeps.

Of what is not a number, any bits will do: the sum, which divides the result, is none either."""
