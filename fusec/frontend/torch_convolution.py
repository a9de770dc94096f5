# SPDX-License-Identifier: Apache-2.0
"""ATen's convolutions and pooling: contractions and reductions over the windows of a padded image.

There is no op for them: a dot over ``windows(pad(x))`` says the same, and every way of writing it is one form
(decision 29). Results have their channels last; a view puts the axes in PyTorch's order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import repeat
from math import prod

from fusec.frontend.torch_emit import Declined, Emitter, extents
from fusec.frontend.torch_transposed import Axis, transposed_convolution
from fusec.ir.attributes import DotAttributes, ExternAttributes, PadAttributes, WindowsAttributes
from fusec.ir.chosen_calls import why_whole
from fusec.ir.library_calls import CONVOLUTION, MOST_TAPS, LibraryConvolution, convolution_to_text
from fusec.ir.nodes import Value
from fusec.ir.types import DType, bool_, f32, i64

Lowering = Callable[..., Value | list[Value]]


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
    if not e.out.dtype.is_float or 0 in (*extents(input), *extents(weight), *e.out.static_shape):
        raise Declined("of integers or of empty tensors", final=True)
    rank = input.type.rank
    wide = e.out.dtype.accumulator
    on_cpu = e.is_on_cpu(input.type)
    steps, apart = _each(stride, rank - 2), _each(dilation, rank - 2)
    given = input.type.dtype, extents(input)[1], extents(weight), groups, transposed
    reason = why_whole(*given, steps=tuple(zip(steps, apart, strict=True)), on_cpu=on_cpu)
    beyond = _each(output_padding, rank - 2) if transposed else ()
    if any(more >= max(step, gap) for more, step, gap in zip(beyond, steps, apart, strict=False)):
        reason = "the library says whether it takes so much output_padding"
    if reason:
        numbers = (steps, _each(padding, rank - 2), apart)
        return _called(
            e, input, weight, bias, LibraryConvolution(None, None, *numbers, (), groups, transposed, beyond), reason
        )
    if transposed:
        shapes = (extents(input)[2:], extents(weight)[2:])
        around = _each(padding, rank - 2)
        axes = [Axis(*n) for n in zip(*shapes, steps, around, apart, e.out.static_shape[2:], strict=True)]
        return e.channels_first(
            transposed_convolution(e, e.channels_last(input), weight, bias, axes, groups, e.out.dtype)
        )
    seen = windowed(e, e.channels_last(input), extents(weight)[2:], stride, padding, dilation)
    if groups > 1 and extents(weight)[1] == 1:
        total = _depthwise(e, seen, weight, wide)
    elif groups > 1:
        total = _in_groups(e, seen, weight, groups, wide)
    else:
        steps = _tap_axes(seen, rank)
        total = e.dot_in(seen, weight, DotAttributes((*steps, rank - 1), (*range(2, rank), 1)), wide)
    return e.channels_first(e.with_bias(total, bias, e.out.dtype))


def _called(
    e: Emitter, input: Value, weight: Value, bias: Value | None, call: LibraryConvolution, reason: str
) -> Value:
    """The library's call, with its operand's and its result's channels last, and the bias in what follows."""
    if not e.calls:
        raise Declined(reason, final=True)
    rank = input.type.rank
    order = (0, *range(2, rank), 1)
    shape = tuple(e.out.static_shape[a] for a in order)
    text = convolution_to_text(replace(call, shape=shape))
    e.note(CONVOLUTION, reason)
    given = [e.permute(input, order), weight]
    if bias is not None and e.is_on_cpu(input.type):  # there the library adds it before it rounds
        given.append(bias)
        bias = None
    made = e.emit("extern", *given, attributes=ExternAttributes(CONVOLUTION, text, (e.out.with_shape(shape),), reason))
    if bias is not None:
        made = e.with_bias(e.cast(made, e.out.dtype.accumulator), bias, e.out.dtype)
    return e.channels_first(made)


def _depthwise(e: Emitter, seen: Value, weight: Value, wide: DType) -> Value:
    """Each channel by itself, one or several results of it: ``result[n, o..., c, m] = sum of seen[..., c, k] * w[c, m,
    k]``."""
    *outer, channels = extents(seen)[: len(e.out.shape)]
    size = extents(weight)[2:]
    times = extents(weight)[0] // channels
    image = e.reshape(seen, (*outer, channels, 1, *size))
    total = e.summed_products(image, e.reshape(weight, (channels, times, *size)), len(outer) + 2, len(size), wide)
    return e.reshape(total, (*outer, channels * times))


def _in_groups(e: Emitter, seen: Value, weight: Value, groups: int, wide: DType) -> Value:
    """Each group of channels by itself: a product with the groups as its batch."""
    rank, shape, (results, channels, *size) = len(e.out.shape), extents(seen), extents(weight)
    image = e.reshape(seen, (*shape[: rank - 1], groups, channels, *size))
    taps = e.reshape(weight, (groups, results // groups, channels, *size))
    steps = tuple(range(rank + 1, rank + 1 + len(size)))
    attributes = DotAttributes((*steps, rank), (*range(3, 3 + len(size)), 2), (rank - 1,), (0,))
    total = e.dot_in(image, taps, attributes, wide)
    return e.reshape(e.permute(total, (*range(1, rank), 0, rank)), (*shape[: rank - 1], results))


def _max_pool(
    e: Emitter,
    input: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> list[Value]:
    """The largest of each window, and its place in the image; a NaN is larger than all. Padding is never chosen."""
    dims = len(kernel_size) if len(kernel_size) > 1 else _spatial(e.call)
    sizes, low, apart = (_each(given, dims) for given in (kernel_size, padding, dilation))
    steps = _each(stride, dims) if stride else sizes
    if not e.out.dtype.is_float or 0 in (*extents(input), *e.out.static_shape):
        raise Declined("of integers or of empty tensors")
    if _is_large(sizes, steps):
        raise Declined("of large windows that overlap", final=True)
    image = e.channels_last(_batched(e, input, dims))
    windows = e.out.static_shape[-dims:]
    seen = windowed(e, image, sizes, steps, low, apart, float("-inf"), windows)
    axes = _tap_axes(seen, dims + 2)
    largest = e.reduce("reduce_max", seen, axes)
    found = [largest, _index_of_largest(e, seen, largest, extents(image)[1:-1], sizes, steps, low, apart)]
    return [e.reshape(e.channels_first(v), t.shape) for v, t in zip(found, e.results, strict=True)]


def _is_large(sizes: Sequence[int], steps: Sequence[int]) -> bool:
    """Whether windows overlap and have more taps than are opened."""
    return prod(sizes) > MOST_TAPS and any(step < size for size, step in zip(sizes, steps, strict=True))


def _index_of_largest(
    e: Emitter,
    seen: Value,
    largest: Value,
    image: Sequence[int],
    sizes: Sequence[int],
    steps: Sequence[int],
    low: Sequence[int],
    apart: Sequence[int],
) -> Value:
    """The first place in the image that holds the largest of a window; where that is a NaN, the last of NaNs."""
    dims, shape = len(sizes), extents(seen)
    axes = _tap_axes(seen, dims + 2)
    flat, inside = e.constant(0, i64), e.constant(True, bool_)
    for k in range(dims):
        window = e.emit("mul", e.iota(shape, 1 + k, i64), e.constant(steps[k], i64))
        within = e.emit("mul", e.iota(shape, dims + 2 + k, i64), e.constant(apart[k], i64))
        at = e.emit("sub", e.emit("add", window, within), e.constant(low[k], i64))
        here = e.emit("logical_and", e.emit("ge", at, e.constant(0, i64)), e.emit("lt", at, e.constant(image[k], i64)))
        inside = e.emit("logical_and", inside, here)
        flat = e.emit("add", e.emit("mul", flat, e.constant(image[k], i64)), at)
    largest_again = e.keep(largest, seen, axes)
    equal = e.emit("logical_and", inside, e.emit("eq", seen, largest_again))
    first = e.reduce("reduce_min", e.emit("select", equal, flat, e.constant(prod(image), i64)), axes)
    taps = [range(0, size * step, step) for size, step in zip(sizes, apart, strict=True)]
    windows = extents(largest)[1 : 1 + dims]
    axis_by_axis = zip(windows, taps, steps, low, image, strict=True)
    if any(_is_some_padding(*axis) for axis in axis_by_axis):
        begin = _first_positions(e, extents(largest), taps, steps, low, image)
        first = e.emit("select", e.emit("eq", first, e.constant(prod(image), i64)), begin, first)
    last = e.reduce("reduce_max", e.emit("select", e.emit("isnan", seen), flat, e.constant(-1, i64)), axes)
    return e.emit("select", e.emit("isnan", largest), last, first)


def _is_some_padding(windows: int, taps: range, step: int, low: int, extent: int) -> bool:
    """Whether all positions of some window along an axis are padding."""
    begins = range(-low, windows * step - low, step)
    return not all(any(0 <= begin + tap < extent for tap in taps) for begin in begins)


def _first_positions(
    e: Emitter,
    shape: Sequence[int],
    taps: Sequence[range],
    steps: Sequence[int],
    low: Sequence[int],
    image: Sequence[int],
) -> Value:
    """Where PyTorch begins to look in each window: at its first position that is not negative, which may be behind the
    image. It is the index of a window of padding alone."""
    flat = e.constant(0, i64)
    for k, extent in enumerate(image):
        begin = e.emit(
            "sub", e.emit("mul", e.iota(shape, 1 + k, i64), e.constant(steps[k], i64)), e.constant(low[k], i64)
        )
        first = e.emit("add", begin, e.constant(taps[k][-1], i64))
        for tap in reversed(taps[k][:-1]):
            at = e.emit("add", begin, e.constant(tap, i64))
            first = e.emit("select", e.emit("ge", at, e.constant(0, i64)), at, first)
        flat = e.emit("add", e.emit("mul", flat, e.constant(extent, i64)), first)
    return flat


MOST_SEEN = 9
"""Windows that show one position of an image, up to which its gradient looks at each."""


def _max_pool_backward(
    e: Emitter,
    grad_output: Value,
    input: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: Value,
) -> Value:
    """Each position adds up the gradients of the windows that show it, and whose largest it was: no sums by index."""
    dims = len(kernel_size) if len(kernel_size) > 1 else _spatial(e.call)
    sizes, low, apart = (_each(given, dims) for given in (kernel_size, padding, dilation))
    steps = _each(stride, dims) if stride else sizes
    seen = [(n - 1) * gap // step + 1 for n, gap, step in zip(sizes, apart, steps, strict=True)]
    if e.is_on_cpu(input.type) or not e.out.dtype.is_float or 0 in (*extents(input), *extents(grad_output)):
        raise Declined("on a CPU, of integers or of empty tensors", final=True)
    if prod(seen) > MOST_SEEN:
        raise Declined("of windows that overlap much", final=True)
    image = extents(input)[-dims:]
    around = [*zip(image, steps, low, seen, strict=True)]
    places = _of_windows_seen(e, e.channels_last(_batched(e, indices, dims)), around, -1)
    gradients = _of_windows_seen(e, e.channels_last(_batched(e, grad_output, dims)), around, 0.0)
    flat = e.constant(0, i64)
    for axis, extent in enumerate(image):
        flat = e.emit("mul", flat, e.constant(extent, i64))
        flat = e.emit("add", flat, e.iota((*image, *(1 for _ in range(dims + 1))), axis, i64))
    wide = e.out.dtype.accumulator
    chosen = e.emit("select", e.emit("eq", places, flat), e.cast(gradients, wide), e.constant(0.0, wide))
    total = e.reduce("reduce_sum", chosen, _tap_axes(chosen, dims + 2))
    return e.rounded(e.reshape(e.channels_first(total), e.out.shape), e.out.dtype)


def _of_windows_seen(e: Emitter, made: Value, around: Sequence[tuple[int, int, int, int]], fill: float) -> Value:
    """What windows have, at the positions that they show: ``[n, positions..., channels, windows of a position...]``.

    made: one element for each window. around: of each axis the image's extent, the step from window to window, the
    padding, and how many windows show a position; ``fill`` stands for windows that are not there.
    """
    count = len(around)
    first = [max(seen - 1 - low // step, 0) for _, step, low, seen in around]
    last = [max((n - 1 + low) // step - (has - 1), 0) for (n, step, low, _), has in zip(around, extents(made)[1:])]
    if any((*first, *last)):
        beside = PadAttributes((0, *first, 0), (0, *last, 0))
        made = e.emit("pad", made, e.constant(fill, made.type.dtype), attributes=beside)
    for k, (extent, step, low, seen) in enumerate(around):
        shape = extents(made)
        made = e.reshape(made, (*shape[: k + 2], 1, *shape[k + 2 :]))
        made = e.broadcast(made, (*shape[: k + 2], step, *shape[k + 2 :]))
        made = e.reshape(made, (*shape[: k + 1], shape[k + 1] * step, *shape[k + 2 :]))
        begin = low + (first[k] - (seen - 1)) * step
        made = e.narrow(made, 1 + k, begin, begin + extent + (seen - 1) * step)
    return windowed(
        e, made, [seen for *_, seen in around], (1,) * count, (0,) * count, [step for _, step, *_ in around]
    )


def _avg_pool(
    e: Emitter,
    input: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Value:
    """The mean of each window, halves added up in f32."""
    dims = len(kernel_size) if len(kernel_size) > 1 else _spatial(e.call)
    if not e.out.dtype.is_float or 0 in (*extents(input), *e.out.static_shape):
        raise Declined("of integers or of empty tensors")
    size, low = _each(kernel_size, dims), _each(padding, dims)
    steps = _each(stride, dims) if stride else size
    if _is_large(size, steps):
        raise Declined("of large windows that overlap", final=True)
    wide = e.cast(input, f32) if input.type.dtype.bits <= 16 else input
    image = e.channels_last(_batched(e, wide, dims))
    windows = e.out.static_shape[-dims:]
    seen = windowed(e, image, size, steps, low, (1,) * dims, 0.0, windows)
    total = e.channels_first(e.reduce("reduce_sum", seen, _tap_axes(seen, dims + 2)))
    total = e.reshape(total, e.out.shape)
    dtype = total.type.dtype
    if divisor_override is not None:
        return e.rounded(e.emit("div", total, e.constant(divisor_override, dtype)), e.out.dtype)
    count = e.constant(prod(size), dtype)
    around = extents(input)[-dims:]
    beyond = any(
        (n - 1) * step + k - before > extent + before
        for n, step, k, before, extent in zip(windows, steps, size, low, around, strict=True)
    )
    if (any(low) and not count_include_pad) or beyond:
        counts = [
            _counted(e, windows, axis, size[axis], steps[axis], low[axis], around[axis], count_include_pad)
            for axis in range(dims)
        ]
        whole = counts[0]
        for other in counts[1:]:
            whole = e.emit("mul", whole, other)
        count = e.cast(whole, dtype)
    return e.rounded(e.emit("div", total, count), e.out.dtype)


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


def _spatial(call: str) -> int:
    """How many axes a call's windows have, by its name: ``avg_pool2d`` two."""
    return int(next(c for c in call.rsplit(".", 1)[-1] if c.isdigit()))


def _tap_axes(seen: Value, rank: int) -> tuple[int, ...]:
    """The axes of :func:`windowed` that are taps in a window of an image of ``rank`` axes."""
    return tuple(range(rank, seen.type.rank))


def _batched(e: Emitter, image: Value, dims: int) -> Value:
    return image if image.type.rank == dims + 2 else e.reshape(image, (1, *image.type.shape))


def windowed(
    e: Emitter,
    image: Value,
    size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    fill: float = 0.0,
    windows: Sequence[int] | None = None,
) -> Value:
    """The windows of an image ``[n, spatial..., channels]``: ``[n, windows..., channels, taps in a window...]``.

    windows: how many along each axis, where the last ones may go beyond the padding.
    """
    dims = len(size)
    sizes, steps, low, apart = (_each(given, dims) for given in (size, stride, padding, dilation))
    reach = [(n - 1) * d + 1 for n, d in zip(sizes, apart, strict=True)]
    high = list(low)
    if windows is not None:
        ends = [(n - 1) * step + r - before for n, step, r, before in zip(windows, steps, reach, low, strict=True)]
        high = [max(end - n, 0) for end, n in zip(ends, extents(image)[1:-1], strict=True)]
    if any((*low, *high)):
        around = PadAttributes((0, *low, 0), (0, *high, 0))
        image = e.emit("pad", image, e.constant(fill, image.type.dtype), attributes=around)
    for k in range(dims):
        if windows is not None:
            image = e.narrow(image, 1 + k, 0, (windows[k] - 1) * steps[k] + reach[k])
        image = e.emit("windows", image, attributes=WindowsAttributes(1 + k, reach[k], steps[k]))
        image = e.narrow(image, image.type.rank - 1, 0, reach[k], apart[k])
    return image


def _each(given: Sequence[int], count: int) -> tuple[int, ...]:
    """One number for each axis; a single one stands for all."""
    return tuple(given) if len(given) == count else tuple(repeat(given[0], count))


CONVOLUTIONS: dict[str, Lowering] = {
    "convolution": _convolution,
    **{f"max_pool{n}d_with_indices": _max_pool for n in (2, 3)},
    **{f"max_pool{n}d_with_indices_backward": _max_pool_backward for n in (2, 3)},
    **{f"avg_pool{n}d": _avg_pool for n in (1, 2, 3)},
}
