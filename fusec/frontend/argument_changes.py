# SPDX-License-Identifier: Apache-2.0
"""What a call leaves in the containers and objects among its arguments: a cache that grows, a list that is appended to.

A traced run gets copies of them, and changes those. What it changed is made by each call of what the call computes,
and put into the caller's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fusec.frontend import raw
from fusec.frontend.held import State, contents
from fusec.frontend.structures import Given, Opener, Opens, Static, set_own_attributes

Edit = tuple[int, str, tuple[Any, ...], tuple[Any, ...]]
"""The container's number, what is done, keys or names, values: see :data:`_APPLIED`."""


class GivenContainers:
    """The containers and objects among a call's arguments, as a run gets them, and what was in them before it."""

    def __init__(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], is_array: Callable[[Any], bool], opens: Opens
    ) -> None:
        opener = Opener(is_array, [], opens)
        for value in (*args, *kwargs.values()):
            opener.open(value)
        self.containers = opener.containers
        self._before = [contents(container) for container in self.containers]

    @property
    def known(self) -> dict[int, Given]:
        """What stands for each in a result, by identity."""
        return {id(container): Given(number) for number, container in enumerate(self.containers)}

    def edits(self) -> tuple[Edit, ...] | None:
        """What the run has changed; None where no call can do the same."""
        found: list[Edit] = []
        for number, (container, before) in enumerate(zip(self.containers, self._before, strict=True)):
            now = contents(container)
            if now is None or before is None or now.kind is not before.kind or now.table is not before.table:
                return None
            if now.parts is not None:
                found += _changed_items(number, now, before)
            found += _changed_attributes(number, now.names(), before.names())
        return tuple(found)


def _changed_items(number: int, now: State, before: State) -> Iterator[Edit]:
    """Of a list or a dict."""
    is_list = issubclass(now.kind, list)
    keys = list(range(len(now.parts))) if is_list else now.keys
    known = list(range(len(before.parts))) if is_list else before.keys
    if not _same_parts(keys, known):
        yield (number, "all", () if is_list else tuple(keys), tuple(now.parts))
        return
    changed = [k for k, (part, then) in enumerate(zip(now.parts, before.parts, strict=True)) if not _same(part, then)]
    if changed:
        yield (number, "items", tuple(keys[k] for k in changed), tuple(now.parts[k] for k in changed))


def _changed_attributes(number: int, now: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[Edit]:
    gone = tuple(name for name in before if name not in now)
    if gone:
        yield (number, "without", gone, ())
    changed = tuple(name for name in now if name not in before or not _same(now[name], before[name]))
    if changed:
        yield (number, "attributes", changed, tuple(now[name] for name in changed))


def _same(now: Any, then: Any) -> bool:
    """Whether one may stay for the other: the same object, or equal plain values, in tuples too."""
    if now is then:
        return True
    if type(now) is not type(then):
        return False
    if raw.is_a(now, tuple):
        return _same_parts(raw.values_of(now), raw.values_of(then))
    return Static(now) == Static(then)


def _same_parts(now: Sequence[Any], then: Sequence[Any]) -> bool:
    return len(now) == len(then) and all(map(_same, now, then))


# Applying


def apply_edits(edits: Sequence[Edit], containers: Sequence[Any]) -> None:
    """Does to the containers what a run did to its copies of them."""
    for number, what, names, values in edits:
        _APPLIED[what](containers[number], names, values)


def _all(container: Any, names: tuple[Any, ...], values: tuple[Any, ...]) -> None:
    if raw.is_a(container, list):
        raw.set_values(container, values)
    else:
        raw.set_items(container, zip(names, values, strict=True))


def _items(container: Any, names: tuple[Any, ...], values: tuple[Any, ...]) -> None:
    set_item = list.__setitem__ if raw.is_a(container, list) else dict.__setitem__
    for name, value in zip(names, values, strict=True):
        set_item(container, name, value)


def _attributes(container: Any, names: tuple[Any, ...], values: tuple[Any, ...]) -> None:
    set_own_attributes(container, zip(names, values, strict=True))


def _without(container: Any, names: tuple[Any, ...], values: tuple[Any, ...]) -> None:
    for name in names:
        slot = raw.slot_of(type(container), name)
        if slot is not None:
            slot.__delete__(container)
        else:
            dict.__delitem__(raw.attributes_of(container) or {}, name)


_APPLIED = {"all": _all, "items": _items, "attributes": _attributes, "without": _without}
