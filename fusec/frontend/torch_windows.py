"""ATen calls on the windows of images: ``im2col``, average pooling and repeating, by views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from fusec.frontend.torch_emit import Declined, Emitter, extents
from fusec.ir.attributes import PadAttributes, WindowsAttributes
from fusec.ir.nodes import Value
from fusec.ir.types import f32, i64

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
    seen = _windows(e, _padded(e, x, padding, padding), kernel_size, dilation, stride)
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
    if not e.out.dtype.is_float:
        raise Declined("of integers")
    size, low = _pair(kernel_size), _pair(padding)
    steps = _pair(stride) if stride else size
    image, windows = extents(x)[-2:], e.out.static_shape[-2:]
    ends = [(n - 1) * step + k - before for n, step, k, before in zip(windows, steps, size, low)]
    high = [max(end - n, 0) for end, n in zip(ends, image)]  # as far as the last windows reach
    wide = e.cast(x, f32) if x.type.dtype.bits <= 16 else x
    seen = _windows(e, _padded(e, wide, low, high), size, (1, 1), steps)
    total = e.reduce("reduce_sum", seen, (seen.type.rank - 2, seen.type.rank - 1))
    dtype = total.type.dtype
    if divisor_override is not None:
        return e.cast(e.emit("div", total, e.constant(divisor_override, dtype)), e.out.dtype)
    count = e.constant(prod(size), dtype)
    if (any((*low, *high)) and not count_include_pad) or any(end > n + p for end, n, p in zip(ends, image, low)):
        counts = [
            _counted(e, windows, axis, size[axis], steps[axis], low[axis], image[axis], count_include_pad)
            for axis in (0, 1)
        ]
        count = e.cast(e.emit("mul", *counts), dtype)
    return e.cast(e.emit("div", total, count), e.out.dtype)


def _counted(
    e: Emitter,
    windows: Sequence[int],
    axis: int,
    size: int,
    step: int,
    padding: int,
    extent: int,
    with_padding: bool,
) -> Value:
    """How many elements of each window along an axis are the image's, or its padding's."""
    numbers = e.emit("mul", e.iota(windows, axis, i64), e.constant(step, i64))
    start = e.emit("sub", numbers, e.constant(padding, i64))
    stop = e.emit("add", start, e.constant(size, i64))
    stop = e.emit("minimum", stop, e.constant(extent + (padding if with_padding else 0), i64))
    if not with_padding:
        start = e.emit("maximum", start, e.constant(0, i64))
    return e.emit("sub", stop, start)


def _adaptive_avg_pool2d(e: Emitter, x: Value, output_size: Sequence[int]) -> Value:
    """The mean of each part of an image, where the parts are of one size."""
    *outer, rows, columns = extents(x)
    high, wide = e.out.static_shape[-2:]
    if not e.out.dtype.is_float or 0 in (high, wide) or rows % high or columns % wide:
        raise Declined("of integers, or with windows of several sizes")
    parts = e.reshape(x, (*outer, high, rows // high, wide, columns // wide))
    if x.type.dtype.bits <= 16:
        parts = e.cast(parts, f32)
    total = e.reduce("reduce_sum", parts, (len(outer) + 1, len(outer) + 3))
    count = e.constant((rows // high) * (columns // wide), total.type.dtype)
    return e.cast(e.emit("div", total, count), e.out.dtype)


def _nearest(e: Emitter, x: Value, _: Sequence[int] | None, *scales: float | Sequence[float] | None) -> Value:
    """Each element of an image repeated, by a power of two along each axis: PyTorch rounds other places in f32."""
    batch, image, sizes = extents(x)[:2], extents(x)[2:], e.out.static_shape[2:]
    given = [s for scale in scales if scale is not None for s in (scale if isinstance(scale, Sequence) else [scale])]
    factors = [size // max(extent, 1) for extent, size in zip(image, sizes, strict=True)]
    if given and any(size != extent * scale for size, extent, scale in zip(sizes, image, given, strict=True)):
        raise Declined("by another scale than the sizes tell, which the decomposition reads", final=True)
    if any(f < 1 or f * extent != size or f & (f - 1) for f, extent, size in zip(factors, image, sizes, strict=True)):
        raise Declined("by no power of two")
    apart = [n for extent in image for n in (extent, 1)]
    wide = [n for pair in zip(image, factors, strict=True) for n in pair]
    return e.reshape(e.broadcast(e.reshape(x, (*batch, *apart)), (*batch, *wide)), e.out.shape)


def _pair(sizes: Sequence[int]) -> tuple[int, int]:
    return (sizes[0], sizes[-1])


def _padded(e: Emitter, x: Value, low: Sequence[int], high: Sequence[int]) -> Value:
    if not any((*low, *high)):
        return x
    outer = (0,) * (x.type.rank - 2)
    attributes = PadAttributes((*outer, *_pair(low)), (*outer, *_pair(high)))
    return e.emit("pad", x, e.constant(0, x.type.dtype), attributes=attributes)


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


WINDOWS: dict[str, Lowering] = {
    "im2col": _im2col,
    "avg_pool2d": _avg_pool2d,
    "_adaptive_avg_pool2d": _adaptive_avg_pool2d,
    **{f"{name}{n}d": _nearest for n in (1, 2, 3) for name in ("upsample_nearest", "_upsample_nearest_exact")},
}
