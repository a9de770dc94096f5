# SPDX-License-Identifier: Apache-2.0
"""A convolution by the library: its windows are read where they are, its result has its channels last."""

from __future__ import annotations

from fusec.ir.attributes import DotAttributes, ExternAttributes, PermuteAttributes, ShapeAttributes
from fusec.ir.indexing import round_up
from fusec.ir.library_calls import CONVOLUTION, LibraryConvolution, Matrix, convolution_to_text
from fusec.ir.nodes import Op, Value
from fusec.ir.ops import OPS
from fusec.ir.ops.contract import free_axes
from fusec.ir.types import contiguous_strides, fixed
from fusec.passes.contraction import contraction
from fusec.passes.convolution import Convolution, convolution_of
from fusec.passes.families.gemm.library import Found, in_dtype_of_operands, pieces_of
from fusec.passes.lower.context import LoweringContext
from fusec.passes.lower.pieces import Alternative
from fusec.target.gpu import GpuTarget
from fusec.tile.views import joined, same_layout, strided_view

_REASON = "the library's kernel was chosen"

_REACHED = {16: 0.62, 32: 0.5}
"""Of the GPU's rate of matmuls, by bits of the operands (those of 32 as TF32): what cuDNN reaches on an H200 where
images have their channels last."""

_WHOLE, _SLOW = 8, 0.04
"""Of how many channels images have to have a multiple for that; what it reaches with others, of 128 columns: a stem
7×7/2 of 3→64 channels takes 0.45 ms of 64 images 224², one 3×3/2 of 3→32 channels 0.125."""


_TOGETHER, _RATE_OF_A_CHANNEL = 32, 0.0065
"""Channels of a group up to which cuDNN has kernels for groups, where they are a power of two; the share of the GPU's
rate for each of them (64 images, 3×3: 32 groups of 8 in 0.178 ms, of 16 in 0.075, of 32 in 0.045)."""

_COPIES, _REACHED_ALONE = 4, 0.3
"""Other groups are cut out, multiplied one by one and put together: how many times memory's rate these copies take, and
what the products reach (8 groups of 56, 28²: 0.38 ms; 36 of 56, 7²: 0.56)."""


def library_convolution(context: LoweringContext, target: GpuTarget) -> list[Alternative]:
    """The group's dot as one call and a kernel for the rest; none where it is no convolution of memory."""
    dots = context.anchors("dot")
    found = convolution_of(dots[0], context.producers) if len(dots) == 1 else None
    if found is None or not context.body.inputs:
        return []
    made = _call(context, found)
    if made is None:
        return []
    return [Alternative("library convolution", lambda c: pieces_of(c, [made]), _seconds(found, context, target))]


def _seconds(found: Convolution, context: LoweringContext, target: GpuTarget) -> float:
    dot, rates = found.dot, target.rates
    bits = dot.operands[0].type.dtype.bits
    flops = 2.0 * dot.result.type.size * contraction(dot).k
    channels = found.depth
    columns = dot.result.type.static_shape[-1]
    step = 32 if channels > 64 else 64
    wide = min(1.0, (columns + 64) / 192)
    share = _REACHED.get(bits, _SLOW) * channels / round_up(channels, step) if channels % _WHOLE == 0 else _SLOW
    rate = rates.tensor * wide * share * (16 / bits)
    result = dot.result.type.size * bits // 8
    moved = (found.image.type.most_bytes + dot.operands[1].type.most_bytes + result) / rates.read
    rest = 2 * rates.launch + (sum(v.type.most_bytes for v in context.body.outputs) + result) / rates.read
    if found.groups == 1:
        return rest + max(flops / rate, moved)
    if channels <= _TOGETHER and channels & (channels - 1) == 0:
        return rest + max(flops / (rates.tensor * (16 / bits) * _RATE_OF_A_CHANNEL * channels), moved)
    launches = 3 * found.groups * rates.launch
    return rest + launches + _COPIES * moved + flops / (rates.tensor * (16 / bits) * _REACHED_ALONE)


def _call(context: LoweringContext, found: Convolution) -> Found | None:
    dot, operands = found.dot, list[Value]()
    image, weight = _image(context, found, operands), _weight(context, found, operands)
    if image is None or weight is None or not dot.operands[0].type.dtype.is_float:
        return None
    if any(w.high > w.low for w in found.windowed):  # the library pads both sides alike
        return None
    value, after = in_dtype_of_operands(dot, dot.result)
    shape = value.type.static_shape
    if not same_layout(shape, context.strides.get(value, contiguous_strides(shape)), contiguous_strides(shape)):
        return None
    whole = (image.sizes[0], *(w.count for w in found.windowed), weight.sizes[0])
    if found.groups > 1:
        value, after = _groups_behind(dot, value, whole, found.groups, after)
    elif whole != shape:
        return None
    stride, low = (tuple(w.stride for w in found.windowed), tuple(w.low for w in found.windowed))
    dilation = tuple(w.dilation for w in found.windowed)
    text = convolution_to_text(LibraryConvolution(image, weight, stride, low, dilation, whole, found.groups))
    types = (value.type,)
    call = Op(
        OPS["extern"], tuple(operands), ExternAttributes(CONVOLUTION, text, types, _REASON), (value,), dot.location
    )
    covered = frozenset({dot, *({found.pad} if found.pad is not None else ())})
    return Found(call, value, after, covered)


def _groups_behind(
    dot: Op, made: Value, whole: tuple[int, ...], groups: int, after: tuple[Op, ...]
) -> tuple[Value, tuple[Op, ...]]:
    """What the library gives, the columns of all groups last, and the views of it that the dot has: groups first."""
    value = Value(made.type.with_shape(whole), f"{made.name}_whole")
    apart = (*whole[:-1], groups, whole[-1] // groups)
    split = Value(made.type.with_shape(apart), f"{made.name}_groups")
    order = (len(whole) - 1, *range(len(whole) - 1), len(whole))
    views = (
        Op(OPS["reshape"], (value,), ShapeAttributes(apart), (split,), dot.location),
        Op(OPS["permute"], (split,), PermuteAttributes(order), (made,), dot.location),
    )
    return value, (*views, *after)


def _image(context: LoweringContext, found: Convolution, operands: list[Value]) -> Matrix | None:
    """``[n, channels, spatial...]``."""
    view = strided_view(found.image, context.producers, context.strides)
    if view is None or view.base not in context.body.inputs:
        return None
    operands.append(view.base)
    shape, strides, (offset,) = found.image.type.static_shape, fixed(view.strides), fixed([view.offset])
    axes = (found.batch, found.channels, *(w.axis for w in found.windowed))
    sizes = tuple(1 if a is None else shape[a] for a in axes)
    return Matrix(0, sizes, tuple(1 if a is None else strides[a] for a in axes), offset)


def _weight(context: LoweringContext, found: Convolution, operands: list[Value]) -> Matrix | None:
    """``[columns, channels, taps...]``."""
    value, attributes = found.dot.operands[1], found.dot.expect(DotAttributes)
    view = strided_view(value, context.producers, context.strides)
    if view is None or view.base not in context.body.inputs:
        return None
    if view.base not in operands:
        operands.append(view.base)
    shape, strides, (offset,) = value.type.static_shape, fixed(view.strides), fixed([view.offset])
    free = (*attributes.rhs_batch, *free_axes(value.type.rank, attributes.rhs_batch, attributes.rhs_contract))
    columns = joined([(shape[a], strides[a]) for a in free])
    tap_axes = [None if w.tap_axis is None else attributes.rhs_contract[w.tap_axis] for w in found.windowed]
    rest = [a for a in attributes.rhs_contract if a not in tap_axes and shape[a] != 1]
    if columns is None or len(rest) > 1:
        return None
    channels = rest[0] if rest else None
    axes: list[int | None] = [channels, *tap_axes]
    sizes = (columns[0], *(1 if a is None else shape[a] for a in axes))
    steps = (columns[1], *(1 if a is None else strides[a] for a in axes))
    return Matrix(operands.index(view.base), sizes, steps, offset)
