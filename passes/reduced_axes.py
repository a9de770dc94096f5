# SPDX-License-Identifier: Apache-2.0
"""Reductions of arrays whose last axis is not the last one in memory, as of images with their channels last.

A kernel for rows would read an element of each line at a time. In the order of memory the innermost axis stays, and
its elements are side by side, or it is reduced last, after all axes around what stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from fusec.ir.attributes import DotAttributes, ReduceAttributes
from fusec.ir.graph import Graph
from fusec.ir.nodes import Op, Value
from fusec.ir.ops import OPS
from fusec.passes.groups.grow import is_cheap
from fusec.passes.outputs import input_strides
from fusec.passes.rewrite import Outcome, Rewriter, rewrite, rule
from fusec.tile.views import Strides, strided_view, under_views

FEWEST = 1 << 14
"""Elements below which a reduction stays as it is: more kernels cost more than its lines. GroupNorm of 128×64², f32,
one thread of Zen 4, ms: 2.6 as it is, 0.9 in the order of memory."""

FEWEST_FOR_BLOCKS = 1 << 22
"""The same for a GPU, where a norm's five kernels start in 20 µs, and one of rows of such lines reads 0.6 TB/s."""

LONGEST = 1 << 7
"""Most elements that are reduced behind what stays: more are runs of memory, which a kernel for rows reads well."""

_MOST_AGAIN = 16
"""Values of a chain of maps that are made anew in the order of memory."""

SHORTEST = 8
"""Fewest elements that are reduced in front of what stays."""


def reduce_in_memory_order(graph: Graph, fewest: int = FEWEST) -> Graph:
    """The graph with such reductions of at least so many elements in the order of memory."""
    strides = input_strides(graph)
    producers = graph.producers()

    @rule(*(name for name, op in OPS.items() if op.kind == "reduce"))
    def in_memory_order(r: Rewriter) -> Outcome:
        """reduce(x) ⇒ reduce(reduce(permute(x) to the order of memory, the axes in front), the axes behind)"""
        return _in_memory_order(r, producers, strides, fewest)

    return rewrite(graph, (in_memory_order,))


def _in_memory_order(
    r: Rewriter, producers: Mapping[Value, Op], strides: Mapping[Value, Strides], fewest: int
) -> Outcome:
    (x,) = r.operands
    attributes = r.op.expect(ReduceAttributes)
    order = order_of(x, attributes.axes, producers, strides, fewest)
    if order is None or order.as_it_lies:
        return None
    moved = Moved(r, producers, x, order).of(x)
    made = r.reduce(r.op.name, moved, order.first, "partial", attributes.dtype)
    made = r.reshape(made, [x.type.static_shape[a] for a in order.left])
    if order.last:
        made = r.reduce(r.op.name, made, [order.left.index(a) for a in order.last], "behind")
    return order.as_asked(r, made)


@dataclass(frozen=True)
class Order:
    """The axes of an array that is reduced, in the order of memory.

    whole: all of them. first: positions in it that are reduced in front of what stays. left: the axes after that. last:
    those of them that are reduced then. as_it_lies: the given order is that of memory, and nothing is reduced last.
    """

    whole: list[int]
    first: list[int]
    left: list[int]
    last: list[int]
    as_it_lies: bool

    @property
    def columns(self) -> int:
        """How many axes lie behind all that is reduced first."""
        return len(self.whole) - 1 - max(self.first)

    def as_asked(self, r: Rewriter, made: Value) -> Value:
        """What stays of a reduction, its axes in the order in which they are given."""
        retained = [a for a in self.left if a not in self.last]
        result = r.permute(made, [retained.index(a) for a in sorted(retained)])
        return r.cast(result, r.op.result.type.dtype)


def order_of(
    x: Value, axes: Sequence[int], producers: Mapping[Value, Op], strides: Mapping[Value, Strides], fewest: int
) -> Order | None:
    """None for fewer elements than that, and for what a kernel for rows reads well."""
    if not x.type.is_static or x.type.size < fewest:
        return None
    shape = x.type.static_shape
    found = _steps(x, producers, strides)
    steps = [s for s in found or () if isinstance(s, int)]
    if len(steps) < len(shape):
        return None
    long = [a for a, n in enumerate(shape) if n > 1 and steps[a]]
    order = sorted(long, key=lambda a: (-abs(steps[a]), a))
    behind = next((k for k in range(len(order)) if order[len(order) - 1 - k] not in axes), len(order))
    front, last = order[: len(order) - behind], order[len(order) - behind :]
    outer = [a for a in front if a in axes]
    if prod(shape[a] for a in outer) < SHORTEST or prod(shape[a] for a in last) > LONGEST:
        return None
    whole = [*(a for a in range(len(shape)) if a not in order), *order]
    first = sorted(whole.index(a) for a in axes if a not in last)
    return Order(whole, first, [a for a in whole if a not in axes or a in last], last, order == long and not last)


class Moved:
    """Values with their axes in the order of memory, and those behind what is reduced first as one.

    Cheap maps are made anew, so that no other reader wants them in memory.
    """

    def __init__(self, r: Rewriter, producers: Mapping[Value, Op], whole: Value, order: Order) -> None:
        self.r, self.producers, self.order = r, producers, order.whole
        self.shape, self.columns = whole.type.static_shape, order.columns
        self.made: dict[Value, Value] = {}

    def of(self, value: Value) -> Value:
        if not value.type.rank:
            return value
        if value not in self.made:
            op = self._before_view(value) or self.producers.get(value)
            again = op is not None and op.definition.kind == "elementwise" and is_cheap(op)
            if again and op is not None and value.type.static_shape == self.shape and len(self.made) < _MOST_AGAIN:
                moved = self.r.emit(op.name, *(self.of(v) for v in op.operands), attributes=op.attributes)
            else:
                moved = self._view(value)
            self.made[value] = moved
        return self.made[value]

    def _before_view(self, value: Value) -> Op | None:
        """view(f(x)) ⇒ f(view(x)), where x is f's only array: a cast that others read, too, is not in memory for it.
        Through several views, too, as of a convolution's result, which is permuted before its channels are grouped."""
        views: list[Op] = []
        op = self.producers.get(value)
        while op is not None and op.definition.kind == "view":
            views.append(op)
            op = self.producers.get(op.operands[0])
        if not views or op is None or op.definition.kind != "elementwise" or not is_cheap(op):
            return None
        if [v.type.shape for v in op.operands if v.type.rank] != [op.result.type.shape]:
            return None
        return replace(op, operands=tuple(self._shown(v, views) for v in op.operands), results=(value,))

    def _shown(self, value: Value, views: Sequence[Op]) -> Value:
        """A value under views, the last of which stands first."""
        for view in reversed(views) if value.type.rank else ():
            value = self.r.emit(view.name, value, attributes=view.attributes)
        return value

    def _view(self, value: Value) -> Value:
        rank, columns = len(self.shape), self.columns
        value = self.r.reshape(value, (*(1 for _ in range(rank - value.type.rank)), *value.type.shape))
        value = self.r.permute(value, self.order)
        shape = value.type.static_shape
        wide = tuple(self.shape[a] for a in self.order[-columns:])
        if shape[-columns:] not in (wide, (1,) * columns):
            value = self.r.broadcast(value, (*shape[:-columns], *wide))
        return self.r.reshape(value, (*shape[:-columns], prod(value.type.static_shape[-columns:])))


def _steps(value: Value, producers: Mapping[Value, Op], strides: Mapping[Value, Strides]) -> Strides | None:
    """Elements in memory from one position to the next along each axis, of the array of its shape that a value is made
    of."""
    base = under_views(value, producers)
    made = producers.get(base)
    if made is not None and made.definition.kind == "elementwise":
        whole = next((v for v in made.operands if v.type.shape == base.type.shape), None)
        steps = None if whole is None else _steps(whole, producers, strides)
        if steps is None:
            return None
        strides = {base: steps}
    view = None if _is_batched_matmul(made) else strided_view(value, producers, strides)
    return None if view is None else view.strides


def _is_batched_matmul(op: Op | None) -> bool:
    """Whether a value is scores of an attention, which a kernel family reduces in its own order."""
    return op is not None and isinstance(op.attributes, DotAttributes) and bool(op.attributes.lhs_batch)
