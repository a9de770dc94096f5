# SPDX-License-Identifier: Apache-2.0
"""``if rows.numel() == 0: continue``: a step of a loop that is left out where data chooses no rows.

A capture runs the step. That is the same where the step does nothing for no rows: it writes by rows of that set alone,
and leaves nothing behind in Python, which :mod:`fusec.frontend.torch_loop_bodies` tells.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

from fusec.frontend.torch_loop_bodies import LoopBody, step_without
from fusec.frontend.torch_row_sets import RowSet, RowSets


class Step:
    """The rest of a loop's step, which runs where a set has rows: it is entered as long as the frame is within."""

    def __init__(self, of: RowSet, frame: FrameType, within: range, body: LoopBody) -> None:
        self.of, self.frame, self.body = of, frame, body
        self._within = within

    @property
    def is_entered(self) -> bool:
        return self.frame.f_lasti in self._within


class Count:
    """How many rows are chosen. It tells whether there are some, to a loop that goes on where there are none."""

    def __init__(self, sets: RowSets, of: RowSet, what: str) -> None:
        self._sets, self._of, self._what = sets, of, what

    def refuse(self, *_: object) -> Any:
        """Raises for whatever else is asked of it."""
        raise self._sets.refused(f"{self._what} is asked")

    def _answer(self, of_none: bool, other: object = 0) -> bool:
        """The other answer than that of no rows, in a step that does nothing for these."""
        frame = sys._getframe(2)
        found = step_without(frame, of_none) if type(other) is int and other == 0 else None
        if found is None:
            self.refuse()
        else:
            self._sets.enter(Step(self._of, frame, *found))
        return not of_none

    def __eq__(self, other: object) -> bool:
        return self._answer(True, other)

    def __ne__(self, other: object) -> bool:
        return self._answer(False, other)

    def __gt__(self, other: object) -> bool:
        return self._answer(False, other)

    def __le__(self, other: object) -> bool:
        return self._answer(True, other)

    def __bool__(self) -> bool:
        return self._answer(False)

    __hash__ = None  # type: ignore[assignment]
    __lt__ = __ge__ = __index__ = __int__ = __float__ = __add__ = __radd__ = __sub__ = __rsub__ = refuse
    __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = refuse
    __str__ = __repr__ = __format__ = __reduce__ = refuse


class Shape:
    """The shape of a tensor with chosen rows, of which other extents may be known."""

    def __init__(self, extents: Sequence[Any], refuse: Callable[..., Any]) -> None:
        self._extents, self._refuse = tuple(extents), refuse

    def __getitem__(self, place: object) -> Any:
        return self._extents[place] if type(place) is int else self._refuse()

    def __len__(self) -> int:
        return len(self._extents)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._extents)

    __hash__ = None  # type: ignore[assignment]
    __eq__ = __ne__ = __add__ = __radd__ = __mul__ = __rmul__ = __lt__ = __gt__ = __le__ = __ge__ = lambda self, *_: (
        self._refuse()
    )
    __str__ = __repr__ = __format__ = __reduce__ = __contains__ = lambda self, *_: self._refuse()
