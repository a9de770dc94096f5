# SPDX-License-Identifier: Apache-2.0
"""Calls that can't be captured: none is tried over and over for one reason, and they run as written at once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

from fusec.frontend.structures import CallSpec, Node, Static, Structure
from fusec.runtime.arrays import Layout

TRIES = 2
"""Captures of one kind of calls that may fail. A function may change state at its first call alone, so not one."""

SECONDS = 1.0
"""What failed captures of one function may take together; then each kind has one try, unless what it changed may have
been settled by the first call."""

ALIKE = 2
"""Kinds of calls that fail where one line asks for a tensor's value. After these, and :data:`SECONDS`, calls that
differ from them in no more than their arrays' dtypes, ranks and devices are not tried."""

AT_ONCE = 4
"""Refused calls after which those like them are no longer looked into, but for some."""

BETWEEN = 64
"""Such calls until one is looked into, and then twice as many, up to :data:`MOST_BETWEEN`."""

MOST_BETWEEN = 4096

Entry = Callable[[tuple[Any, ...], dict[str, Any]], Any]

_TOLD = (bool, str, type(None))
"""Kinds of static values that decide what a function does; numbers only change from call to call."""


class Kind(NamedTuple):
    """What calls have in common: their arrays, and all else that decides what a function does."""

    arrays: Hashable
    rest: Hashable


def kind_of(library: str, spec: CallSpec, layouts: tuple[Layout, ...], mode: Hashable) -> Kind:
    """What calls have in common that differ in extents, strides, numbers, and in which object of a class is given."""
    arrays = tuple((x.type.dtype, x.type.rank, x.type.device) for x in layouts)
    named = tuple((name, _kind(part)) for name, part in spec.kwargs)
    return Kind(arrays, (library, tuple(map(_kind, spec.args)), named, mode))


def _kind(part: Structure) -> Hashable:
    if isinstance(part, Static):
        return part.key if type(part.value) in _TOLD else (type(part.value),)
    if isinstance(part, Node):
        return part.kind, part.keys, tuple(map(_kind, part.parts))
    return None


@dataclass
class _Failures:
    count: int
    reason: str
    may_settle: bool
    in_code: bool
    succeeded: bool = False


class Refusals:
    """The kinds of one function's calls of which captures have failed."""

    def __init__(self) -> None:
        self._failures: dict[Kind, _Failures] = {}
        self._seconds = 0.0
        self._calls = 0

    def failed(
        self, kind: Kind, reason: str, seconds: float, *, may_settle: bool = False, in_code: bool = False
    ) -> None:
        """Notes a capture that failed, and how long it took.

        ``may_settle``: another may do better. ``in_code``: the line that ``reason`` names asks for a tensor's value.
        """
        known = self._failures.get(kind)
        self._failures[kind] = _Failures(1 if known is None else known.count + 1, reason, may_settle, in_code)
        self._seconds += seconds

    def succeeded(self, kind: Kind) -> None:
        """Notes that a call of a kind was captured."""
        known = self._failures.get(kind)
        if known is not None:
            known.succeeded = True

    def has_failed(self, kind: Kind) -> bool:
        """Whether captures of a kind have failed, and none has not: one for ranges of extents would take several."""
        known = self._failures.get(kind)
        return known is not None and not known.may_settle and not known.succeeded

    def reason(self, kind: Kind) -> str:
        """Why calls of this kind are not tried any more; empty where they are."""
        known = self._failures.get(kind)
        if known is None:
            return self._reason_of_others(kind)
        if known.count < (TRIES if self._seconds < SECONDS or known.may_settle else 1):
            return ""
        return known.reason

    def _reason_of_others(self, kind: Kind) -> str:
        """What calls that differ in their arrays alone have failed for, one after the other."""
        if self._seconds < SECONDS:
            return ""
        alike = [f.reason for k, f in self._failures.items() if k.rest == kind.rest and f.in_code]
        return next((reason for reason in alike if alike.count(reason) >= ALIKE), "")

    def is_usual(self) -> bool:
        """Counts a refused call; whether there have been so many that an entry for them is worth it."""
        self._calls += 1
        return self._calls >= AT_ONCE


class WrittenEntries:
    """The entries that run calls as written by the types of their arguments, and by what is said of :data:`_TOLD`.

    One call in some is a miss, so that it is looked into.
    """

    def __init__(self) -> None:
        self._known: set[Hashable] = set()

    def make(self, args: tuple[Any, ...], kwargs: dict[str, Any], run: Entry, miss: object) -> Entry | None:
        """One for calls like this; None where there is one."""
        given, names, named = tuple(map(type, args)), tuple(kwargs), tuple(map(type, kwargs.values()))
        told = [(k, value) for k, value in enumerate((*args, *kwargs.values())) if type(value) in _TOLD]
        key = (given, names, named, tuple(told))
        if key in self._known:
            return None
        self._known.add(key)
        left = between = BETWEEN

        def entry(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            nonlocal left, between
            if tuple(map(type, args)) != given:
                return miss
            if (kwargs or names) and (tuple(kwargs) != names or tuple(map(type, kwargs.values())) != named):
                return miss
            if told:
                values = (*args, *kwargs.values())
                if any(values[k] != value for k, value in told):
                    return miss
            left -= 1
            if not left:
                left = between = min(2 * between, MOST_BETWEEN)
                return miss
            return run(args, kwargs)

        return entry
