# SPDX-License-Identifier: Apache-2.0
"""Branches on values of tensors: what a function's ``if`` and ``while`` found in one call, for a capture to follow.

A capture reads no data, so it can't know which way an ``if tensor:`` goes. A call that runs as written shows it. A
capture that is given these outcomes takes the same way, and notes the tensors that were asked: where a call has other
values of them, its graph is not for that call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from fusec.errors import CaptureError


@dataclass
class Outcomes:
    """What the branches of one call found, in order, and how many of these a capture has taken."""

    given: Sequence[bool]
    taken: int = 0

    def take(self) -> bool | None:
        """The next outcome; None where the call had no further one."""
        if self.taken == len(self.given):
            return None
        self.taken += 1
        return self.given[self.taken - 1]

    def check_all_taken(self) -> None:
        """CaptureError where the capture has asked less than the call: it went another way."""
        if self.taken != len(self.given):
            raise CaptureError("the function branches on values in another order while it is captured")


_FOLLOWED: ContextVar[Outcomes | None] = ContextVar("fusec_outcomes", default=None)


def followed_outcomes() -> Outcomes | None:
    """What the capture that runs is to follow."""
    return _FOLLOWED.get()


@contextmanager
def following(outcomes: Sequence[bool]) -> Iterator[None]:
    """While entered, captures take the way that these outcomes lead."""
    token = _FOLLOWED.set(Outcomes(outcomes))
    try:
        yield
    finally:
        _FOLLOWED.reset(token)
