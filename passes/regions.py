# SPDX-License-Identifier: Apache-2.0
"""Arrays that code fills region by region: what reads a region reads what was written there, and the whole is a join.

A write into an array that the program made is ``select(inside, spread(value), array)``. Of a thousand writes each would
go through all of the array, and a value that was written a line before would be computed with all that lies beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

from fusec.ir.attributes import (
    Attributes,
    ConcatAttributes,
    ConstantAttributes,
    IotaAttributes,
    PadAttributes,
    ShapeAttributes,
    SliceAttributes,
)
from fusec.ir.graph import Graph
from fusec.ir.nodes import Op, Value
from fusec.ir.ops import OPS
from fusec.passes.canonicalize.views import slice_of_slice
from fusec.passes.dce import dce
from fusec.passes.rewrite import Outcome, Rewriter, rewrite, rule

FEWEST_WITH_GAPS = 4
"""Writes from which on an array is a join though not all of it is written: of fewer, selects take as little."""

Extents = dict[int, tuple[int, int]]
"""The first position, and one past the last, along each axis that is not whole."""

Producer = Callable[[Value], Op | None]


@dataclass(frozen=True)
class Written:
    """What a ``select`` writes where: ``value``, or the 0-d ``scalar`` everywhere, into ``base``."""

    extents: Extents
    base: Value
    value: Value | None
    scalar: Value | None = None


def join_regions(graph: Graph) -> Graph:
    """Afterwards no slice goes through a write that it shows all or nothing of, and chains of writes along one axis,
    each of which only the next one reads, are one ``concat``."""
    if not any(op.name == "select" for op in graph.ops):
        return graph
    return _joined(rewrite(graph, (slice_of_write, slice_of_slice_of_write)))


def written_region(op: Op, producer: Producer) -> Written | None:
    """The region that a ``select`` writes; None for one that chooses otherwise."""
    if op.name != "select":
        return None
    condition, written, base = op.operands
    shape = op.result.type.shape
    if not condition.type.shape == written.type.shape == base.type.shape == shape:
        return None
    extents = _inside(condition, producer)
    made = producer(written)
    if not extents or made is None:
        return None
    if made.name == "broadcast" and made.operands[0].type.rank == 0:
        return Written(extents, base, None, made.operands[0])
    if not isinstance(made.attributes, PadAttributes):
        return None
    for axis, (low, high) in enumerate(zip(made.attributes.low, made.attributes.high, strict=True)):
        start, stop = extents.get(axis, (0, shape[axis]))
        if low != start or high != shape[axis] - stop:
            return None
    return Written(extents, base, made.operands[0])


def _inside(condition: Value, producer: Producer) -> Extents | None:
    """The box in which comparisons of positions with numbers hold; None for any other condition."""
    found: Extents = {}
    waiting = [condition]
    while waiting:
        op = producer(waiting.pop())
        if op is not None and op.name == "logical_and":
            waiting.extend(op.operands)
            continue
        bound = _bound(op, producer) if op is not None else None
        if bound is None:
            return None
        axis, low, high = bound
        start, stop = found.get(axis, (low, high))
        found[axis] = max(start, low), min(stop, high)
    return found if all(start < stop for start, stop in found.values()) else None


def _bound(op: Op, producer: Producer) -> tuple[int, int, int] | None:
    """The axis along which ``position >= n`` or ``position < n``, and from where to where that holds."""
    if op.name not in ("ge", "lt"):
        return None
    number, limit = (producer(v) for v in op.operands)
    if number is None or limit is None or not isinstance(number.attributes, IotaAttributes):
        return None
    axis = number.attributes.axis
    extent = op.result.type.shape[axis]
    if number.result.type.shape != op.result.type.shape or not isinstance(extent, int):
        return None
    if not isinstance(limit.attributes, ConstantAttributes) or not isinstance(limit.attributes.value, int):
        return None
    n = limit.attributes.value
    return (axis, max(n, 0), extent) if op.name == "ge" else (axis, 0, min(n, extent))


# What reads a region


@rule("slice")
def slice_of_write(r: Rewriter) -> Outcome:
    """slice(select(inside, spread(y), x)) ⇒ slice(y), or slice(x), where it shows y alone, or nothing of it"""
    cut = r.op.expect(SliceAttributes)
    if any(step <= 0 for step in cut.steps):
        return None
    (value,) = r.operands
    while (write := _region(r, value)) is not None and _is_beside(cut, write.extents):
        value = write.base
    if write is not None and _is_within(cut, write.extents):
        if write.scalar is not None:
            return r.broadcast(write.scalar, r.op.result.type.shape)
        assert write.value is not None
        starts = [write.extents.get(axis, (0, 0))[0] for axis in range(value.type.rank)]
        return _cut(r, write.value, cut, starts)
    return None if value is r.operands[0] else _cut(r, value, cut, [0] * value.type.rank)


@rule("slice")
def slice_of_slice_of_write(r: Rewriter) -> Outcome:
    """slice(slice(select(inside, spread(y), x), a), b) ⇒ slice(select(inside, spread(y), x), a∘b)"""
    inner = r.producer(r.operands[0], "slice")
    return slice_of_slice.rewrite(r) if inner is not None and _region(r, inner.operands[0]) is not None else None


def _region(r: Rewriter, value: Value) -> Written | None:
    made = r.producer(value, "select")
    return None if made is None else written_region(made, r.producer)


def _is_beside(cut: SliceAttributes, extents: Extents) -> bool:
    """Whether a slice shows nothing of a region."""
    for axis, (start, stop) in extents.items():
        first, end = cut.starts[axis], cut.stops[axis]
        if isinstance(first, int) and isinstance(end, int) and (end <= start or stop <= first):
            return True
    return False


def _is_within(cut: SliceAttributes, extents: Extents) -> bool:
    """Whether a slice shows nothing but a region."""
    for axis, (start, stop) in extents.items():
        first, end = cut.starts[axis], cut.stops[axis]
        if not (isinstance(first, int) and isinstance(end, int) and start <= first and end <= stop):
            return False
    return True


def _cut(r: Rewriter, value: Value, cut: SliceAttributes, offsets: Sequence[int]) -> Value:
    """The same slice of what begins so far into the array; the value itself where that is all of it."""
    starts = tuple(first - offset for first, offset in zip(cut.starts, offsets, strict=True))
    stops = tuple(end - offset for end, offset in zip(cut.stops, offsets, strict=True))
    here = SliceAttributes(starts, stops, cut.steps)
    if here == SliceAttributes.of_axes(value.type.shape, {}):
        return value
    return r.emit("slice", value, attributes=here)


# All of an array


def _joined(graph: Graph) -> Graph:
    """Chains of writes along one axis as joins."""
    producers, uses, outputs = graph.producers(), graph.uses(), set(graph.outputs)
    written = {op.result: found for op in graph.ops if (found := written_region(op, producers.get)) is not None}
    inner = {
        each.base
        for each in written.values()
        if each.base in written
        and len(uses[each.base]) == 1
        and each.base not in outputs
        and len(each.extents) == 1
        and each.extents.keys() == written[each.base].extents.keys()
    }
    maker = _Maker({v.name for v in (*graph.inputs, *producers)})
    ops: list[Op] = []
    for op in graph.ops:
        ends = len(op.results) == 1 and op.result in written and op.result not in inner
        made = _join(op, written, inner, maker) if ends else None
        ops += [op] if made is None else made
    return dce(graph.with_ops(ops))


class _Maker:
    """Makes ops with names that nothing has. ``taken``: those of a graph."""

    def __init__(self, taken: set[str]) -> None:
        self.taken = taken
        self.ops: list[Op] = []
        self._count = 0

    def emit(self, name: str, operand: Value, attributes: Attributes, like: Op) -> Value:
        definition = OPS[name]
        (type_,) = definition.infer((operand.type,), attributes)
        while (own := f"{like.result.name}_{name}_{self._count}") in self.taken:
            self._count += 1
        self.taken.add(own)
        value = Value(type_, own)
        self.ops.append(Op(definition, (operand,), attributes, (value,), like.location))
        return value


def _join(last: Op, written: Mapping[Value, Written], inner: Set[Value], maker: _Maker) -> list[Op] | None:
    """The ops of a join in place of a chain's last write; None where the chain is short and does not fill the array."""
    chain = [written[last.result]]
    while chain[-1].base in inner:
        chain.append(written[chain[-1].base])
    (axis, *others) = chain[0].extents
    extent = last.result.type.shape[axis]
    if others or len(chain) < 2 or not isinstance(extent, int):
        return None
    pieces = _pieces([each.extents[axis] for each in chain], extent)
    gaps = any(k is None for _, _, k in pieces)
    if len(pieces) == 1 or (gaps and len(chain) < FEWEST_WITH_GAPS):
        return None
    maker.ops = []
    parts = tuple(_part(last, chain[-1].base if k is None else chain[k], axis, ends, maker) for *ends, k in pieces)
    return [*maker.ops, Op(OPS["concat"], parts, ConcatAttributes(axis), last.results, last.location)]


def _part(last: Op, seen: Value | Written, axis: int, ends: Sequence[int], maker: _Maker) -> Value:
    """What is seen of an array, or of what was written, from where to where along an axis of the whole."""
    start, stop = ends
    if isinstance(seen, Written) and seen.scalar is not None:
        shape = list(last.result.type.shape)
        shape[axis] = stop - start
        return maker.emit("broadcast", seen.scalar, ShapeAttributes(tuple(shape)), last)
    value, first = (seen, 0) if isinstance(seen, Value) else (seen.value, seen.extents[axis][0])
    assert value is not None
    cut = SliceAttributes.of_axes(value.type.shape, {axis: (start - first, stop - first)})
    return value if cut == SliceAttributes.of_axes(value.type.shape, {}) else maker.emit("slice", value, cut, last)


def _pieces(ranges: Sequence[tuple[int, int]], extent: int) -> list[tuple[int, int, int | None]]:
    """From where to where each of some ranges is seen, an earlier one over a later one; None: none of them."""
    owner: list[int | None] = [None] * extent
    for k in reversed(range(len(ranges))):
        start, stop = ranges[k]
        owner[start:stop] = [k] * (stop - start)
    found: list[tuple[int, int, int | None]] = []
    for position, seen in enumerate(owner):
        if found and found[-1][2] == seen:
            found[-1] = (found[-1][0], position + 1, seen)
        else:
            found.append((position, position + 1, seen))
    return found
