"""Library calls that write one place of an array, as updates: a cache's keys of one token.

A call of many places is left to the library: its time goes into moving them, and which of two elements for one place is
written last is its own business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fusec.ir.attributes import ExternAttributes, ShapeAttributes, SliceAttributes, UpdateAttributes
from fusec.ir.graph import Graph
from fusec.ir.index import add
from fusec.ir.nodes import Op, Value
from fusec.ir.ops import OPS
from fusec.ir.types import Dim, i32, i64
from fusec.passes.rewrite import Rewriter, Sweep
from fusec.runtime.library import Operand, parse_arguments

Shape = tuple[Dim, ...]


@dataclass(frozen=True, eq=False)
class _Write:
    """A library call that writes one index along an axis of its first operand, and what is to take its place.

    end: the op whose result is the array written to: the call, or the update that writes all of a box of the array
    back, after ``between``. axis: of the call's operand; own_axis: of the array. wraps: an index below 0 counts from
    the end, and the value broadcasts.
    """

    call: Op
    end: Op
    between: tuple[Op, ...]
    axis: int
    own_axis: int
    wraps: bool


def with_placed_writes(graph: Graph) -> Graph:
    """The graph with calls that write one place of an input, or of a box of it, as updates.

    A call on a box is followed by an update that writes all of the box back: both become one update, of which the
    box as the call left it is a slice.
    """
    while True:
        writes = _find(graph)
        if not writes:
            return graph
        gone = {op for write in writes.values() for op in (write.call, *write.between) if op is not write.end}
        sweep = Sweep(graph)
        for op in graph.ops:
            if op in gone:
                continue
            made = [op]
            if op in writes:
                r = Rewriter(sweep, writes[op].call)
                _replace(r, writes[op])
                made = r.emitted
            for each in made:
                sweep.append(each)
        graph = graph.with_ops(sweep.ops)


def library_write(r: Rewriter, base: Value, value: Value, place: Value) -> Value:
    """The update that ``r`` looks at, as a library call, on the box of the array that it is for."""
    assert isinstance(r.op.attributes, UpdateAttributes)
    starts, axis = r.op.attributes.starts, r.op.attributes.axis
    shape = value.type.shape
    assert axis is not None
    box = (*shape[:axis], base.type.shape[axis], *shape[axis + 1 :])
    seen = base
    if box != base.type.shape:
        seen = r.emit("slice", base, attributes=_box(starts, box))
    text = f"($0, {axis}, $1, $2), {{}}"
    attributes = ExternAttributes("aten.index_copy.default", text, (seen.type,), "writes through an index")
    made = r.emit("extern", seen, r.reshape(place, (1,)), value, attributes=attributes)
    return made if seen is base else r.emit("update", base, made, attributes=UpdateAttributes(starts))


def _find(graph: Graph) -> dict[Op, _Write]:
    """By their ends, the writes of one place."""
    producers, uses = graph.producers(), graph.uses()
    number = {op: k for k, op in enumerate(graph.ops)}
    chained = _chained(graph, producers)
    found: dict[Op, _Write] = {}
    for op in graph.ops:
        write = None
        if op.name == "extern" and not chained.isdisjoint(op.results):
            write = _find_write(op, op, ())
        elif isinstance(op.attributes, UpdateAttributes) and len(op.operands) == 2:
            write = _find_on_box(op, producers, uses)
        if write is None:
            continue
        readers = [r for r in uses[write.call.result] if write.end is not write.call and r not in write.between]
        if all(number[r] > number[op] or r is op for r in readers):
            found[op] = write
    return found


def _chained(graph: Graph, producers: Mapping[Value, Op]) -> set[Value]:
    """The results of calls and updates between an input and its new contents."""
    found: set[Value] = set()
    for value, port in zip(graph.outputs, graph.output_ports, strict=True):
        if port.mutates is None:
            continue
        while (op := producers.get(value)) is not None and op.name in ("extern", "update") and op.operands:
            found.add(value)
            value = op.operands[0]
    return found


def _find_on_box(update: Op, producers: Mapping[Value, Op], uses: Mapping[Value, Sequence[Op]]) -> _Write | None:
    """A call whose result an update writes back to where the call's first operand, but for axes of 1, is from."""
    base, value = update.operands
    between, call = _under_reshape(value, producers)
    if call is None or call.name != "extern" or not call.operands or any(len(uses[op.result]) > 1 for op in between):
        return None
    _, box = _under_reshape(call.operands[0], producers)
    assert isinstance(update.attributes, UpdateAttributes)
    if box is None or _start_in(base, box.result, producers) != update.attributes.starts:
        return None
    return _find_write(call, update, between) if box.result.type.shape == value.type.shape else None


def _start_in(base: Value, box: Value, producers: Mapping[Value, Op]) -> Shape | None:
    """Where a box of ``base`` starts, as slices show it; None for what is none."""
    starts: Shape = (0,) * base.type.rank
    while box is not base:
        op = producers.get(box)
        if op is None or not isinstance(op.attributes, SliceAttributes) or set(op.attributes.steps) != {1}:
            return None
        starts = tuple(add(a, b) for a, b in zip(starts, op.attributes.starts, strict=True))
        box = op.operands[0]
    return starts


def _under_reshape(value: Value, producers: Mapping[Value, Op]) -> tuple[tuple[Op, ...], Op | None]:
    """What makes a value, and the reshape between, where there is one that adds or drops axes of 1."""
    op = producers.get(value)
    if op is not None and op.name == "reshape" and _squeezed(op.operands[0].type.shape) == _squeezed(value.type.shape):
        return (op,), producers.get(op.operands[0])
    return (), op


def _squeezed(shape: Shape) -> list[Dim]:
    return [n for n in shape if n != 1]


def _find_write(call: Op, end: Op, between: tuple[Op, ...]) -> _Write | None:
    if not isinstance(call.attributes, ExternAttributes) or len(call.operands) != 3 or len(call.results) != 1:
        return None
    args, kwargs = parse_arguments(call.attributes.arguments)
    if kwargs:
        return None
    match call.attributes.target, args:
        case "aten.index_copy.default", (Operand(index=0), int() as axis, Operand(index=1), Operand(index=2)):
            axis, wraps = axis % call.operands[0].type.rank, False
        case "aten.index_put.default", (Operand(index=0), [*every, Operand(index=1)], Operand(index=2)):
            if any(index is not None for index in every):
                return None
            axis, wraps = len(every), True
        case _:
            return None
    base, index, value = call.operands
    fits = value.type.dtype == base.type.dtype and (wraps or value.type.shape == _one_of(base.type.shape, axis))
    known = isinstance(base.type.shape[axis], int) and 0 not in base.type.shape
    if not fits or not known or index.type.dtype not in ((i32, i64) if wraps else (i64,)) or index.type.count != 1:
        return None
    own_axis = axis if end is call else _axis_in(end, base.type.shape, axis)
    return None if own_axis is None else _Write(call, end, between, axis, own_axis, wraps)


def _one_of(shape: Shape, axis: int) -> Shape:
    return (*shape[:axis], 1, *shape[axis + 1 :])


def _axis_in(update: Op, shape: Shape, axis: int) -> int | None:
    """The axis of an updated array that is ``axis`` of ``shape``, the box's but for axes of 1; None where the box has
    not all of it."""
    base, value = update.operands
    if shape[axis] == 1:
        return None
    long = [a for a, n in enumerate(value.type.shape) if n != 1]
    found = long[len(_squeezed(shape[:axis]))]
    return found if value.type.shape[found] == base.type.shape[found] else None


def _replace(r: Rewriter, write: _Write) -> None:
    """Emits the update, and after it the box as the call left it."""
    end, (seen, index, value) = write.end, write.call.operands
    base, shape = end.operands[0], seen.type.shape
    starts: Shape = (0,) * base.type.rank
    if isinstance(end.attributes, UpdateAttributes):
        shape, starts = end.operands[1].type.shape, end.attributes.starts
    place = r.cast(r.reshape(index, ()), i64)
    if write.wraps:
        place = _wrapped(r, place, base.type.shape[write.own_axis])
        left, right = seen.type.shape[: write.axis], seen.type.shape[write.axis + 1 :]
        value = r.broadcast(value, (*left, *index.type.shape, *right))
    value = r.reshape(value, _one_of(shape, write.own_axis))
    attributes = UpdateAttributes(starts, write.own_axis)
    r.emitted.append(Op(OPS["update"], (base, value, place), attributes, end.results, end.location))
    if end is not write.call:
        left_there = r.emit("slice", end.result, attributes=_box(starts, shape))
        result = write.call.result
        back = ShapeAttributes(result.type.shape)
        r.emitted.append(Op(OPS["reshape"], (left_there,), back, (result,), write.call.location))


def _wrapped(r: Rewriter, place: Value, extent: Dim) -> Value:
    assert isinstance(extent, int)
    below = r.emit("lt", place, r.constant(0, place))
    return r.emit("select", below, r.emit("add", place, r.constant(extent, place)), place)


def _box(starts: Shape, shape: Shape) -> SliceAttributes:
    """What shows the box of this shape that starts there."""
    stops = tuple(add(start, n) for start, n in zip(starts, shape, strict=True))
    return SliceAttributes(starts, stops, (1,) * len(starts))
