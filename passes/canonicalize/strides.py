# SPDX-License-Identifier: Apache-2.0
"""``as_strided`` recognised as slices, permutes, broadcasts and sliding windows of the operand's axes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod

from fusec.ir.attributes import SliceAttributes, StridedAttributes, WindowsAttributes
from fusec.ir.nodes import Value
from fusec.ir.types import contiguous_strides
from fusec.passes.rewrite import Outcome, Reject, Rewriter, Rule, rule

Shape = tuple[int, ...]


@dataclass
class _Axis:
    """How the view walks one axis of the source: from ``start``, along one result axis or two."""

    extent: int
    stride: int
    start: int = 0
    pieces: list[tuple[int, int, int]] = field(default_factory=list)
    """(result axis, its extent, step in elements of this axis), the larger step first."""

    def ends(self) -> tuple[int, int]:
        """The least and greatest position that is read."""
        reach = [(count - 1) * step for _, count, step in self.pieces]
        return self.start + sum(min(r, 0) for r in reach), self.start + sum(max(r, 0) for r in reach)


@rule("strided")
def strided_is_views(r: Rewriter) -> Outcome:
    """strided(x) ⇒ permute(windows(slice(reshape(x)))), where the strides follow the axes of x"""
    attributes = r.op.expect(StridedAttributes)
    (x,) = r.operands
    if 0 in attributes.shape:
        return None
    whole = prod(attributes.shape) == x.type.size and attributes.offset == 0
    if whole and attributes.strides == contiguous_strides(attributes.shape):
        return r.reshape(x, attributes.shape)
    for shape in _merged_shapes(x.type.static_shape):
        axes = _axes_of(shape, attributes)
        if axes is not None:
            return _views(r, r.reshape(x, shape), axes, attributes)
    strides = list(attributes.strides)
    return Reject(f"strides {strides} from {attributes.offset} step across the axes of {x.type} in no regular way")


def _merged_shapes(shape: Shape) -> Iterator[Shape]:
    """The shape without extents of 1, then with neighbouring axes merged, the least merged first."""
    axes = tuple(n for n in shape if n != 1) or (1,)
    cuts = len(axes) - 1
    for mask in sorted(range(1 << cuts), key=lambda m: (m.bit_count(), m)):
        merged = [axes[0]]
        for k in range(cuts):
            if mask >> k & 1:
                merged[-1] *= axes[k + 1]
            else:
                merged.append(axes[k + 1])
        yield tuple(merged)


def _axes_of(shape: Shape, attributes: StridedAttributes) -> list[_Axis] | None:
    """How the view walks each axis of a source of this shape; None where it does not keep to the axes."""
    axes = [_Axis(n, stride) for n, stride in zip(shape, contiguous_strides(shape))]
    rest = attributes.offset
    for axis in axes:
        axis.start, rest = divmod(rest, axis.stride)
    for k, (count, stride) in enumerate(zip(attributes.shape, attributes.strides)):
        if count == 1 or stride == 0:
            continue
        owner = next(axis for axis in axes if abs(stride) >= axis.stride)
        if stride % owner.stride:
            return None
        owner.pieces.append((k, count, stride // owner.stride))
    return axes if all(map(_is_regular, axes)) else None


def _is_regular(axis: _Axis) -> bool:
    """True when the axis is read within its extent as one slice, or as windows of a slice."""
    least, most = axis.ends()
    if least < 0 or most >= axis.extent or len(axis.pieces) > 2:
        return False
    axis.pieces.sort(key=lambda piece: (-piece[2], -piece[1]))
    if len(axis.pieces) < 2:
        return True
    (_, _, outer), (_, _, inner) = axis.pieces
    return inner > 0 and outer % inner == 0


def _views(r: Rewriter, x: Value, axes: list[_Axis], attributes: StridedAttributes) -> Value:
    order: list[int | None] = []
    x = _sliced(r, x, axes)
    inner_axes: list[int] = []
    for position, axis in enumerate(axes):
        order.append(axis.pieces[0][0] if axis.pieces else None)
        if len(axis.pieces) == 2:
            (_, _, outer), (number, size, inner) = axis.pieces
            x = r.emit("windows", x, attributes=WindowsAttributes(position, size, outer // inner))
            inner_axes.append(number)
    walked = [k for k in (*order, *inner_axes) if k is not None]
    x = r.reshape(x, [attributes.shape[k] for k in walked], hint="squeezed")
    x = r.permute(x, sorted(range(len(walked)), key=walked.__getitem__))
    extents = [n if k in walked else 1 for k, n in enumerate(attributes.shape)]
    return r.broadcast(r.reshape(x, extents, hint="unsqueezed"), attributes.shape)


def _sliced(r: Rewriter, x: Value, axes: list[_Axis]) -> Value:
    """The part of ``x`` that is read, each axis by its smallest step."""
    starts, stops, steps = [], [], []
    for axis in axes:
        least, most = axis.ends()
        step = axis.pieces[-1][2] if axis.pieces else 1
        starts.append(axis.start)
        stops.append(most + 1 if step > 0 else least - 1)
        steps.append(step)
    if not any(starts) and tuple(stops) == x.type.shape and all(step == 1 for step in steps):
        return x
    return r.emit("slice", x, attributes=SliceAttributes(tuple(starts), tuple(stops), tuple(steps)))


STRIDE_RULES: tuple[Rule, ...] = (strided_is_views,)
