# SPDX-License-Identifier: Apache-2.0
"""Library calls that write positions of an array, as updates: a cache's keys of one token, or of one for each sequence.

On a CPU a call of many positions is left to the library: its time goes into moving them, and which of two elements for
one position is written last is its own business. On a GPU either is right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from fusec.ir.attributes import (
    ExternAttributes,
    PermuteAttributes,
    ShapeAttributes,
    SliceAttributes,
    UpdateAttributes,
)
from fusec.ir.graph import Graph
from fusec.ir.index import add
from fusec.ir.nodes import Op, Value
from fusec.ir.ops import OPS
from fusec.ir.types import Dim, DType, i32, i64
from fusec.passes.rewrite import Rewriter, Sweep
from fusec.runtime.library import Operand, parse_arguments

Shape = tuple[Dim, ...]


@dataclass(frozen=True, eq=False)
class _Write:
    """A library call that writes positions along axes of its first operand, and what is to take its place.

    end: the op whose result is the array written to: the call, or the update that writes all of a box of the array
    back, after ``between``. axes: of the call's operand, each with its index; own_axes: of the array. count: how many
    positions. wraps: an index below 0 counts from the end, and the value broadcasts.
    """

    call: Op
    end: Op
    between: tuple[Op, ...]
    axes: tuple[int, ...]
    own_axes: tuple[int, ...]
    count: int
    wraps: bool


def with_writes_at(graph: Graph, *, several: bool = False) -> Graph:
    """The graph with calls that write one position of an input, or of a box of it, or ``several``, as updates.

    A call on a box is followed by an update that writes all of the box back: both become one update, of which the
    box as the call left it is a slice.
    """
    while True:
        writes = _find(graph, several)
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


def library_write(r: Rewriter, base: Value, value: Value, positions: Sequence[Value]) -> Value:
    """The update that ``r`` looks at, as a library call, on the box of the array that it is for."""
    update = r.op.expect(UpdateAttributes)
    starts, axes = update.starts, update.axes
    box = tuple(base.type.shape[a] if a in axes else n for a, n in enumerate(value.type.shape))
    seen = base
    if box != base.type.shape:
        seen = r.emit("slice", base, attributes=_box(starts, box))
    rows = [r.reshape(v, (v.type.count,)) for v in positions]
    if len(axes) == 1:
        target, text = "aten.index_copy.default", f"($0, {axes[0]}, $1, $2), {{}}"
    else:
        every = ["None"] * (max(axes) + 1)
        for number, axis in enumerate(axes):
            every[axis] = f"${number + 1}"
        target, text = "aten.index_put.default", f"($0, [{', '.join(every)}], ${len(axes) + 1}), {{}}"
        value = _as_found(r, value, axes)
    attributes = ExternAttributes(target, text, (seen.type,), "writes through an index")
    made = r.emit("extern", seen, *rows, value, attributes=attributes)
    return made if seen is base else r.emit("update", base, made, attributes=UpdateAttributes(starts))


def _as_found(r: Rewriter, value: Value, axes: tuple[int, ...]) -> Value:
    """What an update writes, with its axes as indexing by several arrays gives them."""
    others = [n for a, n in enumerate(value.type.shape) if a not in axes[1:]]
    value = r.reshape(value, tuple(others))
    if _are_beside(axes):
        return value
    order = (axes[0], *(a for a in range(len(others)) if a != axes[0]))
    return r.emit("permute", value, attributes=PermuteAttributes(order))


def _are_beside(axes: Sequence[int]) -> bool:
    """Whether indexing along these axes leaves the axis of positions where the first of them was, not in front."""
    return tuple(axes) == tuple(range(axes[0], axes[0] + len(axes)))


def _find(graph: Graph, several: bool) -> dict[Op, _Write]:
    """By their ends, the writes of one position, or of ``several``."""
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
        if write is None or (write.count > 1 and not several):
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
    if box is None or _start_in(base, box.result, producers) != update.expect(UpdateAttributes).starts:
        return None
    return _find_write(call, update, between) if box.result.type.shape == value.type.shape else None


def _start_in(base: Value, box: Value, producers: Mapping[Value, Op]) -> Shape | None:
    """Where a box of ``base`` starts, as slices show it; None for what is none."""
    starts: Shape = (0,) * base.type.rank
    while box is not base:
        op = producers.get(box)
        if op is None or not isinstance(op.attributes, SliceAttributes) or set(op.attributes.steps) != {1}:
            return None
        if box.type.rank != base.type.rank:
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
    if not isinstance(call.attributes, ExternAttributes) or len(call.operands) < 3 or len(call.results) != 1:
        return None
    args, kwargs = parse_arguments(call.attributes.arguments)
    if kwargs:
        return None
    base, *indices, value = call.operands
    numbers = [Operand(k) for k in range(1, len(call.operands))]
    axes: tuple[int, ...]
    match call.attributes.target, args:
        case "aten.index_copy.default", (Operand(index=0), int() as axis, *rest) if rest == numbers and len(rest) == 2:
            axes, wraps = (axis % base.type.rank,), False
        case "aten.index_put.default", (Operand(index=0), [*every], last) if last == numbers[-1]:
            if [index for index in every if index is not None] != numbers[:-1]:
                return None
            axes, wraps = tuple(a for a, index in enumerate(every) if index is not None), True
        case _:
            return None
    count = _count_of(indices, (i32, i64) if wraps else (i64,))
    shape = base.type.shape
    fits = value.type.dtype == base.type.dtype and (wraps or value.type.shape == _box_of(shape, axes, count))
    known = count and 0 not in shape and all(isinstance(shape[axis], int) for axis in axes)
    if not fits or not known:
        return None
    own_axes = axes if end is call else _axes_in(end, shape, axes)
    return None if own_axes is None else _Write(call, end, between, axes, own_axes, count, wraps)


def _count_of(indices: Sequence[Value], dtypes: tuple[DType, ...]) -> int:
    """How many positions rows of indices name together; 0 for what they are not."""
    counts = {1}
    for v in indices:
        if v.type.dtype not in dtypes or not v.type.is_static or (v.type.rank > 1 and v.type.count != 1):
            return 0
        counts.add(prod(v.type.static_shape))
    return max(counts) if len(counts) <= 2 and 0 not in counts else 0


def _box_of(shape: Shape, axes: tuple[int, ...], count: int) -> Shape:
    """The shape of what an update writes at positions along axes of a box of this shape."""
    return tuple(count if a == axes[0] else 1 if a in axes else n for a, n in enumerate(shape))


def _axes_in(update: Op, shape: Shape, axes: tuple[int, ...]) -> tuple[int, ...] | None:
    """The axes of an updated array that are ``axes`` of ``shape``, the box's but for axes of 1; None where the box has
    not all of them."""
    base, value = update.operands
    long = [a for a, n in enumerate(value.type.shape) if n != 1]
    found = []
    for axis in axes:
        own = long[len(_squeezed(shape[:axis]))] if shape[axis] != 1 else None
        if own is None or value.type.shape[own] != base.type.shape[own]:
            return None
        found.append(own)
    return tuple(found)


def _replace(r: Rewriter, write: _Write) -> None:
    """Emits the update, and after it the box as the call left it."""
    end, (seen, *indices, value) = write.end, write.call.operands
    base, shape = end.operands[0], seen.type.shape
    starts: Shape = (0,) * base.type.rank
    if isinstance(end.attributes, UpdateAttributes):
        shape, starts = end.operands[1].type.shape, end.attributes.starts
    positions = [_positions(r, index, write, base.type.shape[a]) for index, a in zip(indices, write.own_axes)]
    if write.wraps:
        value = _as_written(r, value, write, indices)
    value = r.reshape(value, _box_of(shape, write.own_axes, write.count))
    attributes = UpdateAttributes(starts, write.own_axes)
    r.emitted.append(Op(OPS["update"], (base, value, *positions), attributes, end.results, end.location))
    if end is not write.call:
        left_there = r.emit("slice", end.result, attributes=_box(starts, shape))
        result = write.call.result
        back = ShapeAttributes(result.type.shape)
        r.emitted.append(Op(OPS["reshape"], (left_there,), back, (result,), write.call.location))


def _positions(r: Rewriter, index: Value, write: _Write, extent: Dim) -> Value:
    """An index as an update has it, none below 0."""
    row = r.cast(r.reshape(index, () if index.type.count == 1 else (index.type.count,)), i64)
    if write.wraps:
        assert isinstance(extent, int)
        below = r.emit("lt", row, r.constant(0, row))
        row = r.emit("select", below, r.emit("add", row, r.constant(extent, row)), row)
    return r.broadcast(row, (write.count,)) if write.count > 1 else row


def _as_written(r: Rewriter, value: Value, write: _Write, indices: Sequence[Value]) -> Value:
    """The value of indexing by arrays, with its positions where the first axis that is indexed was."""
    shape, axes = write.call.operands[0].type.shape, write.axes
    rank = max(v.type.rank for v in indices)
    row = (1,) * (rank - 1) + (write.count,) if rank else ()
    others = [n for a, n in enumerate(shape) if a not in axes]
    front = axes[0] if _are_beside(axes) else 0
    value = r.broadcast(value, (*others[:front], *row, *others[front:]))
    value = r.reshape(value, (*others[:front], write.count, *others[front:]))
    if front == axes[0]:
        return value
    order = (*range(1, axes[0] + 1), 0, *range(axes[0] + 1, len(others) + 1))
    return r.emit("permute", value, attributes=PermuteAttributes(order))


def _box(starts: Shape, shape: Shape) -> SliceAttributes:
    """What shows the box of this shape that starts there."""
    stops = tuple(add(start, n) for start, n in zip(starts, shape, strict=True))
    return SliceAttributes(starts, stops, (1,) * len(starts))
