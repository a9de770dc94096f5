"""Numbers that a library gives to a function: noted in samples of a range, followed over it."""

from __future__ import annotations

import pytest

from fusec.errors import DimensionError
from fusec.frontend.readings import Readings, over_range
from fusec.frontend.symbolic_int import SymbolicInt
from fusec.ir.index import add, mul, symbol

N = symbol("n", 2, 50)
SAMPLES = (7, 11, 2, 50)


def noted(n: int, *more: float) -> tuple[dict[str, int], list[int | float | bool | complex]]:
    readings = Readings()
    assert readings.given((n + 1, 3)) == (n + 1, 3)
    assert readings.given(2 * n) == 2 * n
    for number in more:
        readings.given(number)
    return {"n": n}, readings.noted


def test_numbers_over_a_range() -> None:
    found = over_range([noted(n, n * n % 13, 0.5) for n in SAMPLES], [N])
    assert found[:4] == [2, add(N, 1), 3, mul(2, N)]
    assert found[5] == 0.5
    readings = Readings(found, SymbolicInt)
    first, second = readings.given((8, 3))
    assert (type(first), first.expression, first.value, second) == (SymbolicInt, add(N, 1), 8, 3)
    assert readings.given(14).expression == mul(2, N)
    unknown = readings.given(49 % 13)
    with pytest.raises(DimensionError):
        bool(unknown == 10)
    assert not readings.refused  # it is no reading of a run in progress


@pytest.mark.parametrize(
    "samples",
    [
        [noted(7, 1), noted(11)],
        [noted(7, 1.0), noted(11, 2.0)],
        [noted(7, True), noted(11, False)],
        [noted(7, 1), noted(11, 1.0)],
    ],
)
def test_numbers_that_can_not_be_followed(
    samples: list[tuple[dict[str, int], list[int | float | bool | complex]]],
) -> None:
    with pytest.raises(DimensionError):
        over_range(samples, [N])


def test_a_run_that_is_told_something_else() -> None:
    readings = Readings([1, 2.0])
    assert readings.given(1) == 1
    with pytest.raises(DimensionError, match="differs"):
        readings.given(3.0)
    with pytest.raises(DimensionError, match="depends"):
        readings.given(4)
    assert len(readings.refused) == 2
