# SPDX-License-Identifier: Apache-2.0
"""Indices are checked where nothing proves them in range: a kernel would read, or write, foreign memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import trunc

from fusec.errors import LoweringError
from fusec.ir.attributes import (
    ArgReduceAttributes,
    ConstantAttributes,
    ExternAttributes,
    GatherAttributes,
    IotaAttributes,
    UpdateAttributes,
)
from fusec.ir.graph import Graph, made_from
from fusec.ir.indexing import most
from fusec.ir.interval import bits, closed
from fusec.ir.monoid import highest, lowest
from fusec.ir.nodes import Op, Value
from fusec.ir.ops import OPS
from fusec.ir.raising import is_lookup
from fusec.ir.types import DType, bool_
from fusec.passes.float_ranges import Interval, float_range
from fusec.passes.written_indices import raises_beside_other_writes, written_indices
from fusec.runtime.library import CHECK_INDEX, parse_arguments

Range = tuple[int, int]
"""Inclusive bounds."""


@dataclass(frozen=True)
class Check:
    """Every element of ``value`` must lie in ``[low, high]``."""

    value: Value
    low: int
    high: int


def note_indices(graph: Graph) -> Graph:
    """Checks each index that may be out of range, whether what it finds is needed or not: what it finds may be dropped
    by the passes that follow, its error not. :func:`check_indices` makes one check of several. LoweringError where
    such an index is data and reaches into an axis of symbolic extent.

    The positions of a library call are checked where it may raise when an input is written and another not yet."""
    facts = _Facts(graph)
    wanted: dict[Value, dict[tuple[int, int], Op]] = {}
    if raises_beside_other_writes(graph):
        for op in graph.ops:
            for value, low, high in written_indices(op):
                for check in facts.checks(value, low, high):
                    wanted.setdefault(check.value, {}).setdefault((check.low, check.high), op)
    for op in graph.ops:
        if not is_lookup(op) or op.operands[1].type.device != "cpu":
            continue
        for index, extent in _indices(op, symbolic=facts.is_data(op.operands[1])):
            for check in facts.checks(index, 0, extent - 1):
                wanted.setdefault(check.value, {}).setdefault((check.low, check.high), op)
    if not wanted:
        return graph
    taken = {v.name for v in graph.inputs} | {r.name for op in graph.ops for r in op.results}
    ops: list[Op] = []
    for value in graph.inputs:
        ops += [_call(value, ends, op, taken) for ends, op in wanted.get(value, {}).items()]
    for made in graph.ops:
        ops.append(made)
        ops += [_call(v, ends, op, taken) for v in made.results for ends, op in wanted.get(v, {}).items()]
    return graph.with_ops(ops)


def check_indices(graph: Graph) -> Graph:
    """Puts a call before each op that may reach out of range; it gives back its operand, or raises IndexError.

    The call is on what the index is made of, as far as the arithmetic around it can be followed: of
    ``i + n where i < 0 else i`` it is ``i`` that is checked, to lie in ``[-n, n - 1]``.
    """
    facts = _Facts(graph)
    wanted: dict[Value, dict[tuple[int, int], Op]] = {}
    noted = [op for op in graph.ops if is_check(op)]
    for op in noted:
        low, high = _ends(op)
        for check in facts.checks(op.operands[0], low, high):
            wanted.setdefault(check.value, {}).setdefault((check.low, check.high), op)
    graph = graph.with_ops(op for op in graph.ops if not is_check(op)) if noted else graph
    for op in graph.ops:
        if not op.operands or op.operands[0].type.device != "cpu":
            continue  # nothing waits for a GPU's answer: kernels leave out writes that are out of range
        for index, extent in _indices(op):
            for check in facts.checks(index, 0, extent - 1):
                wanted.setdefault(check.value, {}).setdefault((check.low, check.high), op)
    return _with_calls(graph, wanted) if wanted else graph


def is_check(op: Op) -> bool:
    """True for a call that gives back its operand or raises."""
    return isinstance(op.attributes, ExternAttributes) and op.attributes.target == CHECK_INDEX


def _ends(check: Op) -> tuple[int, int]:
    (_, low, high), _ = parse_arguments(check.expect(ExternAttributes).arguments)
    return int(low), int(high)


def _call(value: Value, ends: tuple[int, int], op: Op, taken: set[str]) -> Op:
    """The check of a value, for an op."""
    name = f"{value.name}_checked"
    while name in taken:
        name += "_again"
    taken.add(name)
    text = f"(($0, {ends[0]}, {ends[1]}), {{}})"
    attributes = ExternAttributes(CHECK_INDEX, text, (value.type,), "an index out of range is an error")
    return Op(OPS["extern"], (value,), attributes, (Value(value.type, name),), op.location)


def _indices(op: Op, symbolic: bool = True) -> Iterator[tuple[Value, int]]:
    """The indices that an op reads or writes by, each with the extent of the axis it is for; LoweringError for one
    that is symbolic, or without ``symbolic`` nothing."""
    match op.attributes:
        case GatherAttributes(axis=axis) if not symbolic and not isinstance(op.operands[0].type.shape[axis], int):
            return
        case GatherAttributes(axis=axis) if 0 not in op.result.type.shape:
            yield op.operands[1], _extent(op.operands[0], axis, op)
        case UpdateAttributes(axes=axes):
            for axis, positions in zip(axes, op.operands[2:], strict=True):
                yield positions, _extent(op.operands[0], axis, op)


def _extent(source: Value, axis: int, op: Op) -> int:
    extent = source.type.shape[axis]
    if not isinstance(extent, int):
        raise LoweringError(f"{op.name} reaches into an axis of symbolic extent {extent}", op.location)
    return extent


def _with_calls(graph: Graph, wanted: dict[Value, dict[tuple[int, int], Op]]) -> Graph:
    taken = {v.name for v in graph.inputs} | {r.name for op in graph.ops for r in op.results}
    ops: list[Op] = []
    checked: dict[Value, Value] = {}

    def call(value: Value) -> None:
        for ends, op in wanted.get(value, {}).items():
            made = _call(checked.get(value, value), ends, op, taken)
            checked[value] = made.result
            ops.append(made)

    for value in graph.inputs:
        call(value)
    for op in graph.ops:
        operands = tuple(checked.get(v, v) for v in op.operands)
        ops.append(op if operands == op.operands else replace(op, operands=operands))
        for result in op.results:
            call(result)
    return graph.with_ops(ops)


@dataclass
class _Facts:
    """What is known of a graph's integers."""

    graph: Graph
    producers: dict[Value, Op] = field(init=False)
    ranges: dict[Value, Range] = field(default_factory=dict)
    floats: dict[Value, Interval] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.producers = self.graph.producers()
        for op in self.graph.ops:
            if len(op.results) == 1 and (found := float_range(op, [self._interval(v) for v in op.operands])):
                self.floats[op.result] = found
            for result in op.results:
                if result.type.dtype.is_integer or result.type.dtype == bool_:
                    self.ranges[result] = _within(result.type.dtype, self._range(op))

    def range(self, value: Value) -> Range:
        return self.ranges.get(value) or _of_dtype(value.type.dtype)

    def _interval(self, value: Value) -> Interval | None:
        """The bounds of a value as a float; None where none are known but its dtype's."""
        known = self.ranges.get(value)
        return (float(known[0]), float(known[1])) if known is not None else self.floats.get(value)

    def is_data(self, value: Value) -> bool:
        """Whether a value is made of an input's elements, and not of positions and constants alone."""
        made = made_from(self.producers.get, [value])
        return any(op is None or isinstance(op.attributes, ExternAttributes) for _, op in made)

    def _range(self, op: Op) -> Range | None:
        of = [self.range(v) for v in op.operands if v.type.dtype.is_integer or v.type.dtype == bool_]
        match op.name:
            case "constant":
                number = int(op.expect(ConstantAttributes).value.real)
                return number, number
            case "iota":
                return 0, max(most(op.result.type.shape[op.expect(IotaAttributes).axis]) - 1, 0)
            case "argmax" | "argmin":
                return 0, max(most(op.operands[0].type.shape[op.expect(ArgReduceAttributes).axis]) - 1, 0)
            case "remainder" if of[1][0] > 0:
                return 0, of[1][1] - 1
            case "floordiv" if of[1][0] > 0 and of[0][0] >= 0:
                return of[0][0] // of[1][1], of[0][1] // of[1][0]
            case "select":
                return min(of[1][0], of[2][0]), max(of[1][1], of[2][1])
            case "concat":
                return min(r[0] for r in of), max(r[1] for r in of)
            case "pad":
                return min(of[0][0], of[1][0]), max(of[0][1], of[1][1])
            case "cast" if op.operands[0] in self.floats and op.result.type.dtype.is_integer:
                low, high = self.floats[op.operands[0]]
                return trunc(low), trunc(high)
            case "cast" | "copy" | "reduce_max" | "reduce_min" | "gather" | "gather_elements" if of:
                return of[0]
            case _ if op.definition.kind == "view":
                return of[0]
            case "bitwise_and" | "bitwise_or" | "bitwise_xor" | "shift_right" if len(of) == 2:
                return bits(op.name, *of)
            case name:
                return closed(name, of)

    def checks(self, value: Value, low: int, high: int) -> list[Check]:
        """What must hold of values in memory for every element of ``value`` to lie in ``[low, high]``."""
        least, greatest = self.range(value)
        if low <= least and greatest <= high:
            return []
        op = self.producers.get(value)
        match op.name if op is not None else "":
            case "copy" | "reshape" | "permute" | "broadcast":
                assert op is not None
                return self.checks(op.operands[0], low, high)
            case "cast" if op is not None and op.operands[0].type.dtype.is_integer and _widens(op):
                return self.checks(op.operands[0], low, high)
            case "select" if op is not None and low == 0 and self._is_wrapped(op, high + 1):
                return self.checks(op.operands[2], -high - 1, high)
            case "add" if op is not None and low == 0 and (parts := self._joined(op, high + 1)) is not None:
                return [check for part in parts for check in self.checks(part.value, part.low, part.high)]
            case _:
                return [Check(value, low, high)]

    def _is_wrapped(self, op: Op | None, extent: int) -> bool:
        """``select(i < 0, i + n, i)``."""
        if op is None or op.name != "select":
            return False
        condition, moved, index = op.operands
        less, plus = self.producers.get(condition), self.producers.get(moved)
        if less is None or plus is None or less.name != "lt" or plus.name != "add":
            return False
        number = next((v for v in plus.operands if v is not index), index)
        return (
            less.operands[0] is index
            and self.range(less.operands[1]) == (0, 0)
            and index in plus.operands
            and self.range(number) == (extent, extent)
        )

    def _joined(self, op: Op, extent: int) -> list[Check] | None:
        """Of ``i * c + j``, an index into axes of extents ``extent / c`` and ``c`` taken as one, what holds of both.

        Told from a flat index that happens to be such a sum by ``i`` or ``j`` being wrapped for its axis.
        """
        for scaled, inner in (op.operands, op.operands[::-1]):
            times = self.producers.get(scaled)
            if times is None or times.name != "mul":
                continue
            for outer, factor in (times.operands, times.operands[::-1]):
                c, same = self.range(factor)
                if c != same or c <= 0 or extent % c:
                    continue
                parts = [Check(outer, 0, extent // c - 1), Check(inner, 0, c - 1)]
                if any(self._is_wrapped(self.producers.get(p.value), p.high + 1) for p in parts):
                    return parts
        return None


def _widens(op: Op) -> bool:
    source, target = _of_dtype(op.operands[0].type.dtype), _of_dtype(op.result.type.dtype)
    return target[0] <= source[0] and source[1] <= target[1]


def _of_dtype(dtype: DType) -> Range:
    return int(lowest(dtype).real), int(highest(dtype).real)


def _within(dtype: DType, found: Range | None) -> Range:
    """The range, unless it passes the dtype's own: then the value may have wrapped around."""
    whole = _of_dtype(dtype)
    return found if found is not None and whole[0] <= found[0] and found[1] <= whole[1] else whole
