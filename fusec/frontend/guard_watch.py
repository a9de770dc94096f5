# SPDX-License-Identifier: Apache-2.0
"""Whether objects hold what they held when guards of them last passed, by versions of their dicts and classes.

A model has thousands of attributes that are guarded. Where no dict that holds them has changed, nor a class by which
they are looked up, all of these guards would pass again.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from fusec.frontend import raw
from fusec.frontend.versions import (
    KEEPS_VERSIONS,
    MOST_AT_ONCE,
    Words,
    address_of_class,
    address_of_table,
    address_of_version,
    places_of,
    words_at,
)

_Level = list[tuple[Words, bytes]]
"""Places of words, and what they are."""
_MOST_WAITED = 1024
_KEPT = 64
"""Calls after which what was noted has been worth it."""
NOTHING: _Level = []
"""Stands for the versions where none are to be noted."""


def may_be_watched(value: object) -> bool:
    """Whether an object's attributes are in a dict of its own that has versions."""
    kind = type(value)
    return KEEPS_VERSIONS and kind.__weakrefoffset__ != 0 and type(raw.attributes_of(value)) is dict


class GuardWatch:
    """Looks at objects, and at dicts among their attributes (``tables``), all at once.

    ``look`` is None where all is as it was noted. Else the guards have to run, and when they have passed ``keep`` is
    called with what ``look`` gave: what they read had these versions before, and has them still. Objects are not kept
    alive. Words are read level by level, so that memory is read only of what is alive: of objects (their references
    tell of their end), then of their ``__dict__``, then of dicts in these.
    """

    def __init__(self) -> None:
        self._objects: dict[int, tuple[weakref.ref[Any], dict[str, None]]] = {}
        self._gone: list[object] = []
        self._held: _Level | None = None
        self._calls = 0
        self._waits = 0
        self._left = 0

    def __len__(self) -> int:
        return len(self._objects)

    def add(self, value: object) -> None:
        """Watches an object's class and ``__dict__``; :func:`may_be_watched` must hold."""
        if id(value) not in self._objects:
            self._objects[id(value)] = (weakref.ref(value, self._gone.append), {})

    def add_table(self, value: object, name: str) -> bool:
        """Watches a dict among the attributes of an object that is watched; False where it is no plain one."""
        own = raw.attributes_of(value) or {}
        if id(value) not in self._objects or type(own.get(name)) not in (dict, OrderedDict):
            return False
        self._objects[id(value)][1][name] = None
        return True

    def look(self) -> _Level | None:
        """None where all is as it was when ``keep`` was last called."""
        held, gone = self._held, self._gone
        if held is not None:
            for places, words in held:
                if gone or words_at(places) != words:
                    break
            else:
                self._calls += 1
                return None
            self._held = None
            self._waits = 0 if self._calls >= _KEPT else self._waits
            self._wait()
        if self._left:
            self._left -= 1
            return NOTHING
        return self._read()

    def keep(self, level: _Level) -> None:
        """The guards have passed. ``level`` is what ``look`` gave before they ran."""
        if not level or self._gone:
            return
        if all(words_at(places) == words for places, words in level):
            self._held, self._calls = level, 0
        else:
            self._wait()

    def _wait(self) -> None:
        """What changes often is noted ever more seldom: to read all versions takes longer than the guards."""
        self._waits = min(2 * self._waits + 1, _MOST_WAITED)
        self._left = self._waits

    def _read(self) -> _Level:
        """All words as they are now; nothing where an object has none of its own, or is no more."""
        objects, tables, inner = list[int](), list[int](), list[int]()
        kinds: dict[type, None] = {}
        alive = []
        for reference, names in self._objects.values():
            value = reference()
            own = raw.attributes_of(value) if value is not None else None
            place = address_of_table(value, own) if type(own) is dict else None
            if place is None or own is None:
                return NOTHING
            alive.append(value)
            kinds[type(value)] = None
            objects += (address_of_class(value), place)
            tables.append(address_of_version(own))
            for name in names:
                table = own.get(name)
                if table is None or type(table) not in (dict, OrderedDict):
                    return NOTHING
                inner.append(address_of_version(table))
        classes = [address_of_version(kind) for kind in kinds]
        found = _read_all([objects, [*classes, *tables], inner])
        unnumbered = any(not any(words_at(places_of([address]))) for address in classes)
        return NOTHING if unnumbered else found


def _read_all(levels: Sequence[Sequence[int]]) -> _Level:
    found = []
    for addresses in levels:
        for start in range(0, len(addresses), MOST_AT_ONCE):
            places = places_of(addresses[start : start + MOST_AT_ONCE])
            found.append((places, words_at(places)))
    return found
