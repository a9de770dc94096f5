# SPDX-License-Identifier: Apache-2.0
"""Numbers that a library gives to a function's own code on the way: the shape of a slice, an array's length.

Those that depend on an integer argument, or on an extent, decide what the function does as much as these themselves
do. So they are noted, in order, in each run that samples a range, and are followed in the run that judges the range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from fusec.errors import DimensionError
from fusec.frontend.generalise import Bindings, Fit
from fusec.frontend.source import user_location
from fusec.ir.index import Index, Symbol, symbol

_NUMBERS = (int, float, bool, complex)

Number = int | float | bool | complex


class Readings:
    """The numbers of one run. ``expected`` is what they are over the range, or None where they are only noted.

    ``make`` makes what an integer is followed by, of its expression and its value. ``refused`` is what the function
    asked that can't be answered; its own code may have handled the error.
    """

    def __init__(
        self,
        expected: Sequence[Index | Number] | None = None,
        make: Callable[[Index, int], Any] = lambda expression, value: value,
    ) -> None:
        self.noted: list[Number] = []
        self.refused: list[DimensionError] = []
        self._make = make
        self._expected = expected

    @property
    def follows(self) -> bool:
        return self._expected is not None

    def given(self, result: Any) -> Any:
        """What the library gave, with the integers in it followed."""
        kind = type(result)
        if kind in _NUMBERS:
            return self._number(result)
        if not issubclass(kind, tuple | list):
            return result
        if type(self._number(len(result))) is not int:
            raise self.refuse("how many results there are depends on it")
        parts = [self.given(part) for part in result]
        is_same = all(a is b for a, b in zip(parts, result, strict=True))
        return result if is_same else kind(parts)

    def refuse(self, what: str) -> DimensionError:
        """The error for what can't be followed; it is kept, too."""
        error = DimensionError(f"an integer can't be symbolic: {what}", user_location())
        self.refused.append(error)
        return error

    def _number(self, number: Number) -> Any:
        self.noted.append(number)
        if self._expected is None:
            return number
        position = len(self.noted) - 1
        known = self._expected[position] if position < len(self._expected) else None
        if isinstance(known, _NUMBERS):
            if not _is_same(known, number):
                raise self.refuse("what the library tells differs from run to run")
            return number
        if known is None or type(number) is not int:
            raise self.refuse("what the library tells depends on it")
        return self._make(known, number)


REQUESTED: ContextVar[Readings | None] = ContextVar("REQUESTED", default=None)
"""What the captures to come are to note, or to follow; captures enter it while the user's function runs."""

RUNNING: ContextVar[Readings | None] = ContextVar("RUNNING", default=None)
"""Those of the function that runs now."""


@contextmanager
def reading() -> Iterator[Readings | None]:
    """While entered, the user's function runs, and the numbers that it is given are read as was requested."""
    readings = REQUESTED.get()
    token = RUNNING.set(readings)
    try:
        yield readings
    finally:
        RUNNING.reset(token)


@contextmanager
def requested(readings: Readings) -> Iterator[None]:
    """While entered, captures read numbers for these."""
    token = REQUESTED.set(readings)
    try:
        yield
    finally:
        REQUESTED.reset(token)


def over_range(samples: Sequence[tuple[Bindings, Sequence[Number]]], symbols: Sequence[Symbol]) -> list[Index | Number]:
    """The numbers of all samples as expressions of the symbols; one that is none is followed by a symbol of its own.

    The first samples are the grid of :func:`~fusec.frontend.generalise.sample_extents`. DimensionError where they have
    other numbers of numbers, or differ in one that is no integer.
    """
    rows = [numbers for _, numbers in samples]
    if len({len(row) for row in rows}) > 1:
        raise DimensionError("what the function asks the library depends on the integers")
    fit = Fit([extents for extents, _ in samples], symbols)
    found: list[Index | Number] = []
    for position, column in enumerate(zip(*rows, strict=True)):
        if all(_is_same(column[0], number) for number in column):
            found.append(column[0])
        elif all(type(number) is int for number in column):
            expression = fit.index([int(n) for n in column if isinstance(n, int)])
            found.append(symbol(f"unknown{position}", None, None) if expression is None else expression)
        else:
            raise DimensionError(f"what the library tells the function depends on the integers: {column[0]}")
    return found


def _is_same(one: Number, other: Number) -> bool:
    return type(one) is type(other) and repr(one) == repr(other)
