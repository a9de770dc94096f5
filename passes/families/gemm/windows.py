# SPDX-License-Identifier: Apache-2.0
"""Matmuls over windows of images on a GPU: what TMA's im2col mode fetches, and operands put in its order first."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

from fusec.ir.attributes import ConstantAttributes, DotAttributes, PadAttributes, SliceAttributes, WindowsAttributes
from fusec.ir.graph import Graph
from fusec.ir.indexing import round_up
from fusec.ir.nodes import Op, Value
from fusec.ir.ops.contract import free_axes
from fusec.ir.types import fixed
from fusec.passes.convolution import Convolution, Windowed, convolution_of
from fusec.passes.families.map.match import match_maps
from fusec.passes.groups.fused import build_fused_graph
from fusec.passes.groups.partition import Group, Partition
from fusec.passes.lower.context import LoweringContext
from fusec.passes.lower.pieces import Alternative, Pieces
from fusec.passes.rewrite import Outcome, Rewriter, rewrite, rule
from fusec.tile.scalar import ScalarExpr, loads
from fusec.tile.templates import WindowAxis, Windows
from fusec.tile.views import joined, strided_view, under_views

_ROW_BYTES = 128
"""Of one window's channels that one copy brings."""

_STEP_BYTES = 16
"""Steps of a tensor map but the innermost are multiples of it."""

_FARTHEST = {1: 32767, 2: 127, 3: 15}
"""By how many elements windows may begin before an image and end behind it, by the number of its axes."""

_MOST_GROUPS = 64
"""Of a convolution that a kernel has maps for: they are parameters, 128 bytes each."""

_FEW_CHANNELS = 8
"""Channels below which the taps of a row of a window are put side by side first."""


def windows_of(context: LoweringContext, dot: Op, element: ScalarExpr) -> Windows | None:
    """What TMA fetches of the left operand, whose element is given; None where it can't, or the operand is no
    windows."""
    found = convolution_of(dot, context.producers)
    if found is None or found.batch is None or found.channels is None or not _in_order(found):
        return None
    view = strided_view(found.image, context.producers, context.strides)
    if view is None or view.base not in context.body.inputs or fixed([view.offset]) != (0,):
        return None
    shape, steps = found.image.type.static_shape, fixed(view.strides)
    channels, along = found.depth, found.windowed[-1]
    if not _steps_fit(found, steps) or found.groups > _MOST_GROUPS:
        return None
    axes = tuple(
        WindowAxis(w.extent, _step(steps[w.axis], shape[w.axis]), w.count, w.size, w.stride, w.dilation, w.low)
        for w in found.windowed
    )
    if _is_run(found, steps):
        axes = (*axes[:-1], WindowAxis(along.count, along.stride * channels, along.count, 1, 1, 1, 0))
        channels *= along.size
    far = _FARTHEST[len(axes)]
    if any(max(abs(w.low), abs(w.high), (w.size - 1) * w.dilation) > far or w.stride > 8 for w in found.windowed):
        return None
    read = [x for x in loads(element) if x.buffer.space == "parameter"]
    if len(read) != 1:
        return None
    step = _step(steps[found.batch], shape[found.batch])
    return Windows(read[0], shape[found.batch], step, channels, axes, found.groups)


def windows_in_memory(context: LoweringContext, found: Convolution, element: ScalarExpr) -> Windows | None:
    """The windows of images in memory that have their channels side by side, pixels at multiples of 16 bytes; None for
    others. ``element``: of the left operand."""
    if found.batch is None or found.channels is None or not _in_order(found):
        return None
    view = strided_view(found.image, context.producers, context.strides)
    read = [x for x in loads(element) if x.buffer.space == "parameter"]
    if view is None or view.base not in context.body.inputs or fixed([view.offset]) != (0,) or len(read) != 1:
        return None
    shape, steps, item = found.image.type.static_shape, fixed(view.strides), found.image.type.dtype.itemsize
    axes = (found.batch, *(w.axis for w in found.windowed))
    if steps[found.channels] != 1 or any(shape[a] != 1 and (steps[a] <= 0 or steps[a] * item % 16) for a in axes):
        return None
    windowed = tuple(
        WindowAxis(w.extent, _step(steps[w.axis], shape[w.axis]), w.count, w.size, w.stride, w.dilation, w.low)
        for w in found.windowed
    )
    step = _step(steps[found.batch], shape[found.batch])
    return Windows(read[0], shape[found.batch], step, found.depth, windowed, found.groups)


def fetched_depth(context: LoweringContext, found: Convolution) -> int:
    """Elements along K that are multiplied: whole copies of channels, the rest of the last one zeros."""
    if found.channels is None:
        return found.taps
    view = strided_view(found.image, context.producers, context.strides)
    channels, item = found.depth, found.image.type.dtype.itemsize
    taps = found.taps
    if view is not None and _is_run(found, fixed(view.strides)):
        along = found.windowed[-1].size
        taps, channels = taps // along, channels * along
    return taps * round_up(channels, _ROW_BYTES // item)


def _is_run(found: Convolution, steps: tuple[int, ...]) -> bool:
    """Whether a window's taps along the last axis are one run of memory, which takes fewer copies as channels than
    tap by tap: the rows of the tensor map are windows then, and overlap."""
    w = found.windowed[-1]
    assert found.channels is not None
    channels, item = found.depth, found.image.type.dtype.itemsize
    if w.size == 1 or w.dilation != 1 or w.low or w.high > 0 or steps[w.axis] != channels:
        return False
    once = _ROW_BYTES // item
    fewer = round_up(w.size * channels, once) < w.size * round_up(channels, once)
    return fewer and _begins(w, channels * item)


def _begins(w: Windowed, bytes_: int) -> bool:
    """Whether runs of so many bytes a tap, and weights for them, begin where a tensor map can."""
    return w.stride * bytes_ % _STEP_BYTES == 0 and w.size * bytes_ % _STEP_BYTES == 0


def _step(step: int, extent: int) -> int:
    """Of an axis of one element any step will do; one that a tensor map takes."""
    return step if extent != 1 else _ROW_BYTES


def _in_order(found: Convolution) -> bool:
    """Whether K goes through taps as the rows go through windows, and through all channels of each."""
    attributes, shape = found.dot.expect(DotAttributes), found.dot.operands[0].type.shape
    wide = [n for n, a in enumerate(attributes.lhs_contract) if shape[a] != 1]
    tap_axes = [w.tap_axis for w in found.windowed if w.size != 1]
    assert found.channels is not None
    if found.depth == 1:
        return wide == tap_axes
    return (
        [n for n in wide if n in tap_axes] == tap_axes and len(wide) == len(tap_axes) + 1 and wide[-1] not in tap_axes
    )


def operands_in_order(context: LoweringContext) -> list[Alternative]:
    """The group in pieces: what puts the operands as TMA fetches them, then the matmul; none where they lie so, or it
    is no convolution.

    Weights are copied with K along memory, images with their channels last. Where there are few channels, no multiple
    of 16 bytes, the taps of a window along a row become one run of a padded copy, or, where they are apart, channels.
    """
    dots = context.anchors("dot")
    found = convolution_of(dots[0], context.producers) if len(dots) == 1 else None
    if found is None and len(dots) == 1 and _lies_apart(context, dots[0]):
        return [Alternative("weights first", lambda c: _pieces(c, weights_along))]
    if found is None or found.channels is None or found.batch is None or not _in_order(found) or not _has_rows(found):
        return []
    item, channels = found.image.type.dtype.itemsize, found.image.type.static_shape[found.channels]
    fetched = _is_fetched(context, found)
    if found.groups > 1 and found.depth * item % _STEP_BYTES:
        return []
    if not fetched and channels * item % _STEP_BYTES:
        return [Alternative("rows of windows first", lambda c: _pieces(c, lambda r: rows_of_windows(r, found)))]
    if not fetched:
        return [Alternative("operands in order first", lambda c: _pieces(c, lambda r: channels_last(r, found)))]
    if _lies_along(context, dots[0]):
        return []
    return [Alternative("weights first", lambda c: _pieces(c, weights_along))]


def _is_fetched(context: LoweringContext, found: Convolution) -> bool:
    """Whether the image's memory is as TMA fetches it."""
    view = strided_view(found.image, context.producers, context.strides)
    return view is not None and _steps_fit(found, fixed(view.strides)) and fixed([view.offset]) == (0,)


def _steps_fit(found: Convolution, steps: tuple[int, ...]) -> bool:
    """Whether a tensor map takes the steps of its axes; along a run it steps from window to window."""
    shape, item = found.image.type.static_shape, found.image.type.dtype.itemsize
    assert found.batch is not None
    assert found.channels is not None
    windowed = found.windowed[:-1] if _is_run(found, steps) else found.windowed
    outer = [steps[a] for a in (found.batch, *(w.axis for w in windowed)) if shape[a] != 1]
    outer += [found.depth] if found.groups > 1 else []
    return steps[found.channels] == 1 and all(s > 0 and s * item % _STEP_BYTES == 0 for s in outer)


def _lies_along(context: LoweringContext, dot: Op) -> bool:
    """Whether the right operand's contracted axes are one in memory, elements side by side."""
    attributes, value = dot.expect(DotAttributes), dot.operands[1]
    view = strided_view(value, context.producers, context.strides)
    if view is None:  # what is computed is another's business
        return under_views(value, context.producers) not in context.body.inputs
    shape, strides = value.type.static_shape, fixed(view.strides)
    along = joined([(shape[a], strides[a]) for a in attributes.rhs_contract])
    return along is not None and along[1] == 1


def _lies_apart(context: LoweringContext, dot: Op) -> bool:
    """Whether the right operand shows memory in which neither its columns nor what is contracted are side by side."""
    attributes, value = dot.expect(DotAttributes), dot.operands[1]
    whole = not attributes.rhs_batch and value.type.is_static and dot.operands[0].type.dtype.bits == 16
    if not whole or under_views(value, context.producers) not in context.body.inputs:
        return False
    view = strided_view(value, context.producers, context.strides)
    if view is None:
        return True
    shape, strides = value.type.static_shape, fixed(view.strides)
    sides = attributes.rhs_contract, free_axes(len(shape), (), attributes.rhs_contract)
    joint = [joined([(shape[a], strides[a]) for a in side]) for side in sides]
    return not any(side is not None and side[1] == 1 for side in joint) and value.type.size > 1


def _has_rows(found: Convolution) -> bool:
    """Whether the image's axes are batch, channels and spatial ones, with windows along all of these."""
    return found.image.type.rank == len(found.windowed) + 2


def _channels_behind(r: Rewriter, found: Convolution) -> Convolution:
    """With the image's axes in the order batch, spatial axes, channels."""
    assert found.batch is not None
    assert found.channels is not None
    order = (found.batch, *(w.axis for w in found.windowed), found.channels)
    if order == tuple(range(len(order))):
        return found
    windowed = tuple(replace(w, axis=n + 1) for n, w in enumerate(found.windowed))
    image = r.permute(found.image, order)
    return replace(found, image=image, batch=0, channels=len(order) - 1, windowed=windowed)


def _pieces(context: LoweringContext, ordered: Callable[[Rewriter], Outcome]) -> Pieces:
    body = rewrite(context.body, (rule("dot")(ordered),))
    partition = Partition(body)
    (dot,) = (op for op in body.ops if op.name == "dot")
    before = _above(body, set(dot.operands))
    makers = _above(body, {op.result for op in before if op.name == "copy"})
    group = Group("gemm", dot.result.type.shape)
    partition.add(group, [op for op in body.ops if op not in makers and op not in partition.free])
    match_maps(partition, lambda declined: None)
    return Pieces(tuple(op for op in build_fused_graph(partition).ops if op.name == "fused"))


def _above(body: Graph, values: set[Value]) -> set[Op]:
    """The ops that the values are made by."""
    found: set[Op] = set()
    for op in reversed(body.ops):
        if not values.isdisjoint(op.results):
            values.update(op.operands)
            found.add(op)
    return found


def weights_along(r: Rewriter) -> Outcome:
    """dot(x, w) ⇒ dot(x, copy(w)), the copy with its contracted axes last, in the dot's order"""
    attributes, (image, weight) = r.op.expect(DotAttributes), r.operands
    if r.producer(weight, "copy") is not None:
        return None
    laid, free = _contracted_last(r, weight, attributes)
    laid = r.emit("copy", laid, hint="laid_out")
    inner = tuple(range(free, laid.type.rank))
    made = _contracting(attributes, attributes.lhs_contract, inner, attributes.lhs_batch)
    return r.emit("dot", image, laid, attributes=made)


def channels_last(r: Rewriter, found: Convolution) -> Outcome:
    """dot(windows(pad(x)), w) ⇒ dot(windows(pad(copy(x))), copy(w))"""
    attributes, weight = r.op.expect(DotAttributes), r.operands[1]
    if r.producer(weight, "copy") is not None:
        return None
    found = _channels_behind(r, found)
    laid, free = _contracted_last(r, weight, attributes)
    laid = r.emit("copy", laid, hint="laid_out")
    sizes = (*(w.size for w in found.windowed), found.depth)
    laid = r.reshape(laid, (*laid.type.static_shape[:free], *sizes))
    return _product(r, r.emit("copy", found.image, hint="image"), found.windowed, laid, free, found.groups)


def rows_of_windows(r: Rewriter, found: Convolution) -> Outcome:
    """dot(windows(pad(x)), w) ⇒ dot(windows(y), copy(w)), y a copy in which a window's taps along a row are one run

    y is padded, and has as many channels as make windows begin at multiples of 16 bytes. Where windows are two rows
    apart (or three, ...), and have as many rows or a multiple, two rows of x are the channels of one of y. No window
    gets a row beside it: its weights would be 0, but 0 times an infinity is NaN.
    """
    attributes, weight = r.op.expect(DotAttributes), r.operands[1]
    if r.producer(weight, "copy") is not None:
        return None
    found = _channels_behind(r, found)
    *outer, last = found.windowed
    if last.dilation != 1:
        return _rows_apart(r, found)
    channels, item = found.image.type.static_shape[-1], found.image.type.dtype.itemsize
    together = _together(outer)
    wide = next(n for n in itertools.count(together * channels) if _begins(last, n * item))
    filled = wide - together * channels
    # The image: padded, rows together, then zeros as channels.
    width = (last.count - 1) * last.stride + last.size
    width = next(n for n in itertools.count(width) if n * wide * item % _STEP_BYTES == 0)
    around = {last.axis: (last.low, width - last.extent - last.low)}
    if together > 1:
        rows = outer[-1]
        taps = rows.size // together
        around[rows.axis] = (rows.low, (rows.count - 1 + taps) * together - rows.extent - rows.low)
        outer[-1] = replace(rows, extent=rows.count - 1 + taps, size=taps, stride=1, low=0)
    x = _rows_together(r, _padded(r, found.image, around), together)
    x = r.emit("copy", _padded(r, x, {x.type.rank - 1: (0, filled)}), hint="rows")
    # The weights in the same order.
    laid, free = _contracted_last(r, weight, attributes)
    laid = r.reshape(laid, (*laid.type.static_shape[:free], *(w.size for w in found.windowed), channels))
    laid = _rows_together(r, laid, together)
    laid = r.emit("copy", _padded(r, laid, {laid.type.rank - 1: (0, filled)}), hint="laid_out")
    return _product(r, x, [*outer, replace(last, extent=width, low=0)], laid, free)


def _together(outer: Sequence[Windowed]) -> int:
    """How many neighbouring rows are channels of one: as many as windows are apart, where their rows are so many."""
    rows = outer[-1] if outer else None
    return rows.stride if rows is not None and rows.dilation == 1 and rows.size % rows.stride == 0 else 1


def _rows_together(r: Rewriter, x: Value, together: int) -> Value:
    """``[..., rows, taps, channels]`` ⇒ ``[..., rows / together, taps, together * channels]``"""
    if together == 1:
        return x
    *outer, rows, taps, channels = x.type.static_shape
    n = len(outer)
    x = r.reshape(x, (*outer, rows // together, together, taps, channels))
    x = r.permute(x, (*range(n + 1), n + 2, n + 1, n + 3))
    return r.reshape(x, (*outer, rows // together, taps, together * channels))


def _rows_apart(r: Rewriter, found: Convolution) -> Outcome:
    """dot(windows(pad(x)), w) ⇒ dot(windows(pad(y)), copy(w)), y with each window's last axis among its channels"""
    attributes, weight = r.op.expect(DotAttributes), r.operands[1]
    *outer, last = found.windowed
    shape, rank = found.image.type.static_shape, found.image.type.rank
    x = _windowed(r, found.image, [last])
    x = r.permute(x, (*range(rank - 1), rank, rank - 1))
    row = last.size * shape[-1]
    wide = round_up(row, _FEW_CHANNELS)
    x = r.reshape(x, (*x.type.static_shape[: rank - 1], row))
    x = r.emit("copy", _padded(r, x, {rank - 1: (0, wide - row)}), hint="rows")
    laid, free = _contracted_last(r, weight, attributes)
    laid = r.reshape(laid, (*laid.type.static_shape[:free], *(w.size for w in outer), row))
    laid = r.emit("copy", _padded(r, laid, {laid.type.rank - 1: (0, wide - row)}), hint="laid_out")
    return _product(r, x, outer, laid, free)


def _contracted_last(r: Rewriter, weight: Value, attributes: DotAttributes) -> tuple[Value, int]:
    """A view of the weights with their groups first and their contracted axes last, in the dot's order; and how many
    axes are before these."""
    free = (*attributes.rhs_batch, *free_axes(weight.type.rank, attributes.rhs_batch, attributes.rhs_contract))
    return r.permute(weight, (*free, *attributes.rhs_contract)), len(free)


def _product(r: Rewriter, x: Value, axes: Sequence[Windowed], weight: Value, free: int, groups: int = 1) -> Value:
    """The dot of an image's windows, in the order of the weights' axes from ``free`` on."""
    attributes, rank = r.op.expect(DotAttributes), x.type.rank
    seen, batch = _windowed(r, x, axes), tuple[int, ...]()
    if groups > 1:
        shape = seen.type.static_shape
        channels = groups, shape[rank - 1] // groups
        seen, batch = r.reshape(seen, (*shape[: rank - 1], *channels, *shape[rank:])), (rank - 1,)
        rank += 1
    contract = (*range(rank, seen.type.rank), rank - 1), tuple(range(free, weight.type.rank))
    made = r.emit("dot", seen, weight, attributes=_contracting(attributes, *contract, batch))
    return r.reshape(made, r.op.result.type.shape)


def _contracting(
    attributes: DotAttributes, lhs: tuple[int, ...], rhs: tuple[int, ...], batch: tuple[int, ...] = ()
) -> DotAttributes:
    """The attributes with other axes; the right operand's batch is in front."""
    return replace(attributes, lhs_contract=lhs, rhs_contract=rhs, lhs_batch=batch, rhs_batch=tuple(range(len(batch))))


def _padded(r: Rewriter, x: Value, around: dict[int, tuple[int, int]]) -> Value:
    """Zeros before and after some axes; elements that no window reaches are left out."""
    rank, shape = x.type.rank, x.type.static_shape
    if any(high < 0 for _, high in around.values()):
        reached = {a: (0, shape[a] + min(high, 0)) for a, (_, high) in around.items()}
        x = r.emit("slice", x, attributes=SliceAttributes.of_axes(shape, reached))
    low, high = (tuple(max(around.get(a, (0, 0))[side], 0) for a in range(rank)) for side in (0, 1))
    if not any((*low, *high)):
        return x
    zero = r.constant_of(ConstantAttributes(0.0, x.type.dtype, x.type.device))
    return r.emit("pad", x, zero, attributes=PadAttributes(low, high))


def _windowed(r: Rewriter, x: Value, axes: Sequence[Windowed]) -> Value:
    """The padded windows along some axes, their taps along new last ones."""
    x = _padded(r, x, {w.axis: (w.low, w.high) for w in axes})
    for w in axes:
        reach = (w.size - 1) * w.dilation + 1
        x = r.emit("windows", x, attributes=WindowsAttributes(w.axis, reach, w.stride))
        if w.dilation > 1:
            shape = x.type.static_shape
            steps = (*(1 for _ in shape[:-1]), w.dilation)
            x = r.emit("slice", x, attributes=SliceAttributes((0,) * len(shape), shape, steps))
    return x
