# SPDX-License-Identifier: Apache-2.0
"""ATen calls that show the memory of their operand: each result as a chain of view ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fusec.frontend.steps import Step
from fusec.frontend.torch_emit import Declined, Emitter, axis_of, narrowing
from fusec.ir.attributes import PermuteAttributes, ShapeAttributes, WindowsAttributes

Shape = tuple[int, ...]
Paths = list[tuple[Step, ...]]


def _reshape(e: Emitter, shape: Shape, *_: object, **__: object) -> Paths:
    return [_reshaped(e.out.static_shape)]


def _reshaped(shape: Shape) -> tuple[Step, ...]:
    return (Step("reshape", ShapeAttributes(shape)),)


def _same(e: Emitter, shape: Shape, *_: object, **__: object) -> Paths:
    return [()]


def _expand(e: Emitter, shape: Shape, *_: object, **__: object) -> Paths:
    return [(Step("broadcast", ShapeAttributes(e.out.shape)),)]


def _permute(e: Emitter, shape: Shape, dims: Sequence[int]) -> Paths:
    return [_permuted(tuple(axis_of(len(shape), d) for d in dims))]


def _permuted(permutation: tuple[int, ...]) -> tuple[Step, ...]:
    return (Step("permute", PermuteAttributes(permutation)),) if permutation != tuple(range(len(permutation))) else ()


def _transpose(e: Emitter, shape: Shape, dim0: int, dim1: int) -> Paths:
    order = list(range(len(shape)))
    if order:
        a, b = axis_of(len(shape), dim0), axis_of(len(shape), dim1)
        order[a], order[b] = order[b], order[a]
    return [_permuted(tuple(order))]


def _t(e: Emitter, shape: Shape) -> Paths:
    return [_permuted(tuple(reversed(range(len(shape)))))]


def _narrow(shape: Shape, axis: int, start: int, stop: int, step: int = 1) -> tuple[Step, ...]:
    if (start, stop, step) == (0, shape[axis], 1):
        return ()
    return (Step("slice", narrowing(shape, axis, start, stop, step)),)


def _select(e: Emitter, shape: Shape, dim: int, index: int) -> Paths:
    axis = axis_of(len(shape), dim)
    index = index % shape[axis]
    return [_narrow(shape, axis, index, index + 1) + _reshaped(e.out.static_shape)]


def _slice(
    e: Emitter, shape: Shape, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Paths:
    axis = axis_of(len(shape), dim)
    first, beyond, _ = slice(start, end).indices(shape[axis])
    return [_narrow(shape, axis, first, max(first, beyond), step)]


def _split(e: Emitter, shape: Shape, split_size: int | Sequence[int], dim: int = 0) -> Paths:
    axis = axis_of(len(shape), dim)
    sizes = [t.static_shape[axis] for t in e.results]
    ends = [sum(sizes[: k + 1]) for k in range(len(sizes))]
    return [_narrow(shape, axis, end - size, end) for size, end in zip(sizes, ends)]


def _unbind(e: Emitter, shape: Shape, dim: int = 0) -> Paths:
    axis = axis_of(len(shape), dim)
    rest = shape[:axis] + shape[axis + 1 :]
    return [_narrow(shape, axis, k, k + 1) + _reshaped(rest) for k in range(shape[axis])]


def _unfold(e: Emitter, shape: Shape, dimension: int, size: int, step: int) -> Paths:
    if size < 1:
        raise Declined("unfold to empty windows")
    if not shape:
        return [_reshaped((1,))]
    return [(Step("windows", WindowsAttributes(axis_of(len(shape), dimension), size, step)),)]


VIEWS: dict[str, Callable[..., Paths]] = {
    "view": _reshape,
    "_unsafe_view": _reshape,
    "_reshape_alias": _reshape,
    "reshape": _reshape,
    "unsqueeze": _reshape,
    "squeeze": _reshape,
    "alias": _same,
    "detach": _same,
    "expand": _expand,
    "permute": _permute,
    "transpose": _transpose,
    "t": _t,
    "select": _select,
    "slice": _slice,
    "split": _split,
    "split_with_sizes": _split,
    "unsafe_split": _split,
    "unbind": _unbind,
    "unfold": _unfold,
}
