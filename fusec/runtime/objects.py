# SPDX-License-Identifier: Apache-2.0
"""Objects among a call's arguments that hold tensors: known by what is in them, once several of a class have come.

One that is the same at each call is known by itself, and its tensors are fetched from it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

from fusec.frontend import raw
from fusec.frontend.plain import is_plain
from fusec.frontend.results import HoldsArraysError
from fusec.frontend.state_errors import StateChangedError
from fusec.runtime.libraries import is_torch_module

_MOST_PARTS = 1000
"""Values of an object in which an array is looked for."""


class ObjectsSeen:
    """The classes of one function's arguments of which calls are told apart by what is in their instances."""

    def __init__(self) -> None:
        self._seen: dict[type, weakref.ref[Any]] = {}
        self._opened: frozenset[type] = frozenset()

    def note(self, values: Iterable[Any], is_array: Callable[[Any], bool]) -> None:
        """The arguments of a call."""
        for value in values:
            kind = type(value)
            if kind in self._opened or not kind.__weakrefoffset__ or not is_openable(value):
                continue
            known = self._seen.get(kind)
            if (known is None or known() is not value) and _holds_array(value, is_array):
                self._seen[kind] = weakref.ref(value)
                if known is not None:
                    self._opened |= {kind}

    def open_for(self, error: Exception, values: Iterable[Any]) -> bool:
        """Opens the classes of a call's arguments of which a run has changed some, or has returned one with arrays in
        it, as ``error`` says. Whether there were any: such a run can be captured then."""
        if not isinstance(error, StateChangedError | HoldsArraysError):
            return False
        found = {type(value) for value in values if is_openable(value)}
        found -= self._opened
        self._opened |= found
        return bool(found)

    def opens(self, value: Any, inside: bool) -> bool:
        """Whether an object is told by what is in it; ``inside``: it is a part of one that is."""
        return (inside or type(value) in self._opened) and is_openable(value)


def is_openable(value: Any) -> bool:
    """Whether an object of a Python class that holds nothing but attributes, and is no module."""
    return raw.is_object(value) and not is_plain(value) and not is_torch_module(value)


def _holds_array(value: Any, is_array: Callable[[Any], bool]) -> bool:
    waiting, seen = [value], {id(value)}
    while waiting and len(seen) < _MOST_PARTS:
        part = waiting.pop()
        if is_array(part):
            return True
        held: list[Any] = []
        if raw.is_a(part, list, tuple, dict):
            held = raw.values_of(part)
        elif is_openable(part):
            held = [*raw.values_of(raw.attributes_of(part) or {}), *raw.slots_of(part).values()]
        for inner in held:
            if id(inner) not in seen:
                seen.add(id(inner))
                waiting.append(inner)
    return False
