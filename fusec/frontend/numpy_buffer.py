# SPDX-License-Identifier: Apache-2.0
"""Memory that a traced function writes to, as values: each write makes a new value of the whole buffer.

An array is a chain of views (``steps``) over a buffer. A write through views is carried back to the buffer by
undoing the views, so every other view of it sees the write, as in NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusec.frontend.boxes import box_of
from fusec.frontend.capture import Source
from fusec.frontend.numpy_emit import Emitter
from fusec.frontend.steps import Step
from fusec.ir.attributes import (
    ConcatAttributes,
    GatherAttributes,
    PadAttributes,
    PermuteAttributes,
    ShapeAttributes,
    SliceAttributes,
    UpdateAttributes,
)
from fusec.ir.nodes import InputRole, Value
from fusec.ir.types import TensorType, bool_, i64
from fusec.location import Location


@dataclass(frozen=True)
class _Range:
    """Positions ``start <= i < stop`` of one axis, all of the other axes."""

    axis: int
    start: int
    stop: int


MOST_UPDATES = 8
"""Ranges of an array of the caller's that are written each by itself; of more, all of it is made anew at once."""


@dataclass(eq=False)
class State:
    """An array that the function found in a closure, a global or an attribute: fetched anew at each call."""

    path: str
    fetch: Callable[[], Any]
    array: np.ndarray[Any, Any]
    touched: bool = False


class Inputs(Emitter):
    """An emitter that buffers become inputs of once they are read."""

    def add_input(self, buffer: Buffer) -> Value:
        raise NotImplementedError


class Buffer:
    """The value of some memory. ``version`` counts the writes.

    Writes to whole ranges along one axis are kept as pieces until the buffer is read as a whole: a loop that
    fills an array row by row becomes one concat.
    """

    def __init__(
        self,
        trace: Inputs,
        value: Value | None,
        *,
        array: np.ndarray[Any, Any] | None = None,
        name: str = "",
        role: InputRole = "argument",
        path: str = "",
    ) -> None:
        self.trace = trace
        self.version = 0
        self.array = array
        self.name = name
        self.role: InputRole = role
        self.path = path
        self.source: Source | None = None
        self.state: State | None = None
        self.layout: np.ndarray[Any, Any] | None = None
        self._value = value
        self._written_at: Location | None = None
        self._axis = 0
        self._pieces: dict[tuple[int, int], Value] = {}

    @property
    def value(self) -> Value:
        """The whole buffer's value; makes it a graph input if it is state that was not read yet."""
        if self._value is None:
            self.trace.add_input(self)
        if self._pieces:
            outer, self.trace.site = self.trace.site, self._written_at
            self._join()
            self.trace.site = outer
        assert self._value is not None
        return self._value

    @value.setter
    def value(self, value: Value) -> None:
        self._value = value
        self._pieces = {}

    @property
    def is_input(self) -> bool:
        return self.array is not None

    def read(self, steps: tuple[Step, ...]) -> Value:
        """The value of a chain of views."""
        if self._pieces and steps:
            wanted = _range_of(steps[0], self._type())
            if wanted is not None and wanted.axis == self._axis:
                piece = self._read_range(wanted, steps[0])
                if piece is not None:
                    return self._apply(piece, steps[1:])
        return self._apply(self.value, steps)

    def write(self, steps: tuple[Step, ...], new: Value) -> None:
        """Stores ``new``, of the type of the view chain, through it."""
        before = self.value if self._value is None else None  # state becomes an input before it is written
        self._check_writable()
        self.version += 1
        self._written_at = self.trace.location()
        wanted = _range_of(steps[0], self._type()) if steps else None
        if wanted is None:
            self.value = self._changed(before or self.value, steps, new)
            return
        if wanted.axis != self._axis or self._overlaps_partly(wanted):
            self._join()
            self._axis = wanted.axis
        old = self._read_range(wanted, steps[0]) if len(steps) > 1 else new
        if old is None:
            old = self._apply(self.value, steps[:1])
        piece = self._carry_back(old, steps[1:], new)
        outside = {k: v for k, v in self._pieces.items() if k[1] <= wanted.start or k[0] >= wanted.stop}
        self._pieces = {**outside, (wanted.start, wanted.stop): piece}

    def _changed(self, base: Value, steps: tuple[Step, ...], new: Value) -> Value:
        """The whole buffer after a write: of an array of the caller's, where it is a box, one that may be in place."""
        box = box_of(base.type.static_shape, [step.attributes for step in steps]) if self.is_input else None
        if box is None or box.shape == base.type.shape:
            return self._carry_back(base, steps, new)
        ordered = self.trace.emit("permute", new, attributes=PermuteAttributes(box.order))
        boxed = self.trace.reshape(ordered, box.shape)
        return self.trace.emit("update", base, boxed, attributes=UpdateAttributes(box.starts))

    def _type(self) -> TensorType:
        assert self._value is not None
        return self._value.type

    def _check_writable(self) -> None:
        if self.array is None:
            return
        if not self.array.flags.writeable:
            raise ValueError("assignment destination is read-only")
        if any(s == 0 and n > 1 for s, n in zip(self.array.strides, self.array.shape)):
            raise self.trace.unsupported(
                f"{self.path} overlaps itself in memory, so writing to it is not compiled; copy it"
            )

    def _overlaps_partly(self, wanted: _Range) -> bool:
        return any(
            start < wanted.stop and wanted.start < stop and not (wanted.start <= start and stop <= wanted.stop)
            for start, stop in self._pieces
        )

    def _read_range(self, wanted: _Range, step: Step) -> Value | None:
        exact = self._pieces.get((wanted.start, wanted.stop))
        if exact is not None:
            return exact
        if any(start < wanted.stop and wanted.start < stop for start, stop in self._pieces):
            return None
        assert self._value is not None
        return self._apply(self._value, (step,))

    def _join(self) -> None:
        """The pieces, and the old value between them, as one value."""
        if not self._pieces:
            return
        old, axis = self._value, self._axis
        assert old is not None
        extent = old.type.static_shape[axis]
        if len(self._pieces) == 1 and not self.is_input:
            ((start, stop),) = self._pieces
            step = _range_step(old.type, axis, start, stop)
            self.value = self._carry_back(old, (step,), self._pieces[start, stop])
            return
        if self.is_input and len(self._pieces) <= MOST_UPDATES:
            value = old
            for (start, stop), piece in self._pieces.items():
                value = self._changed(value, (_range_step(old.type, axis, start, stop),), piece)
            self.value = value
            return
        parts: list[Value] = []
        at = 0
        for (start, stop), piece in sorted(self._pieces.items()):
            if at < start:
                parts.append(self._apply(old, (_range_step(old.type, axis, at, start),)))
            if stop > start:
                parts.append(piece)
            at = max(at, stop)
        if at < extent:
            parts.append(self._apply(old, (_range_step(old.type, axis, at, extent),)))
        self.value = (
            parts[0] if len(parts) == 1 else self.trace.emit("concat", *parts, attributes=ConcatAttributes(axis))
        )

    def _apply(self, value: Value, steps: tuple[Step, ...]) -> Value:
        for step in steps:
            value = self.trace.emit(step.name, value, attributes=step.attributes)
        return value

    def _carry_back(self, base: Value, steps: tuple[Step, ...], new: Value) -> Value:
        chain = [base]
        for step in steps[:-1]:
            chain.append(self._apply(chain[-1], (step,)))
        for step, before in zip(reversed(steps), reversed(chain)):
            new = undo(self.trace, step, before, new)
        return new


def _range_of(step: Step, t: TensorType) -> _Range | None:
    """The range that a step picks, when it is one along a single axis."""
    if not isinstance(step.attributes, SliceAttributes):
        return None
    cut = _cut_axes(step.attributes, t)
    if len(cut) != 1 or step.attributes.steps[cut[0]] != 1:
        return None
    axis = cut[0]
    start, stop = step.attributes.starts[axis], step.attributes.stops[axis]
    assert isinstance(start, int)
    assert isinstance(stop, int)
    return _Range(axis, start, stop) if start < stop else None


def _range_step(t: TensorType, axis: int, start: int, stop: int) -> Step:
    return Step("slice", SliceAttributes.of_axes(t.static_shape, {axis: (start, stop)}))


def _cut_axes(attributes: SliceAttributes, t: TensorType) -> list[int]:
    parts = zip(attributes.starts, attributes.stops, attributes.steps, t.shape)
    return [axis for axis, (start, stop, step, n) in enumerate(parts) if (start, stop, step) != (0, n, 1)]


def undo(trace: Inputs, step: Step, before: Value, new: Value) -> Value:
    """``before`` with the elements that the view step picks replaced by ``new``."""
    match step.attributes:
        case PermuteAttributes(permutation):
            inverse = tuple(int(i) for i in np.argsort(permutation))
            return trace.emit("permute", new, attributes=PermuteAttributes(inverse))
        case ShapeAttributes() if step.name == "reshape":
            return trace.reshape(new, before.type.static_shape)
        case SliceAttributes():
            return _undo_slice(trace, step.attributes, before, new)
    raise trace.unsupported(
        f"writing to a view made by {step.name}, whose elements may overlap, is not compiled; copy it first"
    )


def _undo_slice(trace: Inputs, attributes: SliceAttributes, before: Value, new: Value) -> Value:
    """Flips undone, then ``select(inside, pad(new), before)``, or just the padding where ``before`` is one number."""
    shape = before.type.static_shape
    if 0 in new.type.static_shape:
        return before
    starts: list[int] = []
    steps: list[int] = []
    flips = []
    for axis, (start, step) in enumerate(zip(attributes.starts, attributes.steps)):
        assert isinstance(start, int)
        count = new.type.static_shape[axis]
        flips.append(step < 0)
        starts.append(start + (count - 1) * step if step < 0 else start)
        steps.append(abs(step) if count > 1 else 1)
    if any(flips):
        new = _flip(trace, new, flips)
    cut = [i for i, n in enumerate(new.type.static_shape) if n != shape[i]]
    if not cut:
        return new
    spread = {axis: steps[axis] for axis in cut if steps[axis] != 1}
    for axis, step in spread.items():
        new = _spread(trace, new, axis, starts[axis], step, shape[axis])
    counts = new.type.static_shape
    low = tuple(0 if i in spread else starts[i] for i in range(len(shape)))
    high = tuple(n - counts[i] - low[i] for i, n in enumerate(shape))
    fill = trace.fill_of(before)
    if fill is not None and not spread:
        return trace.emit("pad", new, fill, attributes=PadAttributes(low, high))
    zero = trace.constant(0, new.type.dtype)
    padded = trace.emit("pad", new, zero, attributes=PadAttributes(low, high)) if any(low) or any(high) else new
    inside = _inside(trace, shape, {a: (starts[a], steps[a], _count(attributes, a)) for a in cut})
    return trace.emit("select", inside, padded, before)


def _count(attributes: SliceAttributes, axis: int) -> int:
    start, stop = attributes.starts[axis], attributes.stops[axis]
    assert isinstance(start, int)
    assert isinstance(stop, int)
    return len(range(start, stop, attributes.steps[axis]))


def _flip(trace: Inputs, value: Value, flips: list[bool]) -> Value:
    shape = value.type.static_shape
    starts = tuple(n - 1 if flip else 0 for n, flip in zip(shape, flips))
    stops = tuple(-1 if flip else n for n, flip in zip(shape, flips))
    attributes = SliceAttributes(starts, stops, tuple(-1 if flip else 1 for flip in flips))
    return trace.emit("slice", value, attributes=attributes)


def _spread(trace: Inputs, new: Value, axis: int, start: int, step: int, extent: int) -> Value:
    """``new`` along an axis at positions ``start + k*step`` of ``extent``; what lies between is not used."""
    position = trace.iota(extent, i64)
    position = trace.binary("floordiv", trace.binary("sub", position, start), step)
    position = trace.binary("minimum", trace.binary("maximum", position, 0), new.type.static_shape[axis] - 1)
    return trace.emit("gather", new, position, attributes=GatherAttributes(axis))


def _inside(trace: Inputs, shape: tuple[int, ...], ranges: dict[int, tuple[int, int, int]]) -> Value:
    """True at the positions ``start + k*step``, ``0 <= k < count``, of each of the axes."""
    mask: Value | None = None
    for axis, (start, step, count) in ranges.items():
        position = trace.iota(shape[axis], i64, len(shape), axis)
        tests: list[Value] = []
        if start > 0:
            tests.append(trace.binary("ge", position, start))
        last = start + (count - 1) * step
        if last + 1 < shape[axis]:
            tests.append(trace.binary("le", position, last))
        if step > 1:
            offset = trace.binary("remainder", trace.binary("sub", position, start), step)
            tests.append(trace.binary("eq", offset, 0))
        for test in tests:
            mask = test if mask is None else trace.emit("logical_and", mask, test)
    if mask is None:
        mask = trace.constant(True, bool_)
    return trace.broadcast(mask, shape)
