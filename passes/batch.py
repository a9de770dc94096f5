# SPDX-License-Identifier: Apache-2.0
"""Graphs that treat every element of a batch alike: found by following the batch's axis, and made for fewer of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from fusec.errors import LoweringError
from fusec.ir.attributes import (
    ArgReduceAttributes,
    Attributes,
    AxisAttributes,
    ConcatAttributes,
    DotAttributes,
    IotaAttributes,
    NormAttributes,
    PadAttributes,
    PermuteAttributes,
    ReduceAttributes,
    ScanAttributes,
    ShapeAttributes,
    SliceAttributes,
    VarAttributes,
)
from fusec.ir.graph import Graph
from fusec.ir.nodes import Op, Port, Value
from fusec.ir.types import TensorType

Axis = tuple[Value, int]
"""An axis of a value."""
Link = tuple[int, int, int, int]
"""Operand, its axis, result, its axis: element ``i`` along one makes element ``i`` along the other, and no other."""

_POINTWISE = frozenset({"relu", "sigmoid", "silu", "softplus", "gelu"})


def batch_axes(graph: Graph) -> dict[Value, int]:
    """For each value that is made batch element by batch element, the axis of the batch.

    The batch is the first axis of the first output. LoweringError, with the reason, where some value mixes its
    elements, or where an input or output has them along another axis than its first.
    """
    if not graph.outputs or not graph.outputs[0].type.shape:
        raise LoweringError("the first result has no axis to go along")
    links: dict[Axis, list[Axis]] = {}
    free: set[Axis] = {(v, a) for v in graph.inputs for a in range(v.type.rank)}
    for op in graph.ops:
        for operand, a, result, b in _links(op):
            one, other = (op.operands[operand], a), (op.results[result], b)
            links.setdefault(one, []).append(other)
            links.setdefault(other, []).append(one)
            free.add(other)
        free |= {(op.results[0], axis) for axis in _repeated(op)}
    found = _reached(graph, links)
    axes: dict[Value, int] = {}
    for value, axis in found:
        if value in axes:
            raise LoweringError(f"{value} has the batch along two axes")
        axes[value] = axis
    _check(graph, axes, free)
    return axes


def _reached(graph: Graph, links: dict[Axis, list[Axis]]) -> set[Axis]:
    start = (graph.outputs[0], 0)
    found, waiting = {start}, [start]
    while waiting:
        for axis in links.get(waiting.pop(), ()):
            if axis not in found:
                found.add(axis)
                waiting.append(axis)
    return found


def _check(graph: Graph, axes: dict[Value, int], free: set[Axis]) -> None:
    producers = graph.producers()
    for value, axis in axes.items():
        if (value, axis) not in free:
            raise LoweringError(f"{value} mixes the elements of the batch ({producers[value].name})")
    for op in graph.ops:
        made = {(k, axes[v]) for k, v in enumerate(op.results) if v in axes}
        read = {(k, axes[v]) for k, v in enumerate(op.operands) if v in axes}
        passed = {(operand, a) for operand, a, result, b in _links(op) if (result, b) in made}
        if read - passed or (read and len(made) < len(op.results)):
            raise LoweringError(f"{op.results[0]} mixes the elements of the batch ({op.name})")
    for value in (*graph.inputs, *graph.outputs):
        if axes.get(value, 0):
            raise LoweringError(f"{value} has the batch along axis {axes[value]}, not along its first")
    if any(v not in axes for v in graph.outputs):
        raise LoweringError("a result is not made batch element by batch element")
    if not any(v in axes for v in graph.inputs):
        raise LoweringError("no argument has the batch")


def _links(op: Op) -> Iterator[Link]:
    """How the axes of an op's operands and results go together, one element for one."""
    shapes = [v.type.shape for v in op.operands]
    if len(op.results) != 1:
        return
    result, a = op.result.type.shape, op.attributes
    match a:
        case PermuteAttributes(permutation):
            yield from ((0, axis, 0, k) for k, axis in enumerate(permutation))
        case ShapeAttributes() if op.name == "reshape":
            yield from _reshaped(shapes[0], result)
        case SliceAttributes(starts, stops, steps):
            whole = zip(starts, stops, steps, shapes[0], strict=True)
            yield from ((0, k, 0, k) for k, part in enumerate(whole) if part[:3] == (0, part[3], 1))
        case ReduceAttributes(axes) | VarAttributes(axes):
            yield from _dropped(len(shapes[0]), axes)
        case ArgReduceAttributes(axis):
            yield from _dropped(len(shapes[0]), (axis,))
        case ScanAttributes(axis) | AxisAttributes(axis):
            yield from ((n, k, 0, k) for n in range(len(shapes)) for k in range(len(result)) if k != axis)
        case NormAttributes(axes):
            yield from ((0, k, 0, k) for k in range(len(result)) if k not in axes)
        case ConcatAttributes(axis):
            yield from ((n, k, 0, k) for n in range(len(shapes)) for k in range(len(result)) if k != axis)
        case PadAttributes(low, high):
            yield from ((0, k, 0, k) for k in range(len(result)) if not low[k] and not high[k])
        case DotAttributes():
            yield from _contracted(a, len(shapes[0]), len(shapes[1]))
        case IotaAttributes(axis=axis):
            return
        case _ if op.name == "matmul":
            yield from _matmul(shapes, len(result))
        case _ if op.name == "linear":
            yield from ((0, k, 0, k) for k in range(len(result) - 1))
        case _ if op.definition.kind == "elementwise" or op.name in _POINTWISE or op.name == "broadcast":
            for n, shape in enumerate(shapes):
                shift = len(result) - len(shape)
                yield from ((n, k, 0, k + shift) for k in range(len(shape)) if shape[k] == result[k + shift])


def _repeated(op: Op) -> Iterator[int]:
    """Axes of the result along which nothing changes."""
    match op.attributes:
        case IotaAttributes(shape, axis):
            yield from (k for k in range(len(shape)) if k != axis)
        case ShapeAttributes(shape) if op.name == "broadcast":
            source = op.operands[0].type.shape
            shift = len(shape) - len(source)
            yield from (k for k in range(len(shape)) if k < shift or source[k - shift] == 1)


def _dropped(rank: int, axes: Sequence[int]) -> Iterator[Link]:
    free = [k for k in range(rank) if k not in axes]
    yield from ((0, axis, 0, k) for k, axis in enumerate(free))


def _reshaped(shape: Sequence[object], result: Sequence[object]) -> Iterator[Link]:
    """Leading axes that a reshape leaves alone."""
    for k, (n, m) in enumerate(zip(shape, result)):
        if n != m:
            return
        yield 0, k, 0, k


def _contracted(a: DotAttributes, left: int, right: int) -> Iterator[Link]:
    count = len(a.lhs_batch)
    for k in range(count):
        yield 0, a.lhs_batch[k], 0, k
        yield 1, a.rhs_batch[k], 0, k
    free = [k for k in range(left) if k not in (*a.lhs_batch, *a.lhs_contract)]
    yield from ((0, axis, 0, count + k) for k, axis in enumerate(free))
    others = [k for k in range(right) if k not in (*a.rhs_batch, *a.rhs_contract)]
    yield from ((1, axis, 0, count + len(free) + k) for k, axis in enumerate(others))


def _matmul(shapes: Sequence[Sequence[object]], rank: int) -> Iterator[Link]:
    """Matrices of two or more axes; outer axes broadcast."""
    if min(map(len, shapes)) < 2:
        return
    outer = [len(s) - 2 for s in shapes]
    most = max(outer)
    for n, shape in enumerate(shapes):
        for k in range(outer[n]):
            at = most - outer[n] + k
            beside = shapes[1 - n]
            other = at - (most - outer[1 - n])
            if shape[k] != 1 or other < 0 or beside[other] == 1:
                yield n, k, 0, at
    yield 0, len(shapes[0]) - 2, 0, rank - 2
    yield 1, len(shapes[1]) - 1, 0, rank - 1


def with_batch(graph: Graph, axes: dict[Value, int], count: int) -> Graph:
    """The graph for ``count`` elements of the batch, its inputs and outputs row-major in memory of their own."""
    changed: dict[Value, Value] = {}

    def moved(value: Value) -> Value:
        if value not in changed:
            shape = list(value.type.shape)
            if value in axes:
                shape[axes[value]] = count
            changed[value] = Value(TensorType(value.type.dtype, tuple(shape), value.type.device), value.name)
        return changed[value]

    ops = [
        Op(
            op.definition,
            tuple(map(moved, op.operands)),
            _attributes(op, axes, count),
            tuple(map(moved, op.results)),
            op.location,
        )
        for op in graph.ops
    ]
    return replace(
        graph,
        inputs=tuple(map(moved, graph.inputs)),
        outputs=tuple(map(moved, graph.outputs)),
        ops=tuple(ops),
        input_ports=tuple(replace(p, strides=None, offset=0) for p in graph.input_ports),
        output_ports=tuple(Port() for _ in graph.outputs),
    )


def _attributes(op: Op, axes: dict[Value, int], count: int) -> Attributes:
    axis = axes.get(op.results[0])
    if axis is None:
        return op.attributes
    match op.attributes:
        case ShapeAttributes(shape) | IotaAttributes(shape=shape):
            return replace(op.attributes, shape=(*shape[:axis], count, *shape[axis + 1 :]))
        case SliceAttributes(stops=stops):
            return replace(op.attributes, stops=(*stops[:axis], count, *stops[axis + 1 :]))
        case _:
            return op.attributes
