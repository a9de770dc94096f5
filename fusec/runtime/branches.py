# SPDX-License-Identifier: Apache-2.0
"""Calls of a function that branches on values: a program for each way, which tests that a call goes it.

The first call runs as written and shows its way. The next is captured along it: the program computes what the branches
ask as well, and its results count where a call finds the same. Where it does not, the call takes another program, or
runs as written and shows its way. No program here changes an input or draws random numbers: it may be run in vain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fusec.errors import FusecError
from fusec.frontend.capture import Capture
from fusec.runtime.entry import MISS, Entry
from fusec.runtime.executable import Executable

MOST_WAYS = 4
"""Programs for calls of one signature."""

MOST_OUTCOMES = 32
"""Branches of one call; a function that asks more often has a loop that values end."""

MOST_SIGNATURES = 8
"""Signatures of one function's calls whose ways are looked for; each costs a capture that fails."""

MOST_CAPTURES = 8
"""Captures that are made for calls of one signature; a way is captured again where what it read has changed."""

FEW = 16
"""Calls before which no rate is taken."""

MOST_IN_VAIN = 0.25
"""The part of calls that may run a program in vain: it takes the time that the right one saves."""

Way = tuple[bool, ...]
Noted = Callable[[tuple[Any, ...], dict[str, Any]], tuple[Any, Way]]
"""Runs a call as written: its result, and what its branches found."""


@dataclass(frozen=True, eq=False)
class Along:
    """The program of one way. The entry misses where a call goes another."""

    entry: Entry
    capture: Capture
    executable: Executable


Make = Callable[[tuple[Any, ...], dict[str, Any], Way], Along]
"""Compiles a call along a way. Raises FusecError where that can't be."""


@dataclass
class Branches:
    """The ways of calls of one signature. ``reason``: why they all run as written by now; empty where they don't.

    ``ways``: the last one taken first. It is replaced and never changed: calls of other threads may go through it.
    """

    noted: Noted
    make: Make
    written: Callable[[Branches, tuple[Any, ...], dict[str, Any]], Any]
    ways: dict[Way, Along] = field(default_factory=dict)
    reason: str = ""
    _shown: Way | None = None
    _calls: int = 0
    _in_vain: int = 0
    _captures: int = 0

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.reason:
            return self.written(self, args, kwargs)
        self._calls += 1
        if self._calls > FEW and self._in_vain > MOST_IN_VAIN * self._calls:
            self.reason = "it branches on values, and calls take turns between the ways"
            return self.written(self, args, kwargs)
        for way, along in tuple(self.ways.items()):
            result = along.entry(args, kwargs)
            if result is not MISS:
                self._put_first(way, along)
                return result
            self._in_vain += 1
        shown, self._shown = self._shown, None
        if shown is not None:
            result = self._along(shown, args, kwargs)
            if result is not MISS:
                return result
            if self.reason:
                return self.written(self, args, kwargs)
        result, way = self.noted(args, kwargs)
        if len(way) > MOST_OUTCOMES:
            self.reason = "it branches on values too often: a loop goes on until they are something"
        elif len(self.ways) < MOST_WAYS or way in self.ways:
            self._shown = way
        return result

    def describe(self) -> str:
        """How calls run now, in a few words."""
        if self.reason:
            return f"as written: {self.reason}"
        count = len(self.ways)
        if not count:
            return "as written: none of its ways has a program yet"
        return f"by {count} program{'' if count == 1 else 's'}, one for each way that its branches on values went"

    def _along(self, way: Way, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._captures += 1
        if self._captures > MOST_CAPTURES:
            self.reason = "it branches on values, and what it reads besides its arguments changes from call to call"
            return MISS
        try:
            along = self.make(args, kwargs, way)
        except FusecError as error:
            self.reason = f"{error}"
            return MISS
        self._put_first(way, along)
        return along.entry(args, kwargs)

    def _put_first(self, way: Way, along: Along) -> None:
        ways = self.ways
        if next(iter(ways.items()), None) != (way, along):
            self.ways = {way: along} | {other: ways[other] for other in ways if other != way}


def in_vain(*_: object) -> Any:
    """Takes the place of a program that raised, or that can't run: another way's call may."""
    return MISS
