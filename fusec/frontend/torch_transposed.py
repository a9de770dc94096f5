# SPDX-License-Identifier: Apache-2.0
"""Transposed convolutions by their phases: contractions over windows of the image, without zeros between its elements.

Place ``o`` of the result takes element ``i`` by weight ``k`` where ``o + padding = i * stride + k * dilation``. Without
a dilation places ``o = u * stride + phase`` take ``i = u + shift - j`` by ``k = first + j * stride``, j from 0 on: each
phase is a convolution. Phases that see the same windows are columns of one dot. What follows interleaves them.

Where the stride divides the weight's extent all phases do, if they are counted from the padding's edge. Else they have
dots of their own: a weight of 0 would be wrong, since 0 times an infinity is NaN.

The gradient of a convolution's input is such a one, with the convolution's weight as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from fusec.frontend.torch_emit import Emitter, extents, narrowing
from fusec.ir.attributes import ConcatAttributes, DotAttributes, PadAttributes, WindowsAttributes
from fusec.ir.nodes import Value
from fusec.ir.types import DType


@dataclass(frozen=True)
class Phases:
    """Neighbouring phases of an axis that see the same windows: ``count`` of them, the first by weights ``first``,
    ``first + stride``, ..., ``size`` weights each. ``shift``: from ``u`` to the last element of its window."""

    first: int
    count: int
    size: int
    shift: int


@dataclass(frozen=True)
class Axis:
    """An axis of a transposed convolution: of the image, of the weight (``size``) and of the result."""

    extent: int
    size: int
    stride: int
    padding: int
    dilation: int
    result: int

    @property
    def origin(self) -> int:
        """Places before the result's first that are computed, too, so that all phases see the same windows."""
        return 0 if self.size % self.stride else self.padding % self.stride

    @property
    def count(self) -> int:
        """How many places of each phase are computed: ``u`` from 0 on."""
        return -(-(self.result + self.origin) // self.stride)

    @property
    def phases(self) -> list[Phases]:
        """Those of places ``u * stride + 0``, ``+ 1``, ... from the origin on."""
        found: list[Phases] = []
        for phase in range(self.stride):
            shift, first = divmod(phase + self.padding - self.origin, self.stride)
            size = -(-(self.size - first) // self.stride)
            if found and (found[-1].size, found[-1].shift) == (size, shift):
                found[-1] = replace(found[-1], count=found[-1].count + 1)
            else:
                found.append(Phases(first, 1, size, shift))
        return found

    def takes(self, phases: Phases) -> bool:
        """Whether some window shows an element of the image."""
        return phases.size > 0 and phases.shift - (phases.size - 1) * self.dilation < self.extent

    def around(self, phases: Phases) -> tuple[int, int]:
        """Zeros before and behind the image for its windows; negative where elements are left out."""
        return (phases.size - 1) * self.dilation - phases.shift, phases.shift + self.count - self.extent


def transposed_convolution(
    e: Emitter, image: Value, weight: Value, bias: Value | None, axes: Sequence[Axis], groups: int, dtype: DType
) -> Value:
    """The result, its channels last, of an image ``[n, places..., channels]`` and a weight as PyTorch has it; of one
    group, or of as many as there are channels. Sums of halves and the bias are f32, and rounded before
    phases are interleaved."""
    wide = dtype.accumulator
    columns = groups * extents(weight)[1]
    shape = (extents(image)[0], *(a.count for a in axes))

    def of_phases(chosen: Sequence[Phases]) -> Value:
        counts = (*(p.count for p in chosen), columns)
        if not all(a.takes(p) for a, p in zip(axes, chosen, strict=True)):
            made = e.broadcast(e.constant(0, wide), (*shape, *counts))
        else:
            made = _of_phases(e, image, weight, axes, chosen, groups > 1, wide)
        return e.with_bias(made, bias, dtype)

    parts = {chosen: of_phases(chosen) for chosen in product(*(a.phases for a in axes))}
    return _interleaved(e, parts, axes)


def _of_phases(
    e: Emitter, image: Value, weight: Value, axes: Sequence[Axis], chosen: Sequence[Phases], each: bool, wide: DType
) -> Value:
    """``[n, t..., phases..., columns]``, of all channels or of ``each`` by itself."""
    dims = len(axes)
    seen, w = _windows(e, image, axes, chosen), _weights(e, weight, axes, chosen)
    (channels, columns, *rest), outer = extents(w), extents(seen)[: 1 + dims]
    sizes, counts = rest[:dims], rest[dims:]
    taps, phases = range(2, 2 + dims), range(2 + dims, 2 + 2 * dims)
    if not each:
        w = e.reshape(e.permute(w, (*phases, 1, *taps, 0)), (prod(counts) * columns, *sizes, channels))
        attributes = DotAttributes((*phases, 1 + dims), tuple(range(1, dims + 2)))
        return e.reshape(e.dot_in(seen, w, attributes, wide), (*outer, *counts, columns))
    seen = e.reshape(seen, (*outer, channels, *(1 for _ in counts), 1, *sizes))
    made = e.summed_products(seen, e.permute(w, (0, *phases, 1, *taps)), 3 + 2 * dims, dims, wide)
    order = (*range(1 + dims), *phases, 1 + dims, 2 + 2 * dims)
    return e.reshape(e.permute(made, order), (*outer, *counts, channels * columns))


def _windows(e: Emitter, image: Value, axes: Sequence[Axis], chosen: Sequence[Phases]) -> Value:
    """``[n, t..., channels, places in a window...]``; those of a window go up, as weights then go down."""
    around = [a.around(p) for a, p in zip(axes, chosen, strict=True)]
    for k, (before, behind) in enumerate(around):
        extent = extents(image)[1 + k]
        image = e.narrow(image, 1 + k, max(-before, 0), extent + min(behind, 0))
    low, high = ((0, *(max(pair[side], 0) for pair in around), 0) for side in (0, 1))
    if any((*low, *high)):
        image = e.emit("pad", image, e.constant(0, image.type.dtype), attributes=PadAttributes(low, high))
    for k, (a, p) in enumerate(zip(axes, chosen, strict=True)):
        reach = (p.size - 1) * a.dilation + 1
        image = e.emit("windows", image, attributes=WindowsAttributes(1 + k, reach, 1))
        image = e.narrow(image, image.type.rank - 1, 0, reach, a.dilation)
    return image


def _weights(e: Emitter, weight: Value, axes: Sequence[Axis], chosen: Sequence[Phases]) -> Value:
    """``[channels, columns, weights down..., phases...]``"""
    for k, (a, p) in enumerate(zip(axes, chosen, strict=True)):
        axis = 2 + k
        weight = e.narrow(weight, axis, p.first, p.first + (p.size - 1) * a.stride + p.count)
        weight = e.emit("windows", weight, attributes=WindowsAttributes(axis, p.count, a.stride))
        shape = extents(weight)
        if p.size > 1:
            down = narrowing(shape, axis, p.size - 1, -1, -1)
            weight = e.emit("slice", weight, attributes=down)
    return weight


def _interleaved(e: Emitter, parts: dict[tuple[Phases, ...], Value], axes: Sequence[Axis]) -> Value:
    """``[n, t..., phases..., columns]`` ⇒ ``[n, places..., columns]``"""
    dims = len(axes)
    for k in reversed(range(dims)):
        joined: dict[tuple[Phases, ...], list[Value]] = {}
        for chosen, part in parts.items():
            joined.setdefault(chosen[:k], []).append(part)
        parts = {
            chosen: found[0] if len(found) == 1 else e.emit("concat", *found, attributes=ConcatAttributes(1 + dims + k))
            for chosen, found in joined.items()
        }
    (whole,) = parts.values()
    order = (0, *(axis for k in range(dims) for axis in (1 + k, 1 + dims + k)), 1 + 2 * dims)
    n, columns = extents(whole)[0], extents(whole)[-1]
    whole = e.reshape(e.permute(whole, order), (n, *(a.count * a.stride for a in axes), columns))
    for k, a in enumerate(axes):
        whole = e.narrow(whole, 1 + k, a.origin, a.origin + a.result)
    return whole
