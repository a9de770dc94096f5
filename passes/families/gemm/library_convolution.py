"""A convolution by the library: its windows are read where they are, its result has its channels last."""

from __future__ import annotations

from fusec.ir.attributes import DotAttributes, ExternAttributes
from fusec.ir.indexing import round_up
from fusec.ir.library_calls import CONVOLUTION, LibraryConvolution, Matrix, convolution_to_text
from fusec.ir.nodes import Op, Value
from fusec.ir.ops import OPS
from fusec.ir.ops.contract import free_axes
from fusec.ir.types import contiguous_strides, fixed
from fusec.passes.contraction import contraction
from fusec.passes.convolution import Convolution, convolution_of
from fusec.passes.families.gemm.library import Found, in_dtype_of_operands, joined, pieces_of
from fusec.passes.lower.context import LoweringContext
from fusec.passes.lower.pieces import Alternative
from fusec.target.gpu import GpuTarget
from fusec.tile.views import same_layout, strided_view

_REASON = "the library's kernel was chosen"

_REACHED = {16: 0.62, 32: 0.5}
"""Of the GPU's rate of matmuls, by bits of the operands (those of 32 as TF32): what cuDNN reaches on an H200 where
images have their channels last."""

_WHOLE, _SLOW = 8, 0.04
"""Of how many channels images have to have a multiple for that; what it reaches with others, of 128 columns: a stem
7×7/2 of 3→64 channels takes 0.45 ms of 64 images 224², one 3×3/2 of 3→32 channels 0.125."""


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
    channels = 1 if found.channels is None else found.image.type.static_shape[found.channels]
    columns = dot.result.type.static_shape[-1]
    step = 32 if channels > 64 else 64
    wide = min(1.0, (columns + 64) / 192)
    share = _REACHED.get(bits, _SLOW) * channels / round_up(channels, step) if channels % _WHOLE == 0 else _SLOW
    rate = rates.tensor * wide * share * (16 / bits)
    result = dot.result.type.size * bits // 8
    moved = (found.image.type.most_bytes + dot.operands[1].type.most_bytes + result) / rates.read
    rest = sum(v.type.most_bytes for v in context.body.outputs) + result
    return 2 * rates.launch + max(flops / rate, moved) + rest / rates.read


def _call(context: LoweringContext, found: Convolution) -> Found | None:
    dot, operands = found.dot, list[Value]()
    image, weight = _image(context, found, operands), _weight(context, found, operands)
    if image is None or weight is None or not dot.operands[0].type.dtype.is_float:
        return None
    if any(w.high > w.low for w in found.windowed):  # the library pads both sides alike
        return None
    value, cast = in_dtype_of_operands(dot, dot.result)
    shape = value.type.static_shape
    if not same_layout(shape, context.strides.get(value, contiguous_strides(shape)), contiguous_strides(shape)):
        return None
    whole = (image.sizes[0], *(w.count for w in found.windowed), shape[-1])
    if whole != shape:
        return None
    stride, low = (tuple(w.stride for w in found.windowed), tuple(w.low for w in found.windowed))
    dilation = tuple(w.dilation for w in found.windowed)
    text = convolution_to_text(LibraryConvolution(image, weight, stride, low, dilation, whole))
    types = (value.type,)
    call = Op(
        OPS["extern"], tuple(operands), ExternAttributes(CONVOLUTION, text, types, _REASON), (value,), dot.location
    )
    covered = frozenset({dot, *({found.pad} if found.pad is not None else ())})
    return Found(call, value, cast, covered)


def _image(context: LoweringContext, found: Convolution, operands: list[Value]) -> Matrix | None:
    """``[n, channels, places...]``."""
    view = strided_view(found.image, context.producers, context.strides)
    if view is None or view.base not in context.body.inputs:
        return None
    operands.append(view.base)
    shape, strides, (offset,) = found.image.type.static_shape, fixed(view.strides), fixed([view.offset])
    axes = (found.batch, found.channels, *(w.axis for w in found.windowed))
    sizes = tuple(1 if a is None else shape[a] for a in axes)
    return Matrix(0, sizes, tuple(1 if a is None else strides[a] for a in axes), offset)


def _weight(context: LoweringContext, found: Convolution, operands: list[Value]) -> Matrix | None:
    """``[columns, channels, places...]``."""
    value, attributes = found.dot.operands[1], found.dot.attributes
    assert isinstance(attributes, DotAttributes)
    view = strided_view(value, context.producers, context.strides)
    if view is None or view.base not in context.body.inputs:
        return None
    if view.base not in operands:
        operands.append(view.base)
    shape, strides, (offset,) = value.type.static_shape, fixed(view.strides), fixed([view.offset])
    free = free_axes(value.type.rank, (), attributes.rhs_contract)
    columns = joined([(shape[a], strides[a]) for a in free])
    places = [None if w.place is None else attributes.rhs_contract[w.place] for w in found.windowed]
    rest = [a for a in attributes.rhs_contract if a not in places and shape[a] != 1]
    if columns is None or len(rest) > 1:
        return None
    channels = rest[0] if rest else None
    axes: list[int | None] = [channels, *places]
    sizes = (columns[0], *(1 if a is None else shape[a] for a in axes))
    steps = (columns[1], *(1 if a is None else strides[a] for a in axes))
    return Matrix(operands.index(view.base), sizes, steps, offset)
