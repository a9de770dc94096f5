# SPDX-License-Identifier: Apache-2.0
"""Scans: the axis on vector lanes, each vector scanned in log2(lanes) steps; or one of the loops around the lanes."""

from __future__ import annotations

from dataclasses import replace

from tvm import tirx

from fusec.codegen.tvm import tir
from fusec.codegen.tvm.accumulators import Monoid, Registers
from fusec.codegen.tvm.context import Context, Numbers
from fusec.codegen.tvm.domain import coerce, iter_count, lane_count, lane_loop, outer_loops, split_lanes
from fusec.codegen.tvm.math import exp, log
from fusec.codegen.tvm.scalars import LaneBlock, Points
from fusec.codegen.tvm.tir import Node, Value
from fusec.codegen.tvm.vector import Code
from fusec.ir import index as ix
from fusec.ir.index import Expr, Index
from fusec.ir.indexing import substitute
from fusec.tile.nodes import Scan
from fusec.tile.scalar import IndexValue, Subscript, reindex


def emit_scan(context: Context, code: Code, numbers: Numbers, statement: Scan) -> None:
    """The statement's loops."""
    if statement.along is statement.domain[-1].var:
        writer = (_LogAlong if statement.op == "logaddexp" else _Along)(context, numbers, statement)
        outer_loops(context, code, statement.domain[:-1], writer.write)
    else:
        _across(context, code, numbers, _upward(statement))


def _across(context: Context, code: Code, numbers: Numbers, statement: Scan) -> None:
    """The lanes of one position after those of the one before, which the carry holds."""
    monoid, carry = Monoid(statement.op, statement.carry.dtype), statement.carry
    last = statement.domain[-1]
    lanes = lane_count(context, last, (*statement.values, carry), carry.dtype)

    def body(points: Points) -> None:
        value = coerce(points.code, points.value(statement.value), carry.dtype)
        total = monoid.combine(points.code, value, _before(points, statement))
        points.store(carry.buffer, tuple(map(_plain, carry.index)), total)
        points.store(statement.target, statement.index, coerce(points.code, total, statement.target.dtype))

    along = next(it for it in statement.domain if it.var is statement.along)
    others = [it for it in statement.domain[:-1] if it is not along]
    outer_loops(context, code, [*others, along], lambda c: lane_loop(context, c, numbers, last, lanes, body))


def _before(points: Points, statement: Scan) -> Value:
    """What came before a point, as it counts there."""
    carry = points.value(statement.carry)
    if statement.factor is None:
        return carry
    factor = coerce(points.code, points.value(statement.factor), statement.carry.dtype)
    return points.code.mul(factor, carry)


def _upward(statement: Scan) -> Scan:
    """The statement from the first position on."""
    if not statement.reverse:
        return statement
    along = next(it for it in statement.domain if it.var is statement.along)
    count = along.extent if along.limit is None else ix.minimum(along.extent, along.limit)
    down: dict[ix.Symbol, Index] = {along.var: ix.sub(ix.sub(count, 1), along.var)}
    index = tuple(substitute(i, down) for i in statement.index)
    factor = None if statement.factor is None else reindex(statement.factor, down)
    return replace(statement, index=index, value=reindex(statement.value, down), factor=factor, reverse=False)


def _plain(i: Subscript) -> Index:
    assert isinstance(i, int | Expr)
    return i


class _Along:
    """Writes the scan of one row, whose neighbours lie on the lanes."""

    def __init__(self, context: Context, numbers: Numbers, statement: Scan) -> None:
        self.context, self.numbers, self.statement = context, numbers, statement
        self.monoid = Monoid(statement.op, statement.carry.dtype)
        self.last = statement.domain[-1]
        values = (statement.value, statement.carry, *(IndexValue(i) for i in statement.index))
        in_order = statement.factor is not None
        self.lanes = 1 if in_order else lane_count(context, self.last, values, statement.carry.dtype)

    def write(self, code: Code) -> None:
        if self.lanes == 1:
            self._one_by_one(code)
            return
        carry = self.statement.carry
        at_carry = tuple(map(_plain, carry.index))
        totals = self._start(code, Points(self.context, code, self.numbers, None, None).value(carry))
        split = split_lanes(self.context, code, self.last, self.lanes)
        uniform = Points(self.context, code, self.numbers, None, None)
        if self.statement.reverse:
            self._rest(code, totals, split.full, split.rest)
            self._whole(code, totals, split.full, uniform)
        else:
            self._whole(code, totals, split.full, uniform)
            self._rest(code, totals, split.full, split.rest)
        after = Points(self.context, code, self.numbers, None, None)
        after.store(carry.buffer, at_carry, self._end(code, totals))

    def _start(self, code: Code, carry: Value) -> Registers:
        """What is known of all before, on every lane."""
        totals = Registers(code, self.monoid, self.lanes, 1)
        totals.write(code, 0, carry)
        return totals

    def _end(self, code: Code, totals: Registers) -> Value:
        return code.let(tir.lane(code.let(totals.read(0)), 0))

    def _whole(self, code: Code, totals: Registers, full: int | Node, uniform: Points) -> None:
        if isinstance(full, int) and full == 0:
            return
        dtype = self.context.index_type
        count = self.context.integer(full)
        counter = tir.variable(code.fresh(self.last.var.name), dtype)
        number = counter
        if self.statement.reverse:
            number = tirx.Sub(tirx.Sub(count, self.context.integer(1)), counter)
        inner = code.nested()
        start = inner.let_index(tirx.Mul(number, self.context.integer(self.lanes)), dtype)
        block = LaneBlock(self.last.var, self.lanes, start)
        self._block(inner, totals, Points(self.context, inner, self.numbers, block, uniform))
        code.append(tir.loop(counter, count, inner.statements, dtype=dtype))

    def _rest(self, code: Code, totals: Registers, full: int | Node, rest: int | Node) -> None:
        if isinstance(rest, int) and rest == 0:
            return
        inner, dtype = code.nested(), self.context.index_type
        lanes, valid = self.context.integer(self.lanes), self.context.integer(rest)
        start = inner.let_index(tirx.Mul(self.context.integer(full), lanes), dtype)
        block = LaneBlock(self.last.var, self.lanes, start, valid)
        self._block(inner, totals, Points(self.context, inner, self.numbers, block, None))
        if isinstance(rest, int):
            code.append(*inner.statements)
        else:
            code.append(tir.when(tirx.GT(rest, self.context.integer(0)), inner.statements))

    def _block(self, code: Code, totals: Registers, points: Points) -> None:
        assert points.block is not None
        value = tir.widen(coerce(code, points.value(self.statement.value), self.monoid.dtype), self.lanes)
        if points.block.valid is not None:
            live = tir.first_lanes(points.block.valid, self.lanes, self.context.index_type)
            value = code.select(tir.Value(live, "bool", self.lanes), value, self.monoid.identity(self.lanes))
        found = self._found(code, totals, value)
        points.store(self.statement.target, self.statement.index, coerce(code, found, self.statement.target.dtype))

    def _found(self, code: Code, totals: Registers, value: Value) -> Value:
        """The results of a vector; the totals are those of all up to it from now on."""
        value = self._prefixes(code, self.monoid, value)
        old = code.let(totals.read(0), "old")
        totals.write(code, 0, self.monoid.combine(code, self._last(code, value), old))
        return self.monoid.combine(code, value, old)

    def _last(self, code: Code, value: Value) -> Value:
        """The lane that comes last, on every lane."""
        last = 0 if self.statement.reverse else self.lanes - 1
        return code.let(tir.shuffle(value, value, [last] * self.lanes))

    def _moved(self, code: Code, value: Value, step: int, before: Value) -> Value:
        """On each lane that which is so many lanes before it (behind it, for a reverse scan); at first ``before``."""
        if self.statement.reverse:
            picks = [i + step if i + step < self.lanes else self.lanes + i for i in range(self.lanes)]
        else:
            picks = [i - step if i >= step else self.lanes + i for i in range(self.lanes)]
        return code.let(tir.shuffle(value, before, picks))

    def _prefixes(self, code: Code, monoid: Monoid, value: Value) -> Value:
        """Each lane combined with all before it (behind it, for a reverse scan)."""
        is_sum = monoid.op == "sum" and monoid.dtype.kind == "float"  # to which 0 adds nothing but to -0.0
        nothing = tir.constant(-0.0, monoid.type, self.lanes) if is_sum else monoid.identity(self.lanes)
        step = 1
        while step < self.lanes:
            value = monoid.combine(code, value, self._moved(code, value, step, nothing))
            step *= 2
        return value

    def _one_by_one(self, code: Code) -> None:
        """A row of one element, on vectors of one lane, or in order."""
        statement = _upward(self.statement)
        dtype = self.context.index_type
        counter = tir.variable(code.fresh(self.last.var.name), dtype)
        inner = code.nested()
        self.context.loops[self.last.var] = counter
        points = Points(self.context, inner, self.numbers, None, None)
        value = coerce(inner, points.value(statement.value), statement.carry.dtype)
        total = self.monoid.combine(inner, value, _before(points, statement))
        points.store(statement.carry.buffer, tuple(map(_plain, statement.carry.index)), total)
        points.store(statement.target, statement.index, coerce(inner, total, statement.target.dtype))
        code.append(tir.loop(counter, iter_count(self.context, self.last), inner.statements, dtype=dtype))


class _LogAlong(_Along):
    """A running log-sum-exp: the largest so far, and the sum of exponentials of what is below it.

    A sum that is relative to the largest so far, ``s = a*s + b``, takes ``a = exp(largest before - largest)`` and
    ``b = exp(x - largest)``: two exponentials and a logarithm a vector, where combining results takes one of each for
    each step of a scan.
    """

    def _start(self, code: Code, carry: Value) -> Registers:
        totals = Registers(code, self.monoid, self.lanes, 2)
        totals.write(code, 0, carry)
        totals.write(code, 1, tir.constant(1.0, carry.type))
        return totals

    def _end(self, code: Code, totals: Registers) -> Value:
        largest, total = (code.let(tir.lane(code.let(totals.read(i)), 0)) for i in (0, 1))
        return code.add(largest, log(code, total))

    def _found(self, code: Code, totals: Registers, value: Value) -> Value:
        before, total = (code.let(totals.read(i), "old") for i in (0, 1))
        extreme = Monoid("max", self.monoid.dtype)
        largest = extreme.combine(code, self._prefixes(code, extreme, value), before)
        factor = _below(code, self._moved(code, largest, 1, before), largest)
        term, step = _below(code, value, largest), 1
        one, zero = code.constant(value, 1.0), code.constant(value, 0.0)
        while step < self.lanes:
            term = code.fma(factor, self._moved(code, term, step, zero), term)
            factor = code.mul(factor, self._moved(code, factor, step, one))
            step *= 2
        term = code.fma(factor, total, term)
        totals.write(code, 0, self._last(code, largest))
        totals.write(code, 1, self._last(code, term))
        return code.add(largest, log(code, term))


def _below(code: Code, x: Value, largest: Value) -> Value:
    """``exp(x - largest)``: 1 where they are equal, infinite ones too."""
    apart = code.select(code.compare("eq", x, largest), code.constant(x, 0.0), code.sub(x, largest))
    return exp(code, apart)
