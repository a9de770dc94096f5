"""Integers that are followed: arithmetic, comparisons that hold all over a range, and what needs the value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fusec.errors import DimensionError
from fusec.frontend.symbolic_int import SymbolicInt, holds_followed, value_of
from fusec.ir.index import symbol
from fusec.ir.indexing import evaluate

N = symbol("followed_n", 2, 20)


def n() -> Any:
    return SymbolicInt(N, 7)


ARITHMETIC: tuple[Callable[[Any], Any], ...] = (
    lambda i: i + 1,
    lambda i: 1 + i,
    lambda i: 3 - i,
    lambda i: -i,
    lambda i: 2 * i - i,
    lambda i: (i + i) * 3,
    lambda i: (i + 1) // 2,
    lambda i: i % 4,
    lambda i: i - i,
)


@pytest.mark.parametrize("made", ARITHMETIC)
def test_arithmetic(made: Callable[[Any], Any]) -> None:
    found = made(n())
    assert type(found) is SymbolicInt
    assert found.value == made(7)
    for value in range(2, 21):
        assert evaluate(found.expression, {"followed_n": value}) == made(value)


@pytest.mark.parametrize(
    ("compared", "answer"),
    [
        (lambda i: i > 1, True),
        (lambda i: i >= 2, True),
        (lambda i: i < 2, False),
        (lambda i: i <= 20, True),
        (lambda i: i > 20, False),
        (lambda i: i + 1 > i, True),
        (lambda i: i == 21, False),
        (lambda i: i == i, True),
        (lambda i: i != 1, True),
        (lambda i: i is None, False),
        (lambda i: i == None, False),  # noqa: E711
        (lambda i: bool(i), True),
        (lambda i: isinstance(i, int), True),
        (lambda i: 0 < i < 21, True),
        (lambda i: max(i, 1) == i, True),
    ],
)
def test_decided_all_over_the_range(compared: Callable[[Any], bool], answer: bool) -> None:
    assert compared(n()) is answer


NEEDED: tuple[Callable[[Any], Any], ...] = (
    lambda i: i > 10,
    lambda i: i <= 2,
    lambda i: i == 7,
    lambda i: i == 7.0,
    lambda i: i > 1.5,
    lambda i: i == np.int64(7),
    lambda i: i != 20,
    lambda i: bool(i - 7),
    lambda i: i % 2 == 0,
    lambda i: range(i),
    lambda i: [0] * i,
    lambda i: "abcdefgh"[i],
    lambda i: {7: 1}.get(i),
    lambda i: {i},
    lambda i: f"{i}",
    lambda i: str(i + 1),
    lambda i: int(i),
    lambda i: float(i),
    lambda i: i / 2.0,
    lambda i: 2.0 * i,
    lambda i: i**2,
    lambda i: 100 // i,
    lambda i: i // -2,
    lambda i: i & 1,
)


@pytest.mark.parametrize("used", NEEDED)
def test_what_needs_the_value_is_an_error(used: Callable[[Any], Any]) -> None:
    with pytest.raises((DimensionError, TypeError)):
        used(n())


def test_the_value_in_containers() -> None:
    given = (n(), [slice(n(), n() + 1), None], {"k": n()}, 3)
    assert holds_followed(given)
    plain = value_of(given)
    assert plain == (7, [slice(7, 8), None], {"k": 7}, 3)
    assert not holds_followed(plain)
    assert type(plain[0]) is int
