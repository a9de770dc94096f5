# SPDX-License-Identifier: Apache-2.0
"""``as_strided`` and sliding windows: byte strides read back as windows, slices and transposes where they are ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple
from numpy.lib.stride_tricks import as_strided as numpy_as_strided

from fusec.frontend.numpy_buffer import Buffer
from fusec.frontend.numpy_emit import ShapeRuleError
from fusec.frontend.numpy_trace import Trace, Traced, address_of, describe
from fusec.frontend.steps import Step
from fusec.ir.attributes import (
    PermuteAttributes,
    ShapeAttributes,
    SliceAttributes,
    StridedAttributes,
    WindowsAttributes,
)


def sliding_window_view(trace: Trace, x: Traced, window_shape: Any, axis: Any = None, writeable: bool = False) -> Any:
    """``np.lib.stride_tricks.sliding_window_view``: one windows step an axis."""
    sizes = tuple(window_shape) if np.iterable(window_shape) else (int(window_shape),)
    axes = tuple(range(x.meta.ndim)) if axis is None else normalize_axis_tuple(axis, x.meta.ndim, allow_duplicate=True)
    if any(n < 0 for n in sizes):
        raise ShapeRuleError("`window_shape` cannot contain negative values", trace.location())
    if len(axes) != len(sizes):
        message = (
            f"Must provide as many window sizes as axes; got {len(sizes)} window_shape elements and {len(axes)} axes"
        )
        raise ShapeRuleError(message, trace.location())
    shape, strides = list(x.meta.shape), list(x.meta.strides)
    steps = []
    for size, along in zip(sizes, axes):
        if shape[along] < size or size < 1:
            message = f"window shape {sizes} cannot be larger than input array shape {x.meta.shape}, nor empty"
            raise ShapeRuleError(message, trace.location())
        steps.append(Step("windows", WindowsAttributes(along, int(size))))
        shape = [n - size + 1 if i == along else n for i, n in enumerate(shape)] + [int(size)]
        strides.append(x.meta.strides[along])
    made = numpy_as_strided(x.meta, shape, strides)
    return trace.view(x, steps, made if writeable else _read_only(made))


def _read_only(meta: Any) -> Any:
    meta.flags.writeable = False
    return meta


def as_strided(
    trace: Trace,
    x: Traced,
    shape: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    writeable: bool = True,
) -> Any:
    """``np.lib.stride_tricks.as_strided`` with strides in bytes, over the memory that ``x`` is a view of.

    ShapeRuleError where it would read outside of that memory; UnsupportedOpError where the memory of an input
    is not dense and the strides do not follow its axes.
    """
    meta = x.meta
    extents = meta.shape if shape is None else tuple(int(n) for n in shape)
    steps_in_bytes = meta.strides if strides is None else tuple(int(s) for s in strides)
    if len(extents) != len(steps_in_bytes):
        raise ShapeRuleError("mismatch in length of strides and shape", trace.location())
    if any(s % meta.itemsize for s in steps_in_bytes):
        raise trace.unsupported(f"as_strided with strides {steps_in_bytes} that are not whole elements is not compiled")
    base, offset = _memory(trace, x)
    wanted = [(n, s // meta.itemsize) for n, s in zip(extents, steps_in_bytes)]
    low = offset + sum(min((n - 1) * s, 0) for n, s in wanted)
    high = offset + sum(max((n - 1) * s, 0) for n, s in wanted)
    if 0 not in extents and (low < 0 or high >= base.reach):
        message = (
            f"as_strided with shape {extents} and strides {steps_in_bytes} reads elements {low} to {high} "
            f"of memory that has {base.reach}; lower the shape or the strides"
        )
        raise ShapeRuleError(message, trace.location())
    moves = _recognise(base, offset, wanted)
    if moves is None:
        if not base.is_dense:
            raise trace.unsupported(
                f"as_strided on {x.buffer.path or 'an array'}, itself strided, is compiled only along its axes; "
                "pass np.ascontiguousarray of it"
            )
        strided = StridedAttributes(extents, tuple(s for _, s in wanted), offset)
        moves = [Step("strided", strided)]
    made = numpy_as_strided(meta, extents, steps_in_bytes, writeable=writeable)
    return trace.make(trace, x.buffer, (*base.steps, *moves), made)


@dataclass(frozen=True)
class _Memory:
    """A buffer's axes in the order they lie in memory, strides descending, in elements."""

    steps: tuple[Step, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    reach: int
    is_dense: bool


def _memory(trace: Trace, x: Traced) -> tuple[_Memory, int]:
    """The memory under ``x`` and the element of it where ``x`` starts."""
    root = x.buffer
    meta = _root_meta(trace, x, root)
    itemsize = meta.itemsize
    if any(s < 0 for s in meta.strides):
        raise trace.unsupported("as_strided on an input with negative strides is not compiled; copy it first")
    order = sorted(range(meta.ndim), key=lambda a: (-meta.strides[a], a))
    shape = tuple(meta.shape[a] for a in order)
    strides = tuple(meta.strides[a] // itemsize for a in order)
    dense = strides == describe(shape, np.dtype(np.int8)).strides
    reach = 1 + sum((n - 1) * s for n, s in zip(shape, strides)) if 0 not in shape else 0
    steps = () if order == list(range(meta.ndim)) else (Step("permute", PermuteAttributes(tuple(order))),)
    offset = (address_of(x.meta) - address_of(meta)) // itemsize if x.steps else 0
    return _Memory(steps, shape, strides, reach, dense), offset


def _root_meta(trace: Trace, x: Traced, root: Buffer) -> Any:
    if root.array is not None:
        return root.array
    if not x.steps:
        return x.meta
    if root.layout is None:
        raise trace.unsupported("as_strided of this view is not compiled; copy it first")
    return root.layout


def _recognise(base: _Memory, offset: int, wanted: list[tuple[int, int]]) -> list[Step] | None:
    """Slices, windows, transposes and broadcasts that make the strided view, or None."""
    starts = _split_offset(base, offset)
    if starts is None or 0 in base.shape or any(n == 0 for n, _ in wanted):
        return None
    rank = len(base.shape)
    along: list[list[int]] = [[] for _ in range(rank)]
    for position, (n, stride) in enumerate(wanted):
        if n == 1 or stride == 0:
            continue
        axis = _axis_of(base, stride, n)
        if axis is None:
            return None
        along[axis].append(position)
    steps: list[Step] = []
    slots: list[int | None] = [None] * rank  # which wanted axis each axis of the view so far is
    bounds = []
    windows: list[WindowsAttributes] = []
    inner: list[tuple[int, int]] = []
    for axis, positions in enumerate(along):
        moves = [(wanted[p][1] // base.strides[axis], wanted[p][0], p) for p in positions]
        if len(moves) > 2 or any(m <= 0 for m, _, _ in moves):
            return None
        span = sum(m * (n - 1) for m, n, _ in moves) + 1
        if starts[axis] + span > base.shape[axis]:
            return None
        if len(moves) == 2:
            (small, size, number_of_small), (large, _, number) = sorted(moves, key=lambda m: (m[0], -m[2]))
            if small != 1:
                return None
            bounds.append((starts[axis], starts[axis] + span, 1))
            slots[axis] = number
            windows.append(WindowsAttributes(axis, size, large))
            inner.append((axis, number_of_small))
        elif moves:
            step, _, slots[axis] = moves[0]
            bounds.append((starts[axis], starts[axis] + span, step))
        else:
            bounds.append((starts[axis], starts[axis] + 1, 1))
    if any(b != (0, n, 1) for b, n in zip(bounds, base.shape)):
        first, last, by = zip(*bounds) if bounds else ((), (), ())
        steps.append(Step("slice", SliceAttributes(first, last, by)))
    for attributes, (_, number_of_small) in zip(windows, inner):
        steps.append(Step("windows", attributes))
        slots.append(number_of_small)
    return [*steps, *_arrange(slots, wanted)]


def _arrange(slots: list[int | None], wanted: list[tuple[int, int]]) -> list[Step]:
    """From axes in the memory's order to the wanted axes: dropped, transposed, inserted, broadcast."""
    extents = [n for n, _ in wanted]
    order = [i for i, slot in enumerate(slots) if slot is None]
    order += sorted((i for i, slot in enumerate(slots) if slot is not None), key=lambda i: slots[i] or 0)
    steps: list[Step] = []
    if order != sorted(order):
        steps.append(Step("permute", PermuteAttributes(tuple(order))))
    used = {slot for slot in slots if slot is not None}
    ones = tuple(n if i in used else 1 for i, n in enumerate(extents))
    shape_before = [1 if slots[i] is None else extents[slots[i] or 0] for i in order]
    if tuple(shape_before) != ones:
        steps.append(Step("reshape", ShapeAttributes(ones)))
    if tuple(extents) != ones:
        steps.append(Step("broadcast", ShapeAttributes(tuple(extents))))
    return steps


def _split_offset(base: _Memory, offset: int) -> list[int] | None:
    """The index of the element at an offset."""
    starts = []
    for n, stride in zip(base.shape, base.strides):
        at = min(offset // stride, n - 1) if n > 1 and stride else 0
        starts.append(at)
        offset -= at * stride
    return starts if offset == 0 else None


def _axis_of(base: _Memory, stride: int, count: int) -> int | None:
    """The axis that a stride moves along: the one of the largest stride that divides it and is long enough."""
    for axis, (n, own) in enumerate(zip(base.shape, base.strides)):
        if n > 1 and own and stride % own == 0 and abs(stride) // own * (count - 1) < n:
            return axis
    return None
