# SPDX-License-Identifier: Apache-2.0
"""Whether what a call changes shares memory with something else that it is given."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from fusec.runtime.arrays import Arrays


class Sharing:
    """True for inputs of which one that is mutated lies in the memory of another.

    Remembers where inputs lay that did not: a call looks again only at those that lie elsewhere now. ``fixed`` says
    that every call has the same extents; otherwise each is looked at.
    """

    def __init__(self, arrays: Arrays, mutated: Sequence[int], *, fixed: bool) -> None:
        self._arrays = arrays
        self._mutated = frozenset(mutated)
        self._fixed = fixed
        self._addresses: list[int | None] = []
        self._spans: list[tuple[int, int]] = []
        self._changed: list[tuple[int, int]] = []

    def __call__(self, *inputs: Any) -> bool:
        addresses = list(map(self._arrays.address_of, inputs))
        if addresses == self._addresses:
            return False
        moved = [k for k, a in enumerate(addresses) if not self._addresses or a != self._addresses[k]]
        spans = list(self._spans) if self._addresses else [(0, 0)] * len(inputs)
        for k in moved:
            spans[k] = self._arrays.memory(inputs[k])
        if self._addresses and self._mutated.isdisjoint(moved):
            changed = self._changed
        else:
            changed = sorted(s for k in self._mutated if (s := spans[k])[0] < s[1])
            moved = list(range(len(inputs)))
            if any(stop > start for (_, stop), (start, _) in pairwise(changed)):
                return True
        starts = [start for start, _ in changed]
        if any(_meets(spans[k], changed, starts) for k in moved if k not in self._mutated):
            return True
        if self._fixed:
            self._addresses, self._spans, self._changed = [*addresses], spans, changed
        return False


def _meets(span: tuple[int, int], changed: Sequence[tuple[int, int]], starts: Sequence[int]) -> bool:
    """Whether a span of addresses meets one of these, which are sorted and apart."""
    start, stop = span
    before = bisect_left(starts, stop) - 1
    return start < stop and before >= 0 and changed[before][1] > start
