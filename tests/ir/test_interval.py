"""Interval arithmetic: every value is inside, and both ends are reached where they are known."""

from __future__ import annotations

from itertools import product as pairs

import pytest

from fusec.ir import interval
from fusec.ir.interval import Range

ENDS = [(-3, -1), (-2, 2), (0, 0), (0, 4), (2, 5)]


def holds(found: Range, values: set[int]) -> None:
    lo, hi = found
    assert lo is None or lo <= min(values)
    assert hi is None or hi >= max(values)


@pytest.mark.parametrize(("a", "b"), list(pairs(ENDS, ENDS)))
def test_every_value_is_inside(a: tuple[int, int], b: tuple[int, int]) -> None:
    points = list(pairs(range(a[0], a[1] + 1), range(b[0], b[1] + 1)))
    sums = {7 + 2 * x - 3 * y for x, y in points}
    assert interval.scaled_sum(7, [(a, 2), (b, -3)]) == (min(sums), max(sums))
    for largest, choose in ((True, max), (False, min)):
        chosen = {choose(x, y) for x, y in points}
        assert interval.extremum(a, b, largest=largest) == (min(chosen), max(chosen))
    holds(interval.product([a, b]), {x * y for x, y in points})
    if any(y for _, y in points):
        holds(interval.quotient(a, b), {x // y for x, y in points if y})
        holds(interval.remainder(b), {x % y for x, y in points if y})


def test_open_ends() -> None:
    assert interval.scaled_sum(1, [((0, None), -2)]) == (None, 1)
    assert interval.extremum((None, 3), (1, None), largest=True) == (1, None)
    assert interval.extremum((None, 3), (1, None), largest=False) == (None, 3)
    assert interval.product([(2, None), (3, 4)]) == (6, None)
    assert interval.product([(-1, 2), (3, 4)]) == (None, None)
    assert interval.quotient((4, 9), (2, None)) == (0, 4)
    assert interval.remainder((None, 5)) == (None, 4)


def test_both() -> None:
    assert interval.both((None, 5), (2, 9)) == (2, 5)
    assert interval.both((1, None), (None, None)) == (1, None)
