# SPDX-License-Identifier: Apache-2.0
"""ATen's linear resampling: each axis by itself, two elements of it and how far between them.

PyTorch's decomposition gathers by one number for all axes, which takes divisions of 64-bit integers apart again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fusec.frontend.torch_emit import Declined, Emitter, extents
from fusec.ir.attributes import GatherAttributes
from fusec.ir.nodes import Value
from fusec.ir.types import f32, i32

Lowering = Callable[..., Value]


def _linear(e: Emitter, input: Value, output_size: Sequence[int] | None, align_corners: bool, *given: object) -> Value:
    """``(1 - t) * x[floor(p)] + t * x[floor(p) + 1]`` along each axis, positions and sums in f32."""
    if not e.out.dtype.is_float or e.out.dtype.bits > 32 or 0 in (*extents(input), *e.out.static_shape):
        raise Declined("of integers, of float64, or of empty tensors")
    rank = input.type.rank - 2
    listed = [s for scale in given for s in (scale if isinstance(scale, Sequence) else [scale])]
    if e.is_on_cpu(input.type):
        raise Declined("the library's kernel goes axis by axis")
    if all(s is None for s in listed):
        listed = [None] * rank
    if len(listed) != rank or any(s is not None and not isinstance(s, float) for s in listed):
        raise Declined("by scales of another form")
    scales = [s if isinstance(s, float) else None for s in listed]
    image = e.channels_last(e.cast(input, f32))
    for axis in reversed(range(rank)):
        image = _along(e, image, axis + 1, e.out.static_shape[axis + 2], align_corners, scales[axis])
    return e.rounded(e.channels_first(image), e.out.dtype)


def _along(e: Emitter, image: Value, axis: int, size: int, align_corners: bool, scale: float | None) -> Value:
    extent = extents(image)[axis]
    if not align_corners and _is_even(size, extent, scale):
        below, above, share = _phases(e, extent, size // extent)
        return _between(e, image, axis, below, above, share)
    number = e.cast(e.iota((size,), 0, i32), f32)
    if align_corners:
        step = (extent - 1) / (size - 1) if size > 1 else 0.0
        position = e.emit("mul", number, e.constant(step, f32))
    else:
        step = 1.0 / scale if scale is not None and scale > 0 else extent / size
        half = e.constant(0.5, f32)
        position = e.emit("sub", e.emit("mul", e.emit("add", number, half), e.constant(step, f32)), half)
        position = e.emit("maximum", position, e.constant(0.0, f32))
    last = e.constant(extent - 1, i32)
    below = e.emit("minimum", e.cast(position, i32), last)
    above = e.emit("minimum", e.emit("add", below, e.constant(1, i32)), last)
    share = e.emit("sub", position, e.cast(below, f32))
    share = e.emit("minimum", e.emit("maximum", share, e.constant(0.0, f32)), e.constant(1.0, f32))
    return _between(e, image, axis, below, above, share)


def _between(e: Emitter, image: Value, axis: int, below: Value, above: Value, share: Value) -> Value:
    """``(1 - share) * image[below] + share * image[above]`` along an axis."""
    behind = [1] * (image.type.rank - 1 - axis)
    share = e.reshape(share, (*share.type.shape, *behind))
    rest = e.emit("sub", e.constant(1.0, f32), share)
    near, far = (e.emit("gather", image, index, attributes=GatherAttributes(axis)) for index in (below, above))
    return e.emit("add", e.emit("mul", near, rest), e.emit("mul", far, share))


def _is_even(size: int, extent: int, scale: float | None) -> bool:
    """Whether an axis becomes 2, 4, 8... times as long, so that positions are exact in f32 and repeat."""
    times = size // extent
    return size == extent * times and times > 1 and times & (times - 1) == 0 and scale in (None, float(times))


def _phases(e: Emitter, extent: int, times: int) -> tuple[Value, Value, Value]:
    """Below, above and share where there are ``times`` results for each element: ``p = (2 * o + 1 - times) / (2 *
    times)``, in integers, and a share for each of the ``times``."""
    number = e.iota((extent * times,), 0, i32)
    position = e.emit("add", e.emit("mul", number, e.constant(2, i32)), e.constant(1 - times, i32))
    position = e.emit("maximum", position, e.constant(0, i32))
    below = e.emit("floordiv", position, e.constant(2 * times, i32))
    above = e.emit("minimum", e.emit("add", below, e.constant(1, i32)), e.constant(extent - 1, i32))
    phase = e.emit("mul", e.iota((1, times), 1, i32), e.constant(2, i32))
    part = e.emit("remainder", e.emit("add", phase, e.constant(1 + times, i32)), e.constant(2 * times, i32))
    share = e.emit("mul", e.cast(part, f32), e.constant(0.5 / times, f32))
    share = e.reshape(e.broadcast(share, (extent, times)), (extent * times,))
    inside = e.emit("ge", number, e.constant(times // 2, i32))
    return below, above, e.emit("select", inside, share, e.constant(0.0, f32))


_NAMES = ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d")

RESAMPLING: dict[str, Lowering] = dict.fromkeys(_NAMES, _linear)
