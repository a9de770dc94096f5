# SPDX-License-Identifier: Apache-2.0
"""Errors of a traced run that changed state which outlives it."""

from __future__ import annotations

from collections.abc import Sequence

from fusec.errors import UnsupportedOpError
from fusec.frontend.counters import COUNTING, IntegerAttribute
from fusec.frontend.memos import MemoCall
from fusec.ir.builder import Builder
from fusec.location import Location


class StateChangedError(UnsupportedOpError):
    """A traced run changed state that outlives it; it is as it was before. Another run may find it settled.

    counters: the integers that changed, where nothing else did.
    """

    def __init__(self, what: str, location: Location | None = None, counters: Sequence[IntegerAttribute] = ()) -> None:
        self.counters = tuple(counters)
        super().__init__(
            f"the function changes {what}, which outlives the call and which a compiled call would not change; "
            "return the value instead",
            location,
        )


class MemoFilledError(StateChangedError):
    """A traced run was the first to make calls whose arrays ``functools.lru_cache`` keeps. Made for real beforehand
    (``calls``, empty where they can't be), they give another run what later calls will find."""

    def __init__(self, name: str, calls: Sequence[MemoCall], location: Location | None = None) -> None:
        super().__init__(f"the arrays that the cache of {name} keeps", location)
        self.calls = tuple(calls)


def refuse_late_errors(made: Builder, location: Location | None) -> None:
    """StateChangedError where a counter changes before a call that may raise: as written it would have changed."""
    counting = COUNTING.get()
    if counting is not None and counting.may_raise_late(made.finish([]).ops):
        raise StateChangedError("an integer attribute before a library call that may raise", location)
