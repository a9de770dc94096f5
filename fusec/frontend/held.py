# SPDX-License-Identifier: Apache-2.0
"""Values that hold others: what is in them, and how it is put back."""

from __future__ import annotations

import functools
import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from io import BytesIO, StringIO
from operator import is_
from types import (
    BuiltinMethodType,
    CellType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy as np

from fusec.frontend import raw
from fusec.frontend.insides import MISSING, inside, own_attributes
from fusec.frontend.raw import is_a
from fusec.frontend.source import is_users_module

Same = Callable[[Any, Any], bool]
Slot = MemberDescriptorType | GetSetDescriptorType

_FUNCTION_SLOTS: tuple[GetSetDescriptorType, ...] = tuple(
    FunctionType.__dict__[name] for name in ("__code__", "__defaults__", "__kwdefaults__")
)
_BUFFERS = (StringIO, BytesIO)
_DESCRIPTORS = (property, classmethod, staticmethod, MemberDescriptorType, GetSetDescriptorType)


@dataclass(frozen=True)
class State:
    """What a value held at one moment.

    keys: of a dict. parts: of a container, in order; a dict's values, the elements of an array. table: the object's own
    ``__dict__``, and attributes: what was in it. slots: what was in them; of a function its code and defaults.
    """

    kind: type
    keys: list[Any]
    parts: Any
    table: dict[str, Any] | None
    attributes: list[tuple[str, Any]]
    slots: dict[Slot, Any]

    def items(self) -> list[tuple[Any, Any]]:
        """Of a dict."""
        return list(zip(self.keys, self.parts, strict=True))

    def names(self) -> dict[str, Any]:
        """Attributes and slots by name."""
        return {**dict(self.attributes), **{slot.__name__: held for slot, held in self.slots.items()}}


def contents(value: Any) -> State | None:
    """A shallow copy of what a value holds: a container's parts, an object's, a class's or a function's attributes.

    None where it holds nothing that a function may change, or is not the user's to change (a library's module). No
    code of the value's class runs.
    """
    kind = type(value)
    if is_a(value, ModuleType):
        return None
    if is_a(value, type):
        own = raw.table_of(value)
        return State(kind, [], None, None, list(own.items()), {}) if _is_users(own.get("__module__")) else None
    keys, parts = _parts(value)
    table = own_attributes(value)
    slots = _slots(value)
    if parts is None and table is None and not slots:
        return None
    return State(kind, keys, parts, table, [] if table is None else raw.items_of(table), slots)


def _slots(value: Any) -> dict[Slot, Any]:
    if is_a(value, FunctionType):
        return {slot: slot.__get__(value) for slot in _FUNCTION_SLOTS}
    return dict(raw.slots_of(value).items())


def _parts(value: Any) -> tuple[list[Any], Any]:
    """The keys and parts of a container; ``[], None`` for another value."""
    if is_a(value, dict):
        items = raw.items_of(value)
        return [key for key, _ in items], [part for _, part in items]
    if is_a(value, list, set, deque):
        return [], raw.values_of(value)
    if type(value) is np.ndarray:
        return [], value.copy()
    if is_a(value, ContextVar, CellType, *_BUFFERS):
        held = inside(value)
        return [], [held[1] if held is not None else MISSING]
    if is_a(value, bytearray):
        return [], bytes(bytearray.__getitem__(value, slice(None)))
    return [], array.tobytes(value) if is_a(value, array) else None


def put_back(value: Any, before: State) -> None:
    """Makes a value hold what it held; what it still does is not touched."""
    if is_a(value, type):
        _put_back_class(value, before)
        return
    if type(value) is not before.kind:
        object.__setattr__(value, "__class__", before.kind)
    if before.parts is not None:
        keys, parts = _parts(value)
        if not same_parts(keys, before.keys, is_) or not same_parts(parts, before.parts, is_):
            _put_back_parts(value, before)
    if before.table is not None:
        if own_attributes(value) is not before.table:
            raw.set_attributes(value, before.table)
        _put_back_table(before.table, before.attributes)
    now = _slots(value)
    for slot in now.keys() - before.slots.keys():
        slot.__delete__(value)
    for slot, held in before.slots.items():
        if now.get(slot, MISSING) is not held:
            slot.__set__(value, held)


def _put_back_parts(value: Any, before: State) -> None:
    if is_a(value, dict):
        raw.set_items(value, before.items())
    elif is_a(value, list, set, deque):
        raw.set_values(value, before.parts)
    elif type(value) is np.ndarray:
        value[...] = before.parts
    elif is_a(value, *_BUFFERS):
        _put_back_text(value, *before.parts[0])
    elif is_a(value, ContextVar, CellType):
        _put_back_content(value, before.parts[0])
    elif is_a(value, bytearray):
        bytearray.__setitem__(value, slice(None), before.parts)
    else:
        array.__delitem__(value, slice(None))
        array.frombytes(value, before.parts)


def _put_back_text(value: StringIO | BytesIO, held: Any, position: int) -> None:
    """Of a text or of bytes that are read and written as a file."""
    kind: Any = StringIO if is_a(value, StringIO) else BytesIO
    kind.seek(value, 0)
    kind.truncate(value)
    kind.write(value, held)
    kind.seek(value, position)


def _put_back_content(value: Any, before: Any) -> None:
    """Of a context variable, or of a cell. A variable that was not set is so again outside of the capture's context."""
    if is_a(value, CellType) and before is MISSING:
        del value.cell_contents
    elif is_a(value, CellType):
        value.cell_contents = before
    elif before is not MISSING:
        value.set(before)


def _put_back_table(table: dict[str, Any], before: list[tuple[str, Any]]) -> None:
    now = raw.items_of(table)
    if [name for name, _ in now] != [name for name, _ in before]:
        raw.set_items(table, before)
        return
    for (name, held), (_, then) in zip(now, before, strict=True):
        if held is not then:
            dict.__setitem__(table, name, then)


def _put_back_class(cls: type, before: State) -> None:
    now, then = dict(raw.table_of(cls)), dict(before.attributes)
    for name in now.keys() - then.keys():
        type.__delattr__(cls, name)
    for name, held in then.items():
        if now.get(name, MISSING) is not held:
            type.__setattr__(cls, name, held)


def same_parts(now: Any, then: Any, same: Same) -> bool:
    """Whether a container's parts are those that it had, compared by ``same``."""
    if now is None or is_a(then, bytes):
        return bool(now == then)
    if is_a(then, np.ndarray):
        return bool(now.dtype == then.dtype and now.shape == then.shape and now.tobytes() == then.tobytes())
    return len(now) == len(then) and all(x is y or same(x, y) for x, y in zip(now, then, strict=True))


def parts(value: Any, state: State | None) -> Iterator[tuple[str, Any]]:
    """What a value holds, with the names of attributes."""
    if is_a(value, tuple, frozenset):
        yield from (("", part) for part in raw.values_of(value))
    elif is_a(value, list, set, deque, dict) and state is not None:
        yield from (("", part) for part in state.parts)
    elif is_a(value, ContextVar, CellType) and state is not None:
        yield from (("", part) for part in state.parts if part is not MISSING)
    elif is_a(value, MethodType):
        yield "", value.__self__
    elif is_a(value, BuiltinMethodType):
        held = inside(value)
        yield "", held[1] if held is not None else None
    elif is_a(value, functools.partial):
        own = functools.partial.__dict__
        yield from (("", own[name].__get__(value)) for name in ("func", "args", "keywords"))
    if state is not None and is_a(value, type):
        listed = (entry for entry in state.attributes if not entry[0].startswith("__"))
        yield from (entry for entry in listed if not is_a(entry[1], FunctionType, *_DESCRIPTORS))
    elif state is not None and not is_a(value, FunctionType, np.ndarray):
        yield from state.names().items()


def is_torch_tensor(value: object) -> bool:
    """Whether it is one of PyTorch's, if that is there."""
    torch = sys.modules.get("torch")
    return torch is not None and is_a(value, torch.Tensor)


def torch_layout(tensor: Any) -> tuple[Any, ...]:
    """All that code may ask of a tensor besides its elements."""
    strides = tensor.stride() if "strided" in str(tensor.layout) else None
    return tuple(tensor.shape), tensor.dtype, strides, tensor.layout, tensor.device, tensor.requires_grad


def _is_users(module: object) -> bool:
    found = sys.modules.get(module) if type(module) is str else None
    return found is None or module == "__main__" or is_users_module(found)
