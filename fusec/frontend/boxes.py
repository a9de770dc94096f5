# SPDX-License-Identifier: Apache-2.0
"""Views that show a box of an array, some of its axes in another order: where a write through them goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusec.ir.attributes import Attributes, PermuteAttributes, ShapeAttributes, SliceAttributes

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Box:
    """``shape`` elements from ``starts`` on, in the array's own order of axes.

    A value of the view's shape becomes one of the box's when its axes are put in ``order`` and reshaped, which
    then only adds or drops axes of extent 1.
    """

    starts: Shape
    shape: Shape
    order: Shape


def box_of(shape: Shape, views: Sequence[Attributes]) -> Box | None:
    """The box of an array of this shape that a chain of views shows; None where they show something else."""
    starts, sizes = [0] * len(shape), list(shape)
    seen = list(shape)
    axes: list[int | None] = list(range(len(shape)))  # of the array, for each axis of the view
    for view in views:
        match view:
            case PermuteAttributes(permutation):
                axes, seen = [axes[k] for k in permutation], [seen[k] for k in permutation]
            case SliceAttributes():
                if not _cut(view, axes, seen, starts, sizes):
                    return None
            case ShapeAttributes():
                reshaped = _without_ones(axes, seen, view)
                if reshaped is None:
                    return None
                axes, seen = reshaped, [n for n in view.shape if isinstance(n, int)]
            case _:
                return None
    order = sorted(range(len(axes)), key=lambda k: -1 if (axis := axes[k]) is None else axis)
    return Box(tuple(starts), tuple(sizes), tuple(order))


def _cut(view: SliceAttributes, axes: list[int | None], seen: list[int], starts: list[int], sizes: list[int]) -> bool:
    """Narrows the box; False for steps other than 1, and for what leaves nothing."""
    for k, (start, stop, step) in enumerate(zip(view.starts, view.stops, view.steps, strict=True)):
        if (start, stop, step) == (0, seen[k], 1):
            continue
        axis = axes[k]
        if step != 1 or axis is None or not isinstance(start, int) or not isinstance(stop, int) or stop <= start:
            return False
        starts[axis] += start
        sizes[axis] = seen[k] = stop - start
    return True


def _without_ones(axes: Sequence[int | None], seen: Sequence[int], view: ShapeAttributes) -> list[int | None] | None:
    """The axes after a reshape (or broadcast) that only adds and drops axes of extent 1; None for another."""
    long_axes = [axis for axis, n in zip(axes, seen, strict=True) if n != 1]
    if [n for n in view.shape if n != 1] != [n for n in seen if n != 1]:
        return None
    left = iter(long_axes)
    return [None if n == 1 else next(left) for n in view.shape]
