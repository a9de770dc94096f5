"""Matmuls over windows of images on a GPU: what TMA's im2col mode fetches, and weights put in its order first."""

from __future__ import annotations

from dataclasses import replace

from fusec.ir.attributes import NO_ATTRIBUTES, DotAttributes, PermuteAttributes
from fusec.ir.graph import Graph
from fusec.ir.nodes import Op, Value
from fusec.ir.ops import OPS
from fusec.ir.ops.contract import free_axes
from fusec.ir.types import fixed
from fusec.passes.convolution import Convolution, convolution_of
from fusec.passes.families.gemm.library import joined
from fusec.passes.families.map.match import match_maps
from fusec.passes.groups.partition import Group, Partition, build_fused_graph
from fusec.passes.lower.context import LoweringContext
from fusec.passes.lower.pieces import Alternative, Pieces
from fusec.tile.nodes import WindowAxis, Windows
from fusec.tile.scalar import ScalarExpr, loads
from fusec.tile.views import strided_view

_ROW_BYTES = 128
"""Of one window's channels that one copy brings."""

_FARTHEST = {1: 32767, 2: 127, 3: 15}
"""By how many elements windows may begin before an image and end behind it, by the number of its axes."""

TEXT = "weights first"


def windows_of(context: LoweringContext, dot: Op, element: ScalarExpr) -> Windows | None:
    """What TMA fetches of the left operand, whose element is given; None where it can't, or the operand is no windows."""
    found = convolution_of(dot, context.producers)
    if found is None or found.batch is None or found.channels is None or not _in_order(found):
        return None
    view = strided_view(found.image, context.producers, context.strides)
    item = found.image.type.dtype.itemsize
    depth = _ROW_BYTES // item
    if view is None or view.base not in context.body.inputs or fixed([view.offset]) != (0,):
        return None
    shape, steps = found.image.type.static_shape, fixed(view.strides)
    outer = [steps[a] for a in (found.batch, *(w.axis for w in found.windowed)) if shape[a] != 1]
    if steps[found.channels] != 1 or shape[found.channels] % depth or any(s <= 0 or s * item % 16 for s in outer):
        return None
    axes = tuple(
        WindowAxis(w.extent, _step(steps[w.axis], shape[w.axis]), w.count, w.size, w.stride, w.dilation, w.low)
        for w in found.windowed
    )
    far = _FARTHEST[len(axes)]
    if any(max(abs(w.low), abs(w.high), (w.size - 1) * w.dilation) > far or w.stride > 8 for w in found.windowed):
        return None
    read = [x for x in loads(element) if x.buffer.space == "parameter"]
    if len(read) != 1:
        return None
    return Windows(read[0], shape[found.batch], _step(steps[found.batch], shape[found.batch]), shape[found.channels], axes)


def _step(step: int, extent: int) -> int:
    """Of an axis of one element any step will do; one that a tensor map takes."""
    return step if extent != 1 else _ROW_BYTES


def _in_order(found: Convolution) -> bool:
    """Whether K goes through places as the rows go through windows, and through all channels of each."""
    attributes, shape = found.dot.attributes, found.dot.operands[0].type.shape
    assert isinstance(attributes, DotAttributes)
    wide = [n for n, a in enumerate(attributes.lhs_contract) if shape[a] != 1]
    places = [w.place for w in found.windowed if w.size != 1]
    return [n for n in wide if n in places] == places and len(wide) == len(places) + 1 and wide[-1] not in places


def weights_first(context: LoweringContext) -> list[Alternative]:
    """The group in pieces: weights as TMA reads them, then the matmul; none where they lie so, or it is no convolution."""
    dots = context.anchors("dot")
    found = convolution_of(dots[0], context.producers) if len(dots) == 1 else None
    if found is None or found.channels is None or not _in_order(found) or _lies_along(context, dots[0]):
        return []
    return [Alternative(TEXT, _pieces)]


def _lies_along(context: LoweringContext, dot: Op) -> bool:
    """Whether the right operand's contracted axes are one in memory, elements side by side."""
    attributes, value = dot.attributes, dot.operands[1]
    assert isinstance(attributes, DotAttributes)
    view = strided_view(value, context.producers, context.strides)
    if view is None:
        return True  # it is computed: that is another's business
    shape, strides = value.type.static_shape, fixed(view.strides)
    along = joined([(shape[a], strides[a]) for a in attributes.rhs_contract])
    return along is not None and along[1] == 1


def _pieces(context: LoweringContext) -> Pieces:
    body = context.body
    (dot,) = context.anchors("dot")
    attributes, weight = dot.attributes, dot.operands[1]
    assert isinstance(attributes, DotAttributes)
    free = free_axes(weight.type.rank, (), attributes.rhs_contract)
    order = (*free, *attributes.rhs_contract)
    ordered = Value(weight.type.with_shape([weight.type.shape[a] for a in order]), f"{weight.name}_in_order")
    laid = Value(ordered.type, f"{weight.name}_laid")
    view = Op(OPS["permute"], (weight,), PermuteAttributes(order), (ordered,), dot.location)
    copy = replace(view, definition=OPS["copy"], operands=(ordered,), attributes=NO_ATTRIBUTES, results=(laid,))
    inner = tuple(range(len(free), len(order)))
    moved = replace(dot, operands=(dot.operands[0], laid), attributes=replace(attributes, rhs_contract=inner))
    ops: list[Op] = []
    for op in body.ops:
        ops += [view, copy, moved] if op is dot else [op]
    partition = Partition(replace(body, ops=tuple(ops)))
    group = Group("gemm", dot.result.type.shape)
    partition.add(group, [op for op in ops if op is not copy and op not in partition.free])
    match_maps(partition, lambda declined: None)
    graph: Graph = build_fused_graph(partition)
    return Pieces(tuple(op for op in graph.ops if op.name == "fused"))
