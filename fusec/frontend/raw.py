# SPDX-License-Identifier: Apache-2.0
"""Python objects as they lie: read and written by the types that store them, past all that their classes redefine.

Nothing here runs code of the user's: no ``__getattribute__``, property, ``__getitem__``, ``__iter__``, ``copy`` or
``__setattr__`` of a class, no ``__class__`` that it pretends to have. A key's ``__hash__`` is asked for where a dict
is written, and in an :class:`OrderedDict`.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import GetSetDescriptorType, MemberDescriptorType, WrapperDescriptorType
from typing import Any

_HEAP_TYPE = 1 << 9
"""The flag of classes that are not C's own (``Py_TPFLAGS_HEAPTYPE``)."""

_table = type.__dict__["__dict__"].__get__
_mro = type.__dict__["__mro__"].__get__


def is_a(value: object, *kinds: type) -> bool:
    """:func:`isinstance` by the object's real type."""
    return issubclass(type(value), kinds)


def table_of(cls: type) -> Mapping[str, Any]:
    """The attributes of a class itself, whatever its metaclass says."""
    table: Mapping[str, Any] = _table(cls)
    return table


def classes_of(cls: type) -> tuple[type, ...]:
    """A class and its bases, in the order in which attributes are looked up."""
    found: tuple[type, ...] = _mro(cls)
    return found


def in_class(cls: type, name: str) -> Any:
    """What a name stands for in a class and its bases; None where it is not there."""
    return next((table_of(c)[name] for c in classes_of(cls) if name in table_of(c)), None)


def is_in_class(cls: type, name: str) -> bool:
    """Whether a class or one of its bases has a name, which may stand for None."""
    return any(name in table_of(c) for c in classes_of(cls))


@dataclass(frozen=True)
class _Layout:
    """Where the instances of a class keep attributes: ``table`` gives their ``__dict__``, ``slots`` one each."""

    table: Any
    slots: tuple[MemberDescriptorType, ...]


_layouts: dict[int, tuple[weakref.ref[type], tuple[type, ...], _Layout]] = {}


def _layout(kind: type) -> _Layout:
    known = _layouts.get(id(kind))
    if known is None or known[0]() is not kind or known[1] is not classes_of(kind):  # its bases may change
        key = id(kind)
        own = weakref.ref(kind, lambda _: _layouts.pop(key, None))
        known = _layouts[key] = (own, classes_of(kind), _find_layout(kind))
    return known[2]


def _find_layout(kind: type) -> _Layout:
    table, slots = None, []
    for cls in classes_of(kind):
        own = table_of(cls)
        held = own.get("__dict__")
        if table is None and type(held) in (GetSetDescriptorType, MemberDescriptorType):
            table = held
        if "__slots__" in own and cls.__flags__ & _HEAP_TYPE:
            slots += [m for m in own.values() if type(m) is MemberDescriptorType and m.__objclass__ is cls]
        elif cls is defaultdict:
            slots.append(own["default_factory"])
    return _Layout(table, tuple(slots))


def attributes_of(value: object) -> dict[str, Any] | None:
    """The object's own ``__dict__``; None where it has none."""
    table = _layout(type(value)).table
    found = table.__get__(value) if table is not None else None
    return found if is_a(found, dict) else None


def set_attributes(value: object, table: dict[str, Any]) -> None:
    """Makes this very dict the object's ``__dict__``."""
    _layout(type(value)).table.__set__(value, table)


def slots_of(value: object) -> dict[MemberDescriptorType, Any]:
    """What is in an object's slots, by their descriptors; an empty one is left out."""
    found = {}
    for slot in _layout(type(value)).slots:
        try:
            found[slot] = slot.__get__(value)
        except AttributeError:
            continue
    return found


def fills(value: object, slot: MemberDescriptorType) -> bool:
    """Whether something is in a slot of an object."""
    try:
        slot.__get__(value)
    except AttributeError:
        return False
    return True


def has_slots(kind: type) -> bool:
    return bool(_layout(kind).slots)


def slot_of(kind: type, name: object) -> MemberDescriptorType | None:
    """The slot of this name."""
    return next((slot for slot in _layout(kind).slots if slot.__name__ == name), None)


def is_object(value: object) -> bool:
    """Whether an instance of a class written in Python, with nothing in it but attributes."""
    kind = type(value)
    own = classes_of(kind)[:-1]
    if not own or any(not c.__flags__ & _HEAP_TYPE for c in own):
        return False
    words = len(_layout(kind).slots) + (kind.__weakrefoffset__ > 0) + (kind.__dictoffset__ > 0)
    return kind.__basicsize__ <= object.__basicsize__ + 8 * words


def looks_up_plainly(kind: type) -> bool:
    """Whether attributes of a class's instances are looked up as Python does, by no code of the class."""
    return is_a(in_class(kind, "__getattribute__"), WrapperDescriptorType) and not is_a(
        in_class(kind, "__dict__"), property
    )


# Containers


def items_of(value: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """The keys and values of a dict, in order."""
    if is_a(value, OrderedDict):
        return [(key, dict.__getitem__(value, key)) for key in OrderedDict.__iter__(value)]
    return list(dict.items(value))


def keys_of(value: dict[Any, Any]) -> list[Any]:
    return [key for key, _ in items_of(value)]


def values_of(value: Any) -> list[Any]:
    """The parts of a tuple, a list, a set or a deque; of a dict its values."""
    for kind in (tuple, list, deque):
        if is_a(value, kind):
            return list(kind.__iter__(value))
    if is_a(value, dict):
        return [part for _, part in items_of(value)]
    return list(set(value) if is_a(value, set) else frozenset(value))


def set_items(value: dict[Any, Any], items: Iterable[tuple[Any, Any]]) -> None:
    """Makes a dict hold these."""
    kind = OrderedDict if is_a(value, OrderedDict) else dict
    kind.clear(value)
    for key, part in items:
        kind.__setitem__(value, key, part)


def set_values(value: Any, values: Iterable[Any]) -> None:
    """Makes a list, a set or a deque hold these."""
    if is_a(value, list):
        list.__setitem__(value, slice(None), values)
        return
    kind = set if is_a(value, set) else deque
    kind.clear(value)
    set.update(value, values) if kind is set else deque.extend(value, values)
