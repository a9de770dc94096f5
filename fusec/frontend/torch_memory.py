# SPDX-License-Identifier: Apache-2.0
"""Aliasing while a torch function is traced: which traced tensors share memory, and writes through views.

A graph has no memory, so an in-place operation becomes a new value for the whole storage; each view of it is
taken again from the new value when it is next read.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from fusec.errors import UnsupportedOpError
from fusec.frontend.boxes import box_of
from fusec.frontend.steps import Step
from fusec.frontend.torch_emit import Emitter, extents, narrowing
from fusec.ir.attributes import (
    GatherAttributes,
    PadAttributes,
    PermuteAttributes,
    ShapeAttributes,
    SliceAttributes,
    UpdateAttributes,
)
from fusec.ir.nodes import Value
from fusec.ir.types import i64


@dataclass(eq=False)
class Memory:
    """What one storage holds.

    tensor: the traced tensor that covers it, for its strides. source: the graph input that it belongs to.
    sealed: why it can't be written, where a library call made other views of it. storage: the tensor's, when it was
    met: ``x.data = y`` and ``x.set_(y)`` give it another.
    """

    value: Value
    tensor: torch.Tensor
    source: int | None = None
    version: int = 0
    sealed: str = ""
    storage: torch.UntypedStorage = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.storage = self.tensor.untyped_storage()

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor still shows this memory."""
        return bool(tensor.untyped_storage()._cdata == self.storage._cdata)


@dataclass(eq=False)
class Handle:
    """A traced tensor: a memory seen through steps, and the value as of a version."""

    memory: Memory
    steps: tuple[Step, ...] = ()
    _value: Value | None = field(default=None, repr=False)
    _version: int = -1

    def read(self, emitter: Emitter) -> Value:
        """The tensor's present value."""
        if self._value is None or self._version != self.memory.version:
            self._value = apply_steps(emitter, self.memory.value, self.steps)
            self._version = self.memory.version
        return self._value

    def write(self, emitter: Emitter, value: Value) -> None:
        """Gives the tensor a new value, and with it everything that shares its memory."""
        memory = self.memory
        if memory.sealed:
            raise UnsupportedOpError(f"{emitter.call} writes to memory that {memory.sealed}", emitter.location)
        if memory.source is not None:
            memory.value = _update(emitter, memory.value, self.steps, value)
        else:
            memory.value = _write_back(emitter, memory.value, self.steps, value)
        memory.version += 1
        self._value, self._version = value, memory.version


def apply_steps(emitter: Emitter, value: Value, steps: tuple[Step, ...]) -> Value:
    for step in steps:
        value = emitter.emit(step.name, value, attributes=step.attributes)
    return value


def _update(emitter: Emitter, base: Value, steps: tuple[Step, ...], value: Value) -> Value:
    """The new contents of an input; where the steps show a box of it, as an ``update``, which may be made in place."""
    box = box_of(extents(base), [step.attributes for step in steps])
    if box is None or 0 in extents(value):
        return _write_back(emitter, base, steps, value)
    if box.shape == extents(base):
        return emitter.reshape(emitter.permute(value, box.order), box.shape)
    boxed = emitter.reshape(emitter.permute(value, box.order), box.shape)
    return emitter.emit("update", base, boxed, attributes=UpdateAttributes(box.starts))


def _write_back(emitter: Emitter, base: Value, steps: tuple[Step, ...], value: Value) -> Value:
    """The base after ``value`` is stored through the steps."""
    if not steps:
        return value
    first, *rest = steps
    seen = emitter.emit(first.name, base, attributes=first.attributes) if rest else base
    updated = _write_back(emitter, seen, tuple(rest), value) if rest else value
    match first.attributes:
        case ShapeAttributes() if first.name == "reshape":
            return emitter.reshape(updated, base.type.shape)
        case PermuteAttributes(permutation):
            inverse = sorted(range(len(permutation)), key=lambda axis: permutation[axis])
            return emitter.permute(updated, inverse)
        case SliceAttributes():
            return update_region(emitter, base, first.attributes, updated)
    raise UnsupportedOpError(
        f"{emitter.call} writes in place through overlapping memory ({first.name} of {base.type}); "
        "clone() the view before writing to it",
        emitter.location,
    )


def update_region(emitter: Emitter, base: Value, where: SliceAttributes, value: Value) -> Value:
    """``base`` with ``value`` in the region that the slice ``where`` shows."""
    shape = extents(base)
    starts = tuple(s for s in where.starts if isinstance(s, int))
    stops = tuple(s for s in where.stops if isinstance(s, int))
    partial = [a for a, n in enumerate(shape) if (starts[a], stops[a], where.steps[a]) != (0, n, 1)]
    if not partial:
        return value
    if 0 in extents(value):
        return base
    spread = _spread(emitter, value, shape, starts, where.steps)
    conditions: list[Value] = []
    for axis in partial:
        conditions += _inside(emitter, shape, axis, starts[axis], stops[axis], where.steps[axis])
    inside = conditions[0]
    for condition in conditions[1:]:
        inside = emitter.emit("logical_and", inside, condition)
    return emitter.emit("select", inside, spread, base)


def _inside(emitter: Emitter, shape: tuple[int, ...], axis: int, start: int, stop: int, step: int) -> list[Value]:
    """Conditions on the index along ``axis`` that together say whether a slice shows it."""
    device = emitter.out.device if emitter.results else "cpu"
    index = emitter.iota(shape, axis, i64, device)
    found = []
    if start > 0:
        found.append(emitter.emit("ge", index, emitter.constant(start, i64, device)))
    if stop < shape[axis]:
        found.append(emitter.emit("lt", index, emitter.constant(stop, i64, device)))
    if step > 1:
        position = emitter.emit("sub", index, emitter.constant(start, i64, device))
        rest = emitter.emit("remainder", position, emitter.constant(step, i64, device))
        found.append(emitter.emit("eq", rest, emitter.constant(0, i64, device)))
    return found


def _spread(
    emitter: Emitter, value: Value, shape: tuple[int, ...], starts: tuple[int, ...], steps: tuple[int, ...]
) -> Value:
    """A value of ``shape`` that has ``value`` at its positions; what is elsewhere does not matter."""
    scalar = _uniform(emitter, value)
    if scalar is not None:
        return emitter.broadcast(scalar, shape)
    for axis, step in enumerate(steps):
        if step > 1:
            value = _stretch(emitter, value, axis, step)
            over = starts[axis] + extents(value)[axis] - shape[axis]
            if over > 0:
                value = emitter.emit(
                    "slice", value, attributes=narrowing(extents(value), axis, 0, extents(value)[axis] - over, 1)
                )
    low = starts
    high = tuple(n - lo - d for n, lo, d in zip(shape, low, extents(value), strict=True))
    if not any(low) and not any(high):
        return value
    fill = emitter.constant(0, value.type.dtype, value.type.device)
    return emitter.emit("pad", value, fill, attributes=PadAttributes(low, high))


def _stretch(emitter: Emitter, value: Value, axis: int, step: int) -> Value:
    """Each element along ``axis``, ``step`` times."""
    device = value.type.device
    index = emitter.iota((extents(value)[axis] * step,), 0, i64, device)
    index = emitter.emit("floordiv", index, emitter.constant(step, i64, device))
    return emitter.emit("gather", value, index, attributes=GatherAttributes(axis))


def _uniform(emitter: Emitter, value: Value) -> Value | None:
    """The 0-d value that ``value`` repeats, if broadcasts of one are all it is."""
    while value.type.rank and value in emitter.viewed:
        value = emitter.viewed[value]
    return value if value.type.rank == 0 else None
