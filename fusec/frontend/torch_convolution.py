"""ATen's convolutions, as contractions over the windows of a padded image.

There is no op for them: a dot over ``windows(pad(x))`` says the same, and every way of writing it is one form
(decision 28). Results have their channels last; a view puts the axes in PyTorch's order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat

from fusec.frontend.torch_emit import Declined, Emitter, extents
from fusec.ir.attributes import DotAttributes, PadAttributes, WindowsAttributes
from fusec.ir.nodes import Value
from fusec.ir.types import f32

Lowering = Callable[..., Value]


def _convolution(
    e: Emitter,
    input: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Value:
    """``result[n, o..., c] = sum of input[n, o * stride + k * dilation - padding, b] * weight[c, b, k]``"""
    if transposed or groups != 1:
        raise Declined("of a transposed or a grouped convolution", final=True)
    if not e.out.dtype.is_float or 0 in (*extents(input), *extents(weight), *e.out.static_shape):
        raise Declined("of integers or of empty tensors", final=True)
    rank = input.type.rank
    seen = windowed(e, _channels_last(e, input), extents(weight)[2:], stride, padding, dilation)
    steps = tuple(range(rank, seen.type.rank))
    wide = f32 if e.out.dtype.bits <= 16 else e.out.dtype
    attributes = DotAttributes(
        (*steps, rank - 1), (*range(2, rank), 1), dtype=None if wide == e.out.dtype else wide
    )
    total = e.emit("dot", seen, weight, attributes=attributes)
    if bias is not None:
        total = e.emit("add", total, e.cast(bias, wide))
    return e.permute(e.rounded(total, e.out.dtype), (0, rank - 1, *range(1, rank - 1)))


def _channels_last(e: Emitter, image: Value) -> Value:
    """A view of an image with its channels behind its places."""
    return e.permute(image, (0, *range(2, image.type.rank), 1))


def windowed(
    e: Emitter,
    image: Value,
    size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    fill: float = 0.0,
) -> Value:
    """The windows of an image ``[n, places..., channels]``: ``[n, windows..., channels, places in a window...]``."""
    places = len(size)
    sizes, steps, low, apart = (_each(given, places) for given in (size, stride, padding, dilation))
    if any(low):
        around = (0, *low, 0)
        image = e.emit("pad", image, e.constant(fill, image.type.dtype), attributes=PadAttributes(around, around))
    for k in range(places):
        reach = (sizes[k] - 1) * apart[k] + 1
        image = e.emit("windows", image, attributes=WindowsAttributes(1 + k, reach, steps[k]))
        image = e.narrow(image, image.type.rank - 1, 0, reach, apart[k])
    return image


def _each(given: Sequence[int], count: int) -> tuple[int, ...]:
    """One number for each axis; a single one stands for all."""
    return tuple(given) if len(given) == count else tuple(repeat(given[0], count))


CONVOLUTIONS: dict[str, Lowering] = {"convolution": _convolution}
