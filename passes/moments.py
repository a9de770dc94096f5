# SPDX-License-Identifier: Apache-2.0
"""Means and variances of columns on a GPU: what is read once for both.

``sum((x - mean)²)`` needs the mean, so an image with its channels last would be read twice before it is normalised. Of
parts of it, sums of ``x``, ``d`` and ``d²`` need nothing but the part, where ``d`` is from the median of three pixels:

    sum((x - b)²) = Σ (sum(d²) - sum(d)²/n + n (m - b)²)

for any ``b`` and parts of ``n`` pixels and mean ``m``. ``sum(d²)`` is 1.4 times what is left
of it on average, also of data far from 0 and beside a few that are far from the others, so that no digits are lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from fusec.ir.attributes import ReduceAttributes, SliceAttributes
from fusec.ir.graph import Graph
from fusec.ir.nodes import Op, Value
from fusec.passes.cse import cse
from fusec.passes.groups.grow import is_cheap
from fusec.passes.outputs import input_strides
from fusec.passes.reduced_axes import Moved, Order, order_of
from fusec.passes.rewrite import Outcome, Rewriter, rewrite, rule
from fusec.passes.squares import squared_difference
from fusec.tile.views import under_views

FEWEST = 1 << 19
"""Elements below which a kernel for rows, which reads lines of them, is sooner done than three kernels that start one
after another: a group norm of 2×320×64² takes 54 µs as one on an H200, 14 as three."""

MOST_PIXELS = 1 << 12
"""Pixels of a part that one block reads."""

FEWEST_PIXELS = 1 << 6
"""Fewer would leave as much to put together as there was."""

_COLUMNS = 64
"""Neighbouring columns that a block takes."""

_BLOCKS = 6
"""Blocks for each multiprocessor that keep it busy."""


def moments_of_parts(graph: Graph, sms: int, fewest: int = FEWEST) -> Graph:
    """The graph with the sums of columns' means, and of squares around them, made of parts, for so many
    multiprocessors; of arrays of at least so many elements."""
    producers = graph.producers()
    found = _sums(graph, producers)
    if not found:
        return graph
    strides = input_strides(graph)

    @rule("reduce_sum")
    def of_parts(r: Rewriter) -> Outcome:
        """sum(x), sum((x - b)²) ⇒ what sums of d and d² of parts give"""
        if r.op.result.name not in found:
            return None
        x, around = r.operands[0], None
        if found.pop(r.op.result.name):  # what it becomes has its name
            difference = squared_difference(r.op, r.producer)
            if difference is None:
                return None
            x, around = difference.operands
        order = order_of(x, r.op.expect(ReduceAttributes).axes, producers, strides, fewest)
        if order is None or max(order.first) - min(order.first) >= len(order.first):
            return None  # what is reduced does not lie together
        return _of_parts(r, x, around, order, producers, sms)

    # The parts of a mean and of the squares around it are the same.
    return cse(rewrite(graph, (of_parts,)))


def _sums(graph: Graph, producers: Mapping[Value, Op]) -> dict[str, bool]:
    """By name the sums that means are made of, and (True) the sums of squares around them."""
    found: dict[str, bool] = {}
    for op in graph.ops:
        centred = squared_difference(op, producers.get)
        if centred is None or centred.operands[0].type != centred.result.type:
            continue
        mean = producers.get(under_views(centred.operands[1], producers))
        total = producers.get(mean.operands[0]) if mean is not None and mean.name in ("div", "mul") else None
        if total is None or total.name != "reduce_sum" or total.attributes != op.attributes:
            continue
        if total.operands[0] is centred.operands[0]:
            found |= {total.result.name: False, op.result.name: True}
    return found


def _of_parts(
    r: Rewriter, x: Value, around: Value | None, order: Order, producers: Mapping[Value, Op], sms: int
) -> Outcome:
    """The sum of ``x``, or of its squares around a value."""
    whole = Moved(r, producers, x, order).of(x)
    extents, axis = whole.type.static_shape, min(order.first)
    pixels, columns = prod(extents[a] for a in order.first), extents[-1]
    parts = _parts(pixels, prod(extents[:axis]) * -(-columns // _COLUMNS), sms)
    count = pixels // parts
    apart = r.reshape(whole, (*extents[:axis], parts, count, columns), hint="apart")
    shape = [x.type.static_shape[a] for a in order.left]
    shape.insert(axis, parts)
    if around is None:
        total = r.reshape(r.reduce("reduce_sum", apart, [axis + 1], "sums"), shape)
    else:
        near = _median(r, [_at(r, whole, apart.type.static_shape, axis + 1, k) for k in (0, count // 2, count - 1)])
        d = r.emit("sub", apart, near, hint="deviations")
        rest = r.reduce("reduce_sum", d, [axis + 1], "rest")
        squares = r.reduce("reduce_sum", r.emit("mul", d, d, hint="squares"), [axis + 1], "squares_of_parts")
        n = r.constant(float(count), x)
        further = r.emit("div", rest, n, hint="further")
        within = r.emit("sub", squares, r.emit("mul", rest, further), hint="within")
        # The part's mean, and what it is rounded by.
        near = r.reshape(near, rest.type.static_shape)
        mean = r.emit("add", near, further, hint="means_of_parts")
        left = r.emit("add", r.emit("sub", near, mean), further, hint="rounded_by")
        given = r.reshape(around, (*(1 for _ in range(x.type.rank - around.type.rank)), *around.type.static_shape))
        given = r.permute(given, order.whole)
        stays = [given.type.static_shape[order.whole.index(a)] for a in order.left]
        stays.insert(axis, 1)
        away = r.emit("sub", r.reshape(mean, shape), r.reshape(given, stays), hint="away")
        away = r.emit("add", away, r.reshape(left, shape))
        between = r.emit("mul", n, r.emit("mul", away, away), hint="between")
        total = r.emit("add", r.reshape(within, shape), between)
    over = [axis, *(order.left.index(a) + 1 for a in order.last)]
    return order.as_asked(r, r.reduce("reduce_sum", total, over, "of_parts"))


def _median(r: Rewriter, values: Sequence[Value]) -> Value:
    """Of three."""
    a, b, c = values
    least, most = r.emit("minimum", a, b), r.emit("maximum", a, b)
    return r.emit("maximum", least, r.emit("minimum", most, c), hint="near")


def _at(r: Rewriter, value: Value, apart: tuple[int, ...], axis: int, position: int) -> Value:
    """One position along an axis of a value taken apart. Of what is computed, from that position of what it is made of:
    a kernel reads this, where else all of it would be in memory. What a matmul gives is in memory when it is
    rounded."""
    op = r.producer(value)
    if op is not None and op.definition.kind == "elementwise" and is_cheap(op) and not _rounds_matmul(r, op):
        arrays = [v for v in op.operands if v.type.rank]
        if all(v.type.shape == value.type.shape for v in arrays):
            made = (_at(r, v, apart, axis, position) if v.type.rank else v for v in op.operands)
            return r.emit(op.name, *made, attributes=op.attributes, hint="one")
    one = SliceAttributes.of_axes(apart, {axis: (position, position + 1)})
    return r.emit("slice", r.reshape(value, apart), attributes=one, hint="one")


def _rounds_matmul(r: Rewriter, op: Op) -> bool:
    """Whether an op gives a matmul's results in fewer bits, perhaps after some maps."""
    if op.name != "cast" or op.operands[0].type.dtype.bits <= op.result.type.dtype.bits:
        return False
    value = op.operands[0]
    while (made := r.producer(value)) is not None and made.definition.kind in ("elementwise", "view"):
        value = max(made.operands, key=lambda v: v.type.most)
    return made is not None and made.name == "dot"


def _parts(pixels: int, blocks: int, sms: int) -> int:
    """Equal parts of so many pixels: enough to keep the multiprocessors busy where one part would be so many blocks."""
    wanted = max(-(-_BLOCKS * sms // max(blocks, 1)), -(-pixels // MOST_PIXELS))
    able = [n for n in range(1, pixels // FEWEST_PIXELS + 1) if pixels % n == 0] or [1]
    return next((n for n in able if n >= wanted), able[-1])
