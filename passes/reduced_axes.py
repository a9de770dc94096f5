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
from fusec.tile.views import Strides, strided_view

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


def reduce_in_memory_order(graph: Graph, fewest: int = FEWEST, *, variances: bool = False) -> Graph:
    """The graph with such reductions of at least so many elements in the order of memory. ``variances``: those of a
    mean and of the squares around it are of parts first, which a kernel reads once for both."""
    strides = input_strides(graph)
    producers = graph.producers()
    spread = _spreads(graph, producers) if variances else {}

    @rule(*(name for name, op in OPS.items() if op.kind == "reduce"))
    def in_memory_order(r: Rewriter) -> Outcome:
        """reduce(x) ⇒ reduce(reduce(permute(x) to the order of memory, the axes in front), the axes behind)"""
        (x,) = r.operands
        assert isinstance(r.op.attributes, ReduceAttributes)
        order = _order_of(x, r.op.attributes.axes, producers, strides, fewest)
        if order is None:
            return None
        if r.op.result.name in spread:
            return _in_parts(r, producers, order, spread[r.op.result.name])
        return _in_memory_order(r, producers, order)

    return rewrite(graph, (in_memory_order,))


@dataclass(frozen=True)
class _Order:
    """The axes of an array in the order of memory.

    whole: all of them. first: places in it that are reduced in front of what stays. left: the axes after that. last:
    those of them that are reduced then.
    """

    whole: list[int]
    first: list[int]
    left: list[int]
    last: list[int]

    @property
    def columns(self) -> int:
        """How many axes lie behind all that is reduced first."""
        return len(self.whole) - 1 - max(self.first)


def _order_of(
    x: Value, axes: Sequence[int], producers: Mapping[Value, Op], strides: Mapping[Value, Strides], fewest: int
) -> _Order | None:
    """None for what is reduced well as it is."""
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
    if order == long and not last:
        return None  # columns as they lie
    whole = [*(a for a in range(len(shape)) if a not in order), *order]
    first = [whole.index(a) for a in axes if a not in last]
    return _Order(whole, first, [a for a in whole if a not in axes or a in last], last)


def _in_memory_order(r: Rewriter, producers: Mapping[Value, Op], order: _Order) -> Value:
    (x,) = r.operands
    assert isinstance(r.op.attributes, ReduceAttributes)
    moved = _Moved(r, producers, x, order.whole, order.columns)
    made = r.reduce(r.op.name, moved.of(x), order.first, "partial", r.op.attributes.dtype)
    made = r.reshape(made, [x.type.static_shape[a] for a in order.left])
    if order.last:
        made = r.reduce(r.op.name, made, [order.left.index(a) for a in order.last], "behind")
    return _as_asked(r, made, order)


def _as_asked(r: Rewriter, made: Value, order: _Order) -> Value:
    """What stays of a reduction, its axes in the order in which they are given."""
    kept = [a for a in order.left if a not in order.last]
    result = r.permute(made, [kept.index(a) for a in sorted(kept)])
    return r.cast(result, r.op.result.type.dtype)


def _source(value: Value, producers: Mapping[Value, Op]) -> Value:
    """What a value is a view of."""
    while (made := producers.get(value)) is not None and made.definition.kind == "view":
        value = made.operands[0]
    return value


def _spreads(graph: Graph, producers: Mapping[Value, Op]) -> dict[str, Value | None]:
    """The sums of means by name, and the sums of squares around them with the mean that is subtracted there."""
    found: dict[str, Value | None] = {}
    for op in graph.ops:
        square = producers.get(op.operands[0]) if op.name == "reduce_sum" else None
        if square is None or square.name != "mul" or square.operands[0] is not square.operands[1]:
            continue
        centred = producers.get(square.operands[0])
        if centred is None or centred.name != "sub":
            continue
        mean = producers.get(_source(centred.operands[1], producers))
        total = producers.get(mean.operands[0]) if mean is not None and mean.name == "div" else None
        if total is None or total.name != "reduce_sum" or total.attributes != op.attributes:
            continue
        if total.operands[0] is centred.operands[0] and centred.operands[0].type == square.result.type:
            found |= {total.result.name: None, op.result.name: centred.operands[1]}
    return found


MOST_PLACES_OF_PART = 1 << 10
"""Places in front of what stays of which one block takes mean and squares: for 64 channels of bf16 that is 128 KiB, to
which it comes back while they are in a cache."""


FEWEST_PLACES_OF_PART = 1 << 6
"""Fewer would leave as much to put together as there was."""


def _in_parts(r: Rewriter, producers: Mapping[Value, Op], order: _Order, mean: Value | None) -> Value:
    """sum(x) ⇒ the sum of parts' sums; sum((x - mean)²) ⇒ the sum over parts of ``sum(d²) + e * (2 * sum(d) + n * e)``,
    where ``d`` is from a part's own mean and ``e`` from there to the mean.

    ``sum(d)`` is what the mean's rounding leaves: without, data far from 0 would lose digits.
    """
    x = r.operands[0]
    if mean is not None:
        square = r.producer(x)
        assert square is not None
        centred = r.producer(square.operands[0])
        assert centred is not None
        x, mean = centred.operands
    shape = x.type.static_shape
    moved = _Moved(r, producers, x, order.whole, order.columns).of(x)
    axis = min(order.first)
    places = prod(moved.type.static_shape[a] for a in order.first)
    parts = _parts(moved.type.static_shape[axis], places)
    extents = moved.type.static_shape
    apart = r.reshape(moved, (*extents[:axis], parts, extents[axis] // parts, *extents[axis + 1 :]), hint="apart")
    axes = [a + 1 for a in order.first]
    whole = [shape[a] for a in order.left]
    whole.insert(axis, parts)
    behind = [axis, *(order.left.index(a) + 1 for a in order.last)]
    sums = r.reduce("reduce_sum", apart, axes, "sums")
    if mean is None:
        return _as_asked(r, r.reduce("reduce_sum", r.reshape(sums, whole), behind, "behind"), order)
    count = r.constant(float(places // parts), x)
    means = r.emit("div", sums, count, hint="means")
    deviations = r.emit("sub", apart, r.keep(means, apart, axes), hint="deviations")
    squares = r.reduce("reduce_sum", r.emit("mul", deviations, deviations, hint="squares"), axes, "partial")
    given = r.reshape(mean, (*(1 for _ in range(len(shape) - mean.type.rank)), *mean.type.static_shape))
    given = r.permute(given, order.whole)
    stays = [given.type.static_shape[order.whole.index(a)] for a in order.left]
    stays.insert(axis, 1)
    ahead = len(stays) - order.columns
    given = r.broadcast(r.reshape(given, stays), (*stays[:ahead], *whole[ahead:]))
    given = r.reshape(given, (*stays[:ahead], *sums.type.static_shape[ahead:]))
    away = r.emit("sub", means, given, hint="away")
    twice = r.emit("mul", r.reduce("reduce_sum", deviations, axes, "rest"), r.constant(2.0, x), hint="twice")
    factor = r.emit("add", twice, r.emit("mul", away, count, hint="times"), hint="factor")
    total = r.reshape(r.emit("add", squares, r.emit("mul", away, factor, hint="between")), whole)
    return _as_asked(r, r.reduce("reduce_sum", total, behind, "behind"), order)


def _parts(extent: int, places: int) -> int:
    """The fewest equal parts of an axis that have few enough places each, of all that are reduced with it; as many as
    there can be where those would have too few."""
    able = [n for n in range(1, extent + 1) if extent % n == 0 and (n == 1 or places // n >= FEWEST_PLACES_OF_PART)]
    return next((n for n in able if places // n <= MOST_PLACES_OF_PART), able[-1])


class _Moved:
    """Values with their axes in another order, and the last ``columns`` of them as one.

    Cheap maps are made anew, so that no other reader wants them in memory.
    """

    def __init__(
        self, r: Rewriter, producers: Mapping[Value, Op], whole: Value, order: Sequence[int], columns: int
    ) -> None:
        self.r, self.producers, self.order = r, producers, order
        self.shape, self.columns = whole.type.static_shape, columns
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
        """view(f(x)) ⇒ f(view(x)), where x is f's only array: a cast that others read, too, is not in memory for it."""
        view = self.producers.get(value)
        if view is None or view.definition.kind != "view":
            return None
        op = self.producers.get(view.operands[0])
        if op is None or op.definition.kind != "elementwise" or not is_cheap(op):
            return None
        if [v.type.shape for v in op.operands if v.type.rank] != [op.result.type.shape]:
            return None
        shown = (self.r.emit(view.name, v, attributes=view.attributes) if v.type.rank else v for v in op.operands)
        return replace(op, operands=tuple(shown), results=(value,))

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
    """Elements in memory from one place to the next along each axis, of the array of its shape that a value is made
    of."""
    base = _source(value, producers)
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
