# SPDX-License-Identifier: Apache-2.0
"""Scalar expressions at a block of lanes: every distinct subtree becomes one ``let``, every distinct load one load.

What does not depend on the lane is computed once, before the loop over the lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import frexp
from typing import assert_never

import numpy as np
from tvm import tirx

from fusec.codegen.tvm import operations, tir
from fusec.codegen.tvm.casts import cast, from_memory, memory_type, register_type, to_memory
from fusec.codegen.tvm.context import Context, Numbers, flat_index
from fusec.codegen.tvm.forms import is_one, is_small_index, plus_one, scaled
from fusec.codegen.tvm.gelu import gelu, gelu_operand
from fusec.codegen.tvm.lane_stores import LaneOffset, non_temporal_store
from fusec.codegen.tvm.math import short_erf_plus_one, short_tanh_plus_one, tanh_plus_one
from fusec.codegen.tvm.tir import Node, Value
from fusec.codegen.tvm.vector import Code, bits_of
from fusec.ir import index as ix
from fusec.ir import indexing
from fusec.ir.index import Expr, Index, Symbol
from fusec.ir.lane_patterns import LanePattern, lane_pattern
from fusec.tile.scalar import Apply, Buffer, Const, IndexValue, Load, ScalarExpr, Subscript

QUICK = {"f32": (2.0**-100, 2.0**100)}
"""Divisors whose reciprocals are multiplied with, by type."""

_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})


@dataclass(frozen=True, eq=False)
class LaneBlock:
    """Consecutive points of one iterator on the lanes of a vector.

    ``start`` is the iterator's value on the first lane, a multiple of ``lanes``. ``valid`` is how many lanes are points
    of the domain (None: all); memory is touched on those alone.
    """

    symbol: Symbol
    lanes: int
    start: Node
    valid: Node | None = None


_IN_STEP = ("add", "mul", "maximum", "minimum")
"""What several results of a lane compute step by step."""

_FEWEST_SHUFFLED = 4
"""Lanes from which on every other element is picked out of vectors, not loaded by itself."""


class Points:
    """Writes the value of scalar expressions at one block of lanes, or at a single point (``block`` None).

    ``outer`` writes what no lane changes; it is the point before the loop over lanes.
    """

    def __init__(self, context: Context, code: Code, numbers: Numbers, block: LaneBlock | None, outer: Points | None):
        self.context = context
        self.code = code
        self.numbers = numbers
        self.block = block
        self.outer = outer
        self._values: dict[int, Value] = {}
        self._varies: dict[int, bool] = outer._varies if outer is not None else {}
        self.staged: dict[int, Value] = {}
        """Loads already made, by number, as they lie in memory."""
        self.short: frozenset[int] = frozenset()
        """Values, by number, that need no more digits than bf16 has."""
        self.single: frozenset[int] = frozenset()
        """Values, by number, that one operation reads."""
        self.non_temporal = False
        """Whole vectors are stored past the caches, where the address allows it."""
        self._symbol_vector: Node | None = None
        self._guard: list[int] = outer._guard if outer is not None else [0]

    @property
    def lanes(self) -> int:
        return self.block.lanes if self.block is not None else 1

    def _mask(self, stored: str = "") -> Node:
        """The lanes inside the domain, to load elements or to store those of a type.

        Where LLVM 22 finds out that there is one, it stores all bits of a lane that was narrowed from 32 or 64.
        """
        assert self.block is not None
        valid = self.block.valid
        if stored and bits_of(stored) < (64 if "int" in stored else 32):
            valid = self.context.opaque(valid)
        return tir.first_lanes(valid, self.block.lanes, self.context.index_type)

    def value(self, e: ScalarExpr) -> Value:
        """The expression in a register: half types as f32, a bool as a condition."""
        number = self.numbers.number(e)
        if self.outer is not None and not self.varies(e):
            return self.outer.value(e)
        found = self._values.get(number)
        if found is None:
            found = self._values[number] = self._compute(e)
        return found

    def together(self, values: Sequence[ScalarExpr]) -> None:
        """Computes several values of one form, operand by operand, so that :meth:`value` has them."""
        heads = [v for v in values if isinstance(v, Apply) and v.op in _IN_STEP]
        if len(heads) == len(values) and len({h.op for h in heads}) == 1:
            for operands in zip(*(h.args for h in heads), strict=True):
                self.together(operands)
        for value in values:
            self.value(value)

    def varies(self, e: ScalarExpr) -> bool:
        """Whether the value depends on the lane."""
        if self.block is None:
            return False
        number = self.numbers.number(e)
        found = self._varies.get(number)
        if found is None:
            found = self._varies[number] = self._depends(e, self.block.symbol)
        return found

    def _depends(self, e: ScalarExpr, symbol: Symbol) -> bool:
        match e:
            case Const():
                return False
            case IndexValue():
                return symbol in ix.symbols_of(e.index)
            case Load():
                return any(self._subscript_depends(i, symbol) for i in e.index)
            case Apply():
                return any(self.varies(a) for a in e.args)
            case _:
                assert_never(e)

    def _subscript_depends(self, i: Subscript, symbol: Symbol) -> bool:
        if isinstance(i, int | Expr):
            return symbol in ix.symbols_of(i)
        return self.varies(i)

    def _compute(self, e: ScalarExpr) -> Value:
        match e:
            case Const():
                return _constant(e)
            case IndexValue():
                return self._index_value(e)
            case Load():
                return self._load(e)
            case Apply(op="cast"):
                return cast(self.code, self.value(e.args[0]), e.dtype)
            case Apply(op="select"):
                return self._select(e)
            case Apply(op="div") if e.dtype.name in QUICK and self._is_shared(e.args[1]) and self.varies(e.args[0]):
                return self._quotient(e)
            case Apply(op="div") if (reciprocal := self._reciprocal(e)) is not None:
                a, (below, rest) = self.value(e.args[0]), reciprocal
                return self.code.fma(a, self.code.constant(a, below), self.code.mul(a, self.code.constant(a, rest)))
            case Apply(op="add") if (function := plus_one(e)) is not None:
                return self._plus_one(e, function)
            case Apply(op="mul") if (parts := self._over_at_least_one(e)) is not None:
                return self.code.div(self.value(parts[0]), self.value(parts[1]))
            case Apply(op="mul") if (x := gelu_operand(e, self.numbers)) is not None:
                found = gelu(self.code, self.value(x))
                return found if found is not None else self._operation(e)
            case Apply():
                if e.op in _COMPARISONS and all(is_small_index(a) for a in e.args):
                    a, b = (self._index_operand(x) for x in e.args)
                    return self.code.settle(self.code.compare(e.op, a, b))
                return self._operation(e)
            case _:
                assert_never(e)

    def _operation(self, e: Apply) -> Value:
        return operations.apply(self.code, e, [self.value(a) for a in e.args])

    def _is_shared(self, e: ScalarExpr) -> bool:
        """Whether every lane has this value, and it is none that LLVM knows."""
        return self.outer is not None and not isinstance(e, Const) and not self.varies(e)

    def _quotient(self, e: Apply) -> Value:
        """``a / b`` for one ``b`` on all lanes: ``a*h + a*l``, where ``h + l`` is ``1/b`` to 46 bits.

        To 0.500001 units of the last digit, and exact where the quotient is a number of the type. ``l`` is above 0, so
        that an infinite ``a`` is no NaN. Where ``b`` is not one of the usual numbers, it is divided. On Intel's
        servers a division of 16 numbers takes 10 cycles, this takes 1.
        """
        assert self.outer is not None
        code, uniform, (low, high) = self.code, self.outer.code, QUICK[e.dtype.name]
        a, b = self.value(e.args[0]), self.outer.value(e.args[1])
        one = tir.constant(1.0, b.type)
        nearest = uniform.div(one, b)
        below = uniform.mul(nearest, tir.constant(1.0 - 2.0**-23, b.type))
        rest = uniform.mul(uniform.fma(uniform.neg(b), below, one), nearest)
        unusual = uniform.either(
            uniform.invert(uniform.compare("ge", b, tir.constant(low, b.type))),
            uniform.compare("gt", b, tir.constant(high, b.type)),
        )
        usual = code.fma(a, below, code.mul(a, rest))
        return code.replace_where(unusual, usual, lambda inner: inner.div(a, b))

    def _reciprocal(self, e: Apply) -> tuple[float, float] | None:
        """``h`` and ``l`` of :meth:`_quotient` where lanes are divided by a constant that has an inexact reciprocal."""
        by = e.args[1]
        if not (isinstance(by, Const) and isinstance(by.value, int | float) and e.dtype.name in QUICK):
            return None
        if not self.code.fused or self.outer is None or not self.varies(e.args[0]):
            return None
        b, (low, high) = float(np.float32(by.value)), QUICK[e.dtype.name]
        if not low <= b <= high or frexp(b)[0] == 0.5:
            return None
        below = float(np.float32(1.0 / b) * np.float32(1.0 - 2.0**-23))
        return below, float(np.float32((1.0 - b * below) / b))

    def _over_at_least_one(self, e: Apply) -> tuple[ScalarExpr, ScalarExpr] | None:
        """``x`` and ``1 + exp(y)`` of ``x * (1 / (1 + exp(y)))`` whose reciprocal nothing else needs.

        As the divisor is at least 1, one division gives infinities, zeros and NaN where the two operations do.
        """
        for x, quotient in (e.args, e.args[::-1]):
            if not (isinstance(quotient, Apply) and quotient.op == "div" and is_one(quotient.args[0])):
                continue
            below = quotient.args[1]
            if isinstance(below, Apply) and below.op == "add" and self.numbers.number(quotient) in self.single:
                for one, power in (below.args, below.args[::-1]):
                    if is_one(one) and isinstance(power, Apply) and power.op == "exp":
                        return x, below
        return None

    def _plus_one(self, e: Apply, function: Apply) -> Value:
        """tanh or erf and 1."""
        (x,) = function.args
        if self.numbers.number(e) in self.short:
            inner, factor = scaled(x)
            short = short_tanh_plus_one if function.op == "tanh" else short_erf_plus_one
            found = short(self.code, self.value(inner), factor)
            if found is not None:
                return found
        if function.op == "tanh":
            return tanh_plus_one(self.code, self.value(x))
        return operations.apply(self.code, e, [self.value(a) for a in e.args])

    def _select(self, e: Apply) -> Value:
        """Both sides are computed; loads that may lie outside their buffer are moved inside where not chosen."""
        test = self.value(e.args[0])
        self._guard[0] += 1
        chosen = [self.value(a) for a in e.args[1:]]
        self._guard[0] -= 1
        return self.code.select(test, chosen[0], chosen[1])

    def _index_operand(self, e: ScalarExpr) -> Value:
        if isinstance(e, Const):
            return Value(self.context.integer(int(e.value.real)), self.context.index_type)
        assert isinstance(e, IndexValue)
        return self._index(e.index)

    def _index_value(self, e: IndexValue) -> Value:
        if e.dtype.name == "bool":
            zero = tir.constant(0, self.context.index_type)
            return self.code.settle(self.code.compare("ne", self._index(e.index), zero))
        return cast(self.code, self._index(e.index), e.dtype)

    def _index(self, e: Index) -> Value:
        """An index expression on the lanes it varies over, bound."""
        if self.block is None or self.block.symbol not in ix.symbols_of(e):
            return self.code.let(Value(self.context.index(e), self.context.index_type), "i")
        pattern = self._pattern(e)
        if pattern is not None:
            first = tirx.Broadcast(self._first_of(pattern), self.lanes)
            steps = tir.join([Value(self.context.integer(n), self.context.index_type) for n in pattern.steps])
            node = tirx.Add(first, steps.node) if any(pattern.steps) else first
        else:
            node = self.context.index(e, {self.block.symbol: self._lane_numbers()}, self.lanes)
        return self.code.let(Value(node, self.context.index_type, self.lanes), "i")

    def _pattern(self, e: Index) -> LanePattern | None:
        """How an index that is no multiple of the iterator repeats along the lanes, where all of them are points."""
        block = self.block
        if block is None or block.valid is not None or block.symbol not in ix.symbols_of(e):
            return None
        if indexing.coefficient(e, block.symbol) is not None:
            return None
        return lane_pattern(e, block.symbol, block.lanes)

    def _first_of(self, pattern: LanePattern) -> Node:
        """A pattern's first index in this block."""
        assert self.block is not None
        number = tirx.truncdiv(self.block.start, self.context.integer(self.block.lanes))
        return self.context.index(pattern.first, {pattern.block: number})

    def _lane_numbers(self) -> Node:
        """The iterator's value on each lane; on lanes outside the domain, that of the last one inside."""
        if self._symbol_vector is None:
            block = self.block
            assert block is not None
            node = tir.ramp(block.start, block.lanes, dtype=self.context.index_type)
            if block.valid is not None:
                last = tirx.Add(block.start, tirx.Sub(block.valid, self.context.integer(1)))
                node = tirx.Min(node, tirx.Broadcast(last, block.lanes))
            bound = self.code.let(Value(node, self.context.index_type, block.lanes), "n")
            self._symbol_vector = bound.node
        return self._symbol_vector

    # memory

    def _load(self, e: Load) -> Value:
        return from_memory(self.code, self.code.let(self._bits(e), e.buffer.name), e.dtype)

    def _bits(self, e: Load) -> Value:
        """What memory holds."""
        return self.staged.get(self.numbers.number(e)) or self._load_raw(e)

    def fetch(self, load: Load) -> None:
        """Has the first lane's cache line brought to the cache, if the lanes are adjacent there."""
        offset = self.offset(load.buffer, load.index)
        if offset.unit:
            level = 2 if self.context.target.fetches_to_l2 else 1
            self.code.append(tir.fetch(self.context.memory[load.buffer], offset.node.base, level))

    def move(self, source: Load, target: Buffer, subscripts: tuple[Index, ...]) -> None:
        """Copies elements of one type as they are."""
        varies = self.outer is None or self.varies(source)
        raw = self._bits(source) if varies else self.outer._bits(source)  # type: ignore[union-attr]
        self._store_bits(target, flat_index(subscripts, target.strides), raw)

    def _load_raw(self, e: Load) -> Value:
        memory, element = self.context.memory[e.buffer], memory_type(e.dtype)
        if 0 in e.buffer.shape:
            return tir.constant(0, element)
        guarded = bool(self._guard[0])
        every_other = None if guarded else self._every_other(e)
        if every_other is not None:
            return self._deinterleaved(memory, element, every_other)
        if (repeated := self._repeated(e, guarded)) is not None:
            return self._spread(memory, element, repeated)
        offset = self.offset(e.buffer, e.index, guarded=guarded)
        if offset.unit and self.block is not None and self.block.valid is not None:
            node = tirx.op.masked_load(tir.vector_type(element, self.lanes), memory, offset.node, self._mask())
        else:
            node = tirx.BufferLoad(memory, [offset.node])
        return Value(node, element, offset.lanes)

    def _repeated(self, e: Load, guarded: bool) -> LanePattern | None:
        """The pattern of a load whose lanes share elements that lie side by side."""
        if guarded and not is_within(e):
            return None
        subscripts = [i for i in e.index if isinstance(i, int | Expr)]
        if len(subscripts) < len(e.index):
            return None
        pattern = self._pattern(flat_index(subscripts, e.buffer.strides))
        return pattern if pattern is not None and 0 < pattern.span < self.lanes else None

    def _spread(self, memory: Node, element: str, pattern: LanePattern) -> Value:
        """Elements that lie side by side, each on the lanes that read it."""
        first = self.code.let_index(self._first_of(pattern), self.context.index_type)
        node = tir.ramp(first, pattern.span, 1, self.context.index_type)
        read = self.code.let(Value(tirx.BufferLoad(memory, [node]), element, pattern.span))
        if pattern.span == 1:
            return tir.widen(read, self.lanes)
        return tir.pick(read, pattern.steps)

    def _every_other(self, e: Load) -> Node | None:
        """The first lane's offset, where lanes read every other element; else None."""
        block = self.block
        if block is None or block.lanes < _FEWEST_SHUFFLED or not all(isinstance(i, int | Expr) for i in e.index):
            return None
        flat = flat_index([i for i in e.index if isinstance(i, int | Expr)], e.buffer.strides)
        if indexing.coefficient(flat, block.symbol) != 2:
            return None
        return self.code.let_index(self.context.index(flat, {block.symbol: block.start}), self.context.index_type)

    def _deinterleaved(self, memory: Node, element: str, first: Node) -> Value:
        """Every other element from ``first`` on: two vectors, which end with the last one, and a shuffle."""
        assert self.block is not None
        lanes, valid, kind = self.lanes, self.block.valid, self.context.index_type
        behind = lanes - 1
        halves = []
        for start in (0, behind):
            node = tir.ramp(tirx.Add(first, self.context.integer(start)), lanes, 1, kind)
            if valid is None:
                halves.append(Value(tirx.BufferLoad(memory, [node]), element, lanes))
                continue
            count = tirx.Sub(tirx.Mul(valid, self.context.integer(2)), self.context.integer(1 + start))
            mask = tir.first_lanes(count, lanes, kind)
            halves.append(
                Value(tirx.op.masked_load(tir.vector_type(element, lanes), memory, node, mask), element, lanes)
            )
        low, high = (self.code.let(half) for half in halves)
        picks = [2 * k if 2 * k < lanes else lanes + 2 * k - behind for k in range(lanes)]
        return tir.shuffle(low, high, picks)

    def _same_everywhere(self, i: Index, like: Value) -> Value:
        """An integer or an expression of the kernel's sizes, on the lanes and of the type of an index."""
        if isinstance(i, int):
            return tir.constant(i, like.type, like.lanes)
        return tir.widen(Value(self.context.index(i), like.type), like.lanes)

    def _subscript(self, i: Subscript) -> Value:
        if isinstance(i, int | Expr):
            return self._index(i)
        return self.code.convert(self.value(i), self.context.index_type)

    def offset(self, buffer: Buffer, subscripts: tuple[Subscript, ...], *, guarded: bool = False) -> LaneOffset:
        """Where in the flat buffer the lanes lie.

        ``guarded``: subscripts that may be outside of the buffer are moved into it. Those that are inside anyway stay
        as they are, so that lanes along them are still neighbours.
        """
        affine: Index = 0
        gathered: Value | None = None
        for i, extent, stride in zip(subscripts, buffer.shape, buffer.strides, strict=True):
            moved = guarded and not _is_inside(i, extent)
            if isinstance(i, int | Expr):
                i = ix.maximum(ix.minimum(i, ix.sub(extent, 1)), 0) if moved else i
                affine = ix.add(affine, ix.mul(i, stride))
                continue
            loaded = self._subscript(i)
            if moved:
                loaded = self.code.greater(loaded, tir.constant(0, loaded.type, loaded.lanes))
                loaded = self.code.lesser(loaded, self._same_everywhere(ix.sub(extent, 1), loaded))
            part = self.code.mul(loaded, self._same_everywhere(stride, loaded))
            gathered = part if gathered is None else self.code.add(gathered, part)
        if gathered is None:
            return self._affine_offset(affine)
        block = self.block
        if gathered.lanes == 1 and block is not None and indexing.coefficient(affine, block.symbol) == 1:
            first = tirx.Add(gathered.node, self.context.index(affine, {block.symbol: block.start}))
            return LaneOffset(tir.ramp(first, block.lanes, 1, self.context.index_type), block.lanes, block.lanes > 1)
        total = self.code.add(gathered, self._index(affine))
        return LaneOffset(total.node, total.lanes, False)

    def _affine_offset(self, flat: Index) -> LaneOffset:
        block = self.block
        if block is None or block.symbol not in ix.symbols_of(flat):
            return LaneOffset(self.context.index(flat), 1, False)
        step = indexing.coefficient(flat, block.symbol)
        if step is None:
            return LaneOffset(self._index(flat).node, block.lanes, False)
        first = self.context.index(flat, {block.symbol: block.start})
        if step == 1:
            return LaneOffset(tir.ramp(first, block.lanes, 1, self.context.index_type), block.lanes, block.lanes > 1)
        if block.valid is None:
            first = self.code.let_index(first, self.context.index_type)
            return LaneOffset(tir.ramp(first, block.lanes, step, self.context.index_type), block.lanes, False)
        return LaneOffset(self._index(flat).node, block.lanes, False)

    def store(self, buffer: Buffer, subscripts: tuple[Index, ...], value: Value) -> None:
        """Writes the lanes inside the domain; the value is rounded to the buffer's dtype."""
        self.store_at(buffer, flat_index(subscripts, buffer.strides), value)

    def store_at(self, buffer: Buffer, flat: Index, value: Value) -> None:
        self._store_bits(buffer, flat, to_memory(self.code, value, buffer.dtype))

    def _store_bits(self, buffer: Buffer, flat: Index, value: Value) -> None:
        memory = self.context.memory[buffer]
        raw = tir.widen(value, self.lanes)
        offset = self._affine_offset(flat)
        block = self.block
        if block is None or offset.lanes == 1 or block.valid is None:
            assert offset.lanes == raw.lanes, "a store whose index does not use the lanes"
            store = non_temporal_store(self.context, memory, offset, raw) if self.non_temporal and offset.unit else None
            self.code.append(store or tirx.BufferStore(memory, raw.node, [offset.node]))
        elif offset.unit:
            self.code.append(tirx.Evaluate(tirx.op.masked_store(memory, raw.node, offset.node, self._mask(raw.type))))
        else:
            self._store_lanes(memory, raw, Value(offset.node, self.context.index_type, self.lanes))

    def _store_lanes(self, memory: Node, raw: Value, offset: Value) -> None:
        assert self.block is not None
        raw = self.code.let(raw)
        for i in range(self.lanes):
            store = tirx.BufferStore(memory, tir.lane(raw, i).node, [tir.lane(offset, i).node])
            self.code.append(tir.when(tirx.LT(self.context.integer(i), self.block.valid), [store]))


def _constant(e: Const) -> Value:
    if e.dtype.name == "bool":
        return tir.condition(bool(e.value))
    assert not isinstance(e.value, complex)
    return tir.constant(e.dtype.rounded(e.value) if e.dtype.is_float else e.value, register_type(e.dtype))


def is_within(e: Load) -> bool:
    """Whether every subscript is provably inside the buffer."""
    return all(_is_inside(i, extent) for i, extent in zip(e.index, e.buffer.shape, strict=True))


def _is_inside(i: Subscript, extent: Index) -> bool:
    return isinstance(i, int | Expr) and ix.is_at_least(i, 0) and ix.is_below(i, extent)
