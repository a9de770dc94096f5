# SPDX-License-Identifier: Apache-2.0
"""Which extents get a program of their own, beside one for ranges or where none can be made: those that come often.

A program for ranges is a little slower than one that knows the extents, most of all at small ones. So an extent that
comes now and then compiles nothing, and one that stays is as fast as if it were the only one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

from fusec.ir.index import Symbol
from fusec.ir.indexing import evaluate
from fusec.runtime.arrays import Layout
from fusec.runtime.dynamic import Opening

OFTEN = 16
"""Calls with the same extents after which these get a program."""

MOST = 8
"""Programs that are made in this way beside one for ranges; and, where none can be made, at once."""

_COUNTED = 4096
"""Sets of extents that are counted at a time."""

_STAYS = -1


class Frequent:
    """Counts the calls of one program for ranges by their extents."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._counts: dict[tuple[int, ...], int] = {}
        self._own = 0

    def __call__(self, *extents: int) -> bool:
        """Whether a call with these extents, in the order of the opening's symbols, is for a program of its own."""
        count = self._counts.get(extents, 0)
        if count in (OFTEN, _STAYS):
            return count == OFTEN
        if self._own == MOST:
            return False
        if len(self._counts) >= _COUNTED:
            self._counts = {e: n for e, n in self._counts.items() if n in (OFTEN, _STAYS)}
        self._counts[extents] = count + 1
        if count + 1 < OFTEN:
            return False
        self._own += 1
        return True

    def wants_own(self, layouts: Sequence[Layout]) -> bool:
        """Whether a call of such arrays is for a program of its own; it is not counted."""
        extents = self._extents(layouts)
        return extents is not None and self._counts.get(extents) == OFTEN

    def stays(self, layouts: Sequence[Layout]) -> bool:
        """Leaves such calls to the program for ranges, if they are its own, because none can be made for them alone."""
        extents = self._extents(layouts)
        if extents is None or self._counts.get(extents) != OFTEN:
            return False
        self._counts[extents] = _STAYS
        return True

    def _extents(self, layouts: Sequence[Layout]) -> tuple[int, ...] | None:
        """The symbols' values for such arrays; None where the opening is not for them."""
        shapes = self._opening.shapes
        if len(layouts) != len(shapes) or any(len(s) != x.type.rank for s, x in zip(shapes, layouts)):
            return None
        pairs = [pair for s, x in zip(shapes, layouts) for pair in zip(s, x.type.static_shape)]
        found = {s.name: n for s, n in reversed(pairs) if isinstance(s, Symbol)}
        if any(evaluate(s, found) != n for s, n in pairs):
            return None
        values = [(s, found[s.name]) for s in self._opening.symbols]
        fits = all((s.lo or 0) <= n and not (isinstance(s.hi, int) and n > s.hi) for s, n in values)
        return tuple(n for _, n in values) if fits else None


class Repeated:
    """Calls of one function that no program for ranges is for.

    Those that differ in extents, strides or numbers alone are of one kind. The first :data:`MOST` of them that differ
    are compiled at once. Of others, those that come again: a function of ever new extents would compile at each call.
    """

    def __init__(self) -> None:
        self._made: Counter[Hashable] = Counter()
        self._calls: Counter[Hashable] = Counter()

    def made(self, kind: Hashable) -> None:
        """Notes a program for calls of a kind."""
        self._made[kind] += 1

    def waits(self, kind: Hashable, key: Hashable) -> bool:
        """Counts a call that there is no program for; whether none is made for it yet. key: all that it is made for."""
        if self._made[kind] < MOST:
            return False
        if len(self._calls) >= _COUNTED:
            self._calls.clear()
        self._calls[key] += 1
        return self._calls[key] < OFTEN
