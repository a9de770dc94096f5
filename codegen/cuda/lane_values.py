# SPDX-License-Identifier: Apache-2.0
"""What a thread reads of neighbours along an axis at once, and expressions at each of those lanes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import gcd

from fusec.errors import LoweringError
from fusec.ir.index import Expr, Index, Symbol, add, mul, symbol, symbols_of
from fusec.ir.indexing import substitute
from fusec.ir.lane_patterns import LanePattern, lane_pattern
from fusec.ir.stepping import step_of
from fusec.ir.types import bool_
from fusec.tile.scalar import Apply, Buffer, Const, IndexValue, Load, ScalarExpr, loads, offset_of, walk

WORD = 4
"""Bytes."""
_WIDEST = 16
_COMPARED = {
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
}


Condition = tuple[ScalarExpr, bool]


@dataclass
class Member:
    """Elements of one buffer that lie side by side, from ``first`` on: words of a thread's. ``buffer`` stands for them.

    low, high: of the elements that are read, counted from ``first``. when: a condition for reading them, and whether it
    is to hold.
    """

    source: Buffer
    first: Index
    buffer: Buffer
    low: int = 0
    high: int = 0
    when: Condition | None = None

    @property
    def count(self) -> int:
        return self.high - self.low + 1

    @property
    def words(self) -> int:
        """That hold the elements."""
        return -(-self.count * self.source.dtype.itemsize // WORD)

    @cached_property
    def width(self) -> int:
        """Bytes that can be read at once where the source starts at a multiple of 16."""
        item = self.source.dtype.itemsize
        start = add(self.first, self.low)
        step = step_of(start, symbol("no such lane"), 1)
        multiple = step.multiple if step is not None else 1
        return gcd(_WIDEST, multiple * item, self.count * item)


@dataclass
class LaneValues:
    """Expressions over ``axis`` on the lanes of a whole block of it, whose number is ``block``.

    Loads become loads of members, those of constant subscripts; conditions that the lane decides are gone.
    """

    axis: Symbol
    lanes: int
    members: list[Member] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._known: dict[tuple[Buffer, Index], Member] = {}
        self._patterns: dict[Index, LanePattern | None] = {}
        self._settled = False
        high = self.axis.hi
        if not isinstance(high, int):
            raise LoweringError("lanes along an axis of symbolic extent")
        self.block = symbol("block", 0, high // self.lanes)

    def at(self, e: ScalarExpr, lane: int) -> ScalarExpr:
        """The expression at one lane."""
        return _OneLane(self, lane).visit(e, None)

    def pattern(self, index: Index) -> LanePattern | None:
        """How an index goes along the lanes."""
        if index not in self._patterns:
            self._patterns[index] = lane_pattern(index, self.axis, self.lanes)
        return self._patterns[index]

    def index(self, index: Index, lane: int) -> Index:
        """An index at one lane."""
        pattern = self.pattern(index)
        if pattern is not None:
            return add(substitute(pattern.first, {pattern.block: self.block}), pattern.steps[lane])
        return substitute(index, {self.axis: add(mul(self.block, self.lanes), lane)})

    def element(self, load: Load, lane: int, when: Condition | None) -> Load:
        """A load of a member in the place of one of memory, which is needed where the condition holds."""
        flat = offset_of(load.buffer, load.index)
        if load.buffer.space != "parameter" or flat is None:
            raise LoweringError(f"tile {load.buffer} in a matmul's operand")
        pattern = self.pattern(flat)
        first: Index
        if pattern is None or pattern.span == 0:
            first, step = self.index(flat, lane), 0
        else:
            first, step = substitute(pattern.first, {pattern.block: self.block}), pattern.steps[lane]
        key = load.buffer, first
        if key not in self._known:
            name = f"{load.buffer.name}_{len(self.members)}"
            member = Member(load.buffer, first, Buffer(name, load.dtype, (1 << 16,), (1,), "tile"), step, step, when)
            self._known[key] = member
            self.members.append(member)
        member = self._known[key]
        if self._settled:
            return Load(member.buffer, (step - member.low,))
        member.when = when if member.when == when else None
        member.low, member.high = min(member.low, step), max(member.high, step)
        return Load(member.buffer, (step,))

    def settle(self) -> None:
        """All elements that are read are known: from now on loads are counted from a member's first."""
        self._settled = True

    def stays(self, member: Member) -> bool:
        """Whether what is read is the same for all blocks."""
        return self.block not in symbols_of(member.first)


class _OneLane:
    """Rewrites an expression for one lane."""

    def __init__(self, values: LaneValues, lane: int) -> None:
        self.values, self.lane = values, lane
        self.done: dict[tuple[int, Condition | None], ScalarExpr] = {}

    def visit(self, e: ScalarExpr, when: Condition | None) -> ScalarExpr:
        key = id(e), when
        if key not in self.done:
            self.done[key] = self._rewritten(e, when)
        return self.done[key]

    def _rewritten(self, e: ScalarExpr, when: Condition | None) -> ScalarExpr:
        match e:
            case Const():
                return e
            case IndexValue():
                index = self.values.index(e.index, self.lane)
                return Const(index, e.dtype) if isinstance(index, int) else IndexValue(index, e.dtype)
            case Load() if e.gathers:
                subscripts = (
                    self.values.index(i, self.lane) if isinstance(i, int | Expr) else self.visit(i, when)
                    for i in e.index
                )
                return Load(e.buffer, tuple(subscripts))
            case Load():
                return self.values.element(e, self.lane, when)
            case Apply(op="select"):
                return self._chosen(e, when)
            case Apply("lt", (IndexValue(index) as of, Const() as end)) if index is self.values.axis:
                blocks, rest = divmod(int(end.value.real), self.values.lanes)
                if rest == 0:  # all lanes of a block lie on one side
                    return Apply("lt", (IndexValue(self.values.block, of.dtype), Const(blocks, end.dtype)), e.dtype)
        assert isinstance(e, Apply)
        return folded(Apply(e.op, tuple(self.visit(a, when) for a in e.args), e.dtype))

    def _chosen(self, e: Apply, when: Condition | None) -> ScalarExpr:
        condition = self.visit(e.args[0], when)
        if isinstance(condition, Const):
            return self.visit(e.args[1 if condition.value else 2], when)
        told = loads(condition) or when is not None
        a, b = (self.visit(x, when if told else (condition, holds)) for x, holds in zip(e.args[1:], (True, False)))
        return Apply(e.op, (condition, a, b), e.dtype)


def folded(e: Apply) -> ScalarExpr:
    """A comparison of numbers, or what follows from one, as a number."""
    values = [a.value for a in e.args if isinstance(a, Const)]
    if len(values) < len(e.args):
        return e
    if e.op in _COMPARED and not any(isinstance(v, complex) for v in values):
        return Const(_COMPARED[e.op](*values), bool_)
    if e.dtype is bool_ and e.op in ("logical_and", "bitwise_and"):
        return Const(all(values), bool_)
    if e.dtype is bool_ and e.op in ("logical_or", "bitwise_or"):
        return Const(any(values), bool_)
    if e.dtype is bool_ and e.op in ("logical_not", "bitwise_not"):
        return Const(not values[0], bool_)
    return e


def gathered(values: Sequence[ScalarExpr]) -> list[Buffer]:
    """Buffers that are read at loaded subscripts alone."""
    found = [n for e in values for n in walk(e) if isinstance(n, Load) and n.gathers]
    return list(dict.fromkeys(n.buffer for n in found if all(not isinstance(i, int | Expr) or i == 0 for i in n.index)))
