# SPDX-License-Identifier: Apache-2.0
"""Where the results of a loop's steps meet: stacked, concatenated, or each written to its place in a new array."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fusec.ir.attributes import ConcatAttributes, ConstantAttributes, IotaAttributes, PadAttributes
from fusec.ir.graph import Graph
from fusec.ir.nodes import Op, Value


@dataclass(frozen=True)
class Meeting:
    """``op``'s result is the ``parts`` along an axis, each of which has one position there."""

    op: Op
    parts: tuple[Value, ...]
    axis: int


def find_meetings(graph: Graph, fewest: int) -> Iterator[Meeting]:
    """All that have at least so many parts, in order. Takes time that is linear in the graph's ops."""
    producers = graph.producers()
    inner = {op.operands[2] for op in graph.ops if op.name == "select"}
    for op in graph.ops:
        if op.name == "concat" and len(op.operands) >= fewest:
            axis = op.expect(ConcatAttributes).axis
            if all(v.type.shape[axis] == 1 for v in op.operands):
                yield Meeting(op, op.operands, axis)
        elif op.name == "select" and op.result not in inner:
            written = _written(op, producers)
            if written is not None and len(written.parts) >= fewest:
                yield written


def _written(last: Op, producers: dict[Value, Op]) -> Meeting | None:
    """Writes of one position each, which together are all of an array."""
    places: dict[int, Value] = {}
    axes: set[int] = set()
    made: Op | None = last
    while made is not None and made.name == "select":
        found = _write(made, producers)
        if found is None:
            break
        axis, position, value = found
        axes.add(axis)
        places.setdefault(position, value)  # a later write stays
        made = producers.get(made.operands[2])
    if len(axes) != 1:
        return None
    (axis,) = axes
    if last.result.type.shape[axis] != len(places):
        return None
    return Meeting(last, tuple(places[n] for n in sorted(places)), axis)


def _write(select: Op, producers: dict[Value, Op]) -> tuple[int, int, Value] | None:
    """The axis, the position along it, and what is written there."""
    condition, value, rest = select.operands
    shape = select.result.type.shape
    pad = producers.get(value)
    if pad is None or pad.name != "pad" or value.type.shape != shape or rest.type.shape != shape:
        return None
    low, high = pad.expect(PadAttributes).low, pad.expect(PadAttributes).high
    padded = [a for a in range(len(shape)) if low[a] or high[a]]
    if len(padded) != 1:
        return None
    axis = padded[0]
    length = shape[axis]
    if not isinstance(length, int) or pad.operands[0].type.shape[axis] != 1 or low[axis] + 1 + high[axis] != length:
        return None
    position = low[axis]
    if condition.type.shape != shape or _range(condition, axis, length, producers) != (position, position + 1):
        return None
    return axis, position, pad.operands[0]


def _range(condition: Value, axis: int, length: int, producers: dict[Value, Op]) -> tuple[int, int] | None:
    """From which position to which a condition on the position along an axis holds."""
    op = producers.get(condition)
    if op is None:
        return None
    if op.name == "logical_and":
        a, b = (_range(v, axis, length, producers) for v in op.operands)
        return None if a is None or b is None else (max(a[0], b[0]), min(a[1], b[1]))
    if op.name not in ("ge", "lt"):
        return None
    number, bound = producers.get(op.operands[0]), producers.get(op.operands[1])
    if number is None or number.name != "iota" or number.expect(IotaAttributes).axis != axis:
        return None
    if bound is None or not isinstance(bound.attributes, ConstantAttributes):
        return None
    value = bound.attributes.value
    if not isinstance(value, int):
        return None
    return (value, length) if op.name == "ge" else (0, value)
