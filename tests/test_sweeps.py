"""The cases of a sweep that run by default."""

from __future__ import annotations

from itertools import combinations, product
from pathlib import Path

import pytest
from sweeps import by_night, covering

pytest_plugins = ["pytester"]

CASES = [dict(zip("abcd", values, strict=True)) for values in product(range(3), range(2), range(7), range(2))]


@pytest.mark.parametrize("strength", [1, 2, 3])
def test_every_combination_of_few_parameters_is_held(strength: int) -> None:
    chosen = [CASES[n] for n in covering(CASES, strength)]
    for names in combinations("abcd", strength):
        assert {tuple(c[n] for n in names) for c in chosen} == {tuple(c[n] for n in names) for c in CASES}


def test_few_cases_are_chosen() -> None:
    assert len(covering(CASES, 1)) == 7
    assert len(covering(CASES, 2)) <= 23  # 21 pairs of the two largest
    assert covering(CASES) == covering(CASES)


def test_parameters_that_vary_together_count_as_written() -> None:
    assert covering([{"a": 0, "b": 0}, {"a": 1, "b": 1}]) == [0, 1]


def test_one_parameter_is_no_sweep() -> None:
    assert covering([{"a": n} for n in range(5)]) == [0, 1, 2, 3, 4]


def test_seldom_values_are_named() -> None:
    usual, seldom = by_night({"a": 1, "b": 2}, "b")
    assert usual == "a"
    assert [mark.name for mark in seldom.marks] == ["nightly"]  # type: ignore[union-attr]
    with pytest.raises(AssertionError, match="c"):
        by_night(["a", "b"], "c")


SWEPT = """
import pytest

@pytest.mark.sweep
@pytest.mark.parametrize("c", range(3))
@pytest.mark.parametrize("b", range(2))
@pytest.mark.parametrize("a", range(2))
def test_swept(a, b, c):
    pass

@pytest.mark.sweep(1)
@pytest.mark.parametrize("b", range(2))
@pytest.mark.parametrize("a", range(2))
def test_apart(a, b):
    pass

@pytest.mark.parametrize("b", range(3))
@pytest.mark.parametrize("a", range(3))
def test_all(a, b):
    pass

@pytest.mark.sweep
@pytest.mark.parametrize(("a", "b", "c"), [(0, 0, 0), (1, 0, 1), (0, 1, 1), (1, 1, 0), (0, 0, 1), (0, 1, 0)])
def test_rows(a, b, c):
    pass

@pytest.mark.nightly
def test_of_seconds():
    pass

@pytest.mark.parametrize("n", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_one_value_of_seconds(n):
    pass
"""


@pytest.mark.parametrize(
    ("options", "passed", "deselected"),
    [
        ((), 6 + 2 + 9 + 6 + 1, 6 + 2 + 2),
        (("--all-cases",), 12 + 4 + 9 + 6 + 3, 0),
        (("-k", "swept"), 6, 6 + 4 + 9 + 6 + 3),
    ],
)
def test_a_run(pytester: pytest.Pytester, options: tuple[str, ...], passed: int, deselected: int) -> None:
    pytester.makeconftest((Path(__file__).parent / "conftest.py").read_text())
    pytester.makeini("[pytest]\nmarkers =\n  sweep\n  nightly\n")
    pytester.makepyfile(SWEPT)
    pytester.runpytest_inprocess(*options).assert_outcomes(passed=passed, deselected=deselected)
