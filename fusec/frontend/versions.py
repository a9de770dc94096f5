# SPDX-License-Identifier: Apache-2.0
"""Python's own versions of dicts and classes, read from memory.

CPython gives a dict a new number at each change (PEP 509, up to 3.13), and a class at each change of it or of its
bases. No number is given twice. Where this Python does not do so, :data:`KEEPS_VERSIONS` is False.
"""

from __future__ import annotations

import ctypes
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

Words = np.ndarray[Any, np.dtype[np.int64]]

MOST_AT_ONCE = 500
"""Words that NumPy picks without giving up the interpreter's lock."""
_WORD = 8
_TYPE_AT = _WORD
"""Where an object says which class it is of (``ob_type``)."""
_MANAGED_AT = -3 * _WORD
"""Where an object of a class without ``__dictoffset__`` keeps its ``__dict__``, once it has been asked for."""


class _Memory:
    """All of memory, from the first word that is not 0, as an array that owns nothing."""

    def __init__(self) -> None:
        shape = ((1 << 44) - 1,)
        self.__array_interface__ = {"data": (_WORD, True), "shape": shape, "typestr": "<i8", "version": 3}


_memory: Words = np.asarray(_Memory())


def places_of(addresses: Sequence[int]) -> Words:
    """Where :func:`words_at` finds the words at these addresses."""
    return np.array(addresses, np.int64) // _WORD - 1


def words_at(places: Words) -> bytes:
    """The words at some places, at most :data:`MOST_AT_ONCE`. Their memory must be that of living objects."""
    return _memory[places].tobytes()


def address_of_class(value: object) -> int:
    """The address of the word that says which class an object is of."""
    return id(value) + _TYPE_AT


def address_of_table(value: object, table: dict[str, Any]) -> int | None:
    """The address of the word by which an object refers to its ``__dict__``; None where it is not found."""
    offset = type(value).__dictoffset__
    found = id(value) + (offset if offset > 0 else _MANAGED_AT)
    return found if ctypes.c_size_t.from_address(found).value == id(table) else None


def address_of_version(value: dict[Any, Any] | type) -> int:
    """The address of the version of a dict or a class."""
    return id(value) + (_CLASS_AT if isinstance(value, type) else _DICT_AT)


def _word(address: int) -> int:
    return ctypes.c_size_t.from_address(address).value


def _changes(address: int, steps: Iterable[Callable[[], object]], look: Callable[[], object]) -> bool:
    """Whether the word is another one after each step, and the same after each look."""
    look()
    seen = [_word(address)]
    for step in steps:
        step()
        look()
        seen.append(_word(address))
        look()
        if seen[-1] != _word(address):
            return False
    return len(set(seen)) == len(seen) and 0 not in seen


class _Plain:
    """An object with attributes."""

    x: Any

    def __init__(self) -> None:
        self.x = 1

    def give(self, value: Any) -> None:
        self.x = value


def _dict_steps(table: dict[str, Any]) -> list[Callable[[], object]]:
    return [
        lambda: table.__setitem__("x", 2),
        lambda: table.update(x=3.0, y=4),
        lambda: table.pop("y"),
        lambda: table.setdefault("z", []),
        lambda: table.__delitem__("z"),
        lambda: table.__ior__({"x": None}),
        table.clear,
        lambda: table.__setitem__("x", True),
        table.popitem,
    ]


def _is_dict_offset(offset: int) -> bool:
    for made in ({"x": 1}, OrderedDict(x=1), {f"n{k}": k for k in range(40)}):
        if not _changes(id(made) + offset, _dict_steps(made), lambda made=made: made.get("x")):  # type: ignore[misc]
            return False
    value = _Plain()
    own = value.__dict__
    steps: list[Callable[[], object]] = [lambda k=k: value.give([k]) for k in range(64)]  # type: ignore[misc]
    steps += [lambda: setattr(value, "y", 1), lambda: delattr(value, "y"), lambda: object.__setattr__(value, "x", 0)]
    return address_of_table(value, own) is not None and _changes(id(own) + offset, steps, lambda: own["x"])


def _is_class_offset(offset: int) -> bool:
    class Base:
        pass

    class Other:
        pass

    class Derived(Base):
        pass

    value = Derived()
    steps: list[Callable[[], object]] = [
        lambda: setattr(Derived, "x", 1),
        lambda: setattr(Derived, "x", property(lambda self: 2)),
        lambda: delattr(Derived, "x"),
        lambda: setattr(Base, "x", 3),
        lambda: delattr(Base, "x"),
        lambda: setattr(Derived, "__bases__", (Other,)),
    ]
    return _changes(id(Derived) + offset, steps, lambda: value.__class__)


def _find(is_offset: Callable[[int], bool], usual: int, least: int, most: int) -> int:
    offsets = (usual, *range(least, most, _WORD))
    return next((offset for offset in offsets if is_offset(offset)), 0)


def _is_locked() -> bool:
    """Whether one thread runs at a time, words are of 64 bits, and ``id`` is an address."""
    locked = getattr(sys, "_is_gil_enabled", lambda: True)()
    return bool(locked) and sys.implementation.name == "cpython" and sys.maxsize == (1 << 63) - 1


_DICT_AT = _find(_is_dict_offset, 3 * _WORD, object.__basicsize__, dict.__basicsize__) if _is_locked() else 0
_CLASS_AT = _find(_is_class_offset, 48 * _WORD, 24 * _WORD, 60 * _WORD) if _DICT_AT else 0
KEEPS_VERSIONS = _DICT_AT > 0 and _CLASS_AT > 0
