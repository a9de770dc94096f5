# SPDX-License-Identifier: Apache-2.0
"""ATen calls that move the elements of images, or parts of one size: ``im2col``, adaptive pooling, repeating."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fusec.frontend.torch_convolution import windowed
from fusec.frontend.torch_emit import Declined, Emitter, extents
from fusec.ir.attributes import PadAttributes
from fusec.ir.nodes import Value
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
    """Each window of an image as a column, channels outermost. The padding lies as the image does."""
    image = x if x.type.rank == 4 else e.reshape(x, (1, *x.type.shape))
    if any(padding):
        around = (0, 0, padding[0], padding[-1])
        image = e.emit("pad", image, e.constant(0, x.type.dtype), attributes=PadAttributes(around, around))
    sizes = (kernel_size[0], kernel_size[-1])
    seen = windowed(e, e.channels_last(image), sizes, stride, (0,), dilation)
    return e.reshape(e.permute(seen, (0, 3, 4, 5, 1, 2)), e.out.shape)


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
    """Each element of an image repeated, by a power of two along each axis: PyTorch rounds other positions in f32."""
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


WINDOWS: dict[str, Lowering] = {
    "im2col": _im2col,
    "_adaptive_avg_pool2d": _adaptive_avg_pool2d,
    **{f"{name}{n}d": _nearest for n in (1, 2, 3) for name in ("upsample_nearest", "_upsample_nearest_exact")},
}
