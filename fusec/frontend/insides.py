# SPDX-License-Identifier: Apache-2.0
"""What objects of Python's own classes hold, where it is neither an attribute of a name that code reads nor a part of
a plain container: a deque, a weak reference, a context variable, a method of a dict.
"""

from __future__ import annotations

import threading
import weakref
from array import array
from collections import ChainMap, UserDict, UserList, UserString, deque
from collections.abc import Callable
from contextvars import ContextVar
from io import BytesIO, StringIO
from queue import Queue
from types import BuiltinMethodType, CellType, MappingProxyType, MethodWrapperType, ModuleType
from typing import Any

from fusec.frontend import raw
from fusec.frontend.raw import is_a

MISSING = object()

_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))

_ATTRIBUTES: dict[type, str] = {
    UserDict: "data",
    UserList: "data",
    UserString: "data",
    ChainMap: "maps",
    Queue: "queue",
    weakref.WeakValueDictionary: "data",
    weakref.WeakKeyDictionary: "data",
    weakref.WeakSet: "data",
}
"""Of classes written in Python: the attribute that holds all."""


def inside(value: Any) -> tuple[Callable[[Any], Any], Any] | None:
    """How to read what an object holds, and what that is now; None for one that holds nothing of the kind."""
    read = _reader(value)
    return None if read is None else (read, read(value))


def own_attributes(value: Any) -> dict[str, Any] | None:
    """The object's ``__dict__``, of a thread's local values those of this thread."""
    if is_a(value, threading.local):
        found: dict[str, Any] = threading.local.__getattribute__(value, "__dict__")
        return found
    return raw.attributes_of(value)


def _reader(value: Any) -> Callable[[Any], Any] | None:
    for kind, read in _READERS:
        if is_a(value, kind):
            return read
    for kind, name in _ATTRIBUTES.items():
        if is_a(value, kind):
            return _attribute_reader(name)
    return None


def _attribute_reader(name: str) -> Callable[[Any], Any]:
    return lambda value: (raw.attributes_of(value) or {}).get(name, MISSING)


def _cell(value: CellType) -> Any:
    try:
        return value.cell_contents
    except ValueError:
        return MISSING


def _text(kind: Any, value: Any) -> Any:
    """What is in a file in memory, and where it is read next."""
    try:
        return kind.getvalue(value), kind.tell(value)
    except ValueError:  # it is closed
        return MISSING


def _owner(value: Any) -> Any:
    """Whose method it is. A module's function, and a class's, is nobody's."""
    owner = value.__self__
    return None if is_a(owner, ModuleType, type) else owner


_READERS: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (bytearray, lambda value: bytes(memoryview(value))),
    (array, lambda value: (value.typecode, array.tobytes(value))),
    (memoryview, lambda value: (value.format, value.tobytes())),
    (deque, lambda value: list(deque.__iter__(value))),
    (MappingProxyType, lambda value: dict(MappingProxyType.items(value))),
    *((kind, lambda value: dict(value.mapping)) for kind in _VIEWS),
    (weakref.ReferenceType, lambda value: weakref.ReferenceType.__call__(value)),
    (StringIO, lambda value: _text(StringIO, value)),
    (BytesIO, lambda value: _text(BytesIO, value)),
    (ContextVar, lambda value: value.get(MISSING)),
    (CellType, _cell),
    (BuiltinMethodType, _owner),
    (MethodWrapperType, _owner),
)
