# SPDX-License-Identifier: Apache-2.0
"""Calls that make each row of their result from the same row of an operand: at which axis the rows are then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

Shape = tuple[int, ...]
Rule = Callable[..., int | None]
"""From an operand's shape, the axis of its rows and the call's other arguments to the axis of the result's rows."""


def _product(shape: Shape, axis: int, *others: torch.Tensor, **_: Any) -> int | None:
    """Rows times matrices."""
    return axis if axis < len(shape) - 1 and others[0].dim() <= 2 else None


def reshaped(shape: Shape, axis: int, new: Sequence[int], **_: Any) -> int | None:
    """An axis of the new shape that has the rows and nothing else."""
    sizes, count = [*new], shape[axis]
    if -1 in sizes:
        rest = -prod(sizes)
        sizes[sizes.index(-1)] = prod(shape) // rest if rest else 0
    before = prod(shape[:axis])
    return next((b for b, n in enumerate(sizes) if n == count and prod(sizes[:b]) == before), None)


def _unsqueezed(shape: Shape, axis: int, dim: int) -> int | None:
    dim %= len(shape) + 1
    return axis + (dim <= axis)


def _selected(shape: Shape, axis: int, dim: int, index: int) -> int | None:
    dim %= len(shape)
    return axis - (dim < axis) if dim != axis else None


def _squeezed(shape: Shape, axis: int, dim: int | None = None) -> int | None:
    if dim is None:
        return None  # where there is one row, its axis goes, too
    dim %= len(shape)
    return axis - (dim < axis and shape[dim] == 1) if dim != axis else None


def _sliced(
    shape: Shape, axis: int, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> int | None:
    is_all = (start or 0) == 0 and (end is None or end >= 1 << 62) and step == 1
    return axis if dim % len(shape) != axis or is_all else None


def _split(shape: Shape, axis: int, _: object, dim: int = 0) -> int | None:
    return axis if dim % len(shape) != axis else None


def _permuted(shape: Shape, axis: int, order: Sequence[int]) -> int | None:
    return [d % len(shape) for d in order].index(axis)


def _transposed(shape: Shape, axis: int, a: int = 0, b: int = 1) -> int | None:
    a, b = a % len(shape), b % len(shape)
    return b if axis == a else a if axis == b else axis


def _along(shape: Shape, axis: int, dim: int = -1, *_: object, **__: Any) -> int | None:
    """What keeps its shape, and goes along another axis."""
    return axis if dim % len(shape) != axis else None


def _normed(shape: Shape, axis: int, normalized: Sequence[int], *_: object, **__: Any) -> int | None:
    return axis if axis < len(shape) - len(normalized) else None


def _reduced(
    shape: Shape, axis: int, dims: Sequence[int] | int | None = None, keepdim: bool = False, **_: Any
) -> int | None:
    listed = [dims] if isinstance(dims, int) else dims
    over = {d % len(shape) for d in listed} if listed else {*range(len(shape))}
    if axis in over:
        return None
    return axis if keepdim else axis - sum(d < axis for d in over)


COPIES = frozenset({"_to_copy", "to", "clone", "contiguous", "alias", "detach", "lift_fresh"})
"""Calls whose results are equal to their operand, if their types hold its values."""

POINTWISE = COPIES | frozenset(
    {
        "type_as",
        *("zeros_like", "ones_like", "empty_like", "full_like", "dropout", "masked_fill", "masked_fill_"),
    }
)
"""Calls, besides those that PyTorch says are so, whose results are made element by element."""

VIEWS = frozenset({"view", "reshape", "unsqueeze", "squeeze", "select", "slice", "permute", "transpose", "t"})
"""Calls whose results have elements of their operand alone."""

RULES: dict[str, Rule] = {
    **dict.fromkeys(("linear", "matmul", "mm"), _product),
    **dict.fromkeys(("view", "reshape", "_unsafe_view"), reshaped),
    "unsqueeze": _unsqueezed,
    "squeeze": _squeezed,
    "select": _selected,
    "slice": _sliced,
    **dict.fromkeys(("split", "split_with_sizes", "chunk"), _split),
    "permute": _permuted,
    **dict.fromkeys(("transpose", "t"), _transposed),
    **dict.fromkeys(("softmax", "_softmax", "log_softmax", "_log_softmax", "glu", "cumsum"), _along),
    **dict.fromkeys(("layer_norm", "rms_norm"), _normed),
    **dict.fromkeys(("sum", "mean", "amax", "amin", "any", "all"), _reduced),
}
