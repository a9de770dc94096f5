"""ATen calls on the windows of images: ``im2col`` and average pooling, by views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from fusec.frontend.torch_emit import Declined, Emitter, extents
from fusec.ir.attributes import PadAttributes, WindowsAttributes
from fusec.ir.graph import Value
from fusec.ir.types import f32

Lowering = Callable[..., Value]


def _im2col(
    e: Emitter,
    x: Value,
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Value:
    """Each window of an image as a column, channels outermost."""
    seen = _windows(e, _padded(e, x, padding), kernel_size, dilation, stride)
    rank = seen.type.rank
    *outer, rows, columns, high, wide = range(rank)
    return e.reshape(e.permute(seen, (*outer, high, wide, rows, columns)), e.out.shape)


def _avg_pool2d(
    e: Emitter,
    x: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Value:
    """The mean of each window, halves added up in f32."""
    if not e.out.dtype.is_float or ceil_mode:
        raise Declined("of integers, or with windows that reach beyond the padding")
    size, pad = _pair(kernel_size), _pair(padding)
    if any(pad) and not count_include_pad and divisor_override is None:
        raise Declined("where windows at the edge have fewer elements")
    wide = e.cast(x, f32) if x.type.dtype.bits <= 16 else x
    seen = _windows(e, _padded(e, wide, pad), size, (1, 1), _pair(stride) if stride else size)
    rank = seen.type.rank
    total = e.reduce("reduce_sum", seen, (rank - 2, rank - 1))
    count = e.constant(divisor_override or prod(size), total.type.dtype)
    return e.cast(e.emit("div", total, count), e.out.dtype)


def _pair(sizes: Sequence[int]) -> tuple[int, int]:
    return (sizes[0], sizes[-1])


def _padded(e: Emitter, x: Value, padding: Sequence[int]) -> Value:
    if not any(padding):
        return x
    around = (*(0 for _ in range(x.type.rank - 2)), *_pair(padding))
    return e.emit("pad", x, e.constant(0, x.type.dtype), attributes=PadAttributes(around, around))


def _windows(e: Emitter, x: Value, size: Sequence[int], dilation: Sequence[int], stride: Sequence[int]) -> Value:
    """``(..., rows, columns)`` as ``(..., windows, windows, size, size)``."""
    sizes, steps, strides = _pair(size), _pair(dilation), _pair(stride)
    rank = x.type.rank
    for number in (0, 1):
        reach = (sizes[number] - 1) * steps[number] + 1
        attributes = WindowsAttributes(rank - 2 + number, reach, strides[number])
        x = e.emit("windows", x, attributes=attributes)
        x = e.narrow(x, x.type.rank - 1, 0, extents(x)[-1], steps[number])
    return x


WINDOWS: dict[str, Lowering] = {"im2col": _im2col, "avg_pool2d": _avg_pool2d}
