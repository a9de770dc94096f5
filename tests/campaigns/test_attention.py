"""A slice of the spellings of attention, and that the campaign sees what is otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import fusec
from tests.campaigns import wrong
from tests.campaigns.attention import Program, Sizes, difference, written

PLAIN = ("s = q @ k.mT", "p = torch.softmax(s, -1)", "y = p @ v", "return y,")


def plain(*, dtype: str = "f32", lines: tuple[str, ...] = PLAIN, size: float = 1.0) -> Program:
    return Program(lines, Sizes(1, 2, 2, 5, 7, 8, 8), dtype, False, size, 0)


@pytest.mark.parametrize("seed", range(12))
def test_programs_do_what_they_do_in_eager(seed: int) -> None:
    program = written(seed)
    assert not difference(program), program.text


WRONG = {**wrong.RESULTS, "numbers": wrong.everywhere(2e-6), "a layout": lambda x: x.mT.contiguous().mT}


@pytest.mark.parametrize("name", WRONG)
def test_a_difference_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not difference(plain())
    monkeypatch.setattr(fusec, "jit", wrong.jit(WRONG[name]))
    assert difference(plain())


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f64"])
def test_errors_are_held_to_the_dtype(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not difference(plain(dtype=dtype))
    monkeypatch.setattr(fusec, "jit", wrong.jit(wrong.everywhere({"bf16": 0.05, "f16": 0.006, "f64": 1e-10}[dtype])))
    assert difference(plain(dtype=dtype))


def test_an_error_that_is_not_raised_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    program = plain(lines=("y = q @ q", "return y,"))
    assert not difference(program)
    monkeypatch.setattr(fusec, "jit", lambda function: lambda q, *rest: (q,))
    assert difference(program)


def test_luck_is_told_from_a_worse_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large scores: on one draw five times the error of the code as written, and on many as much."""
    program = written(1001)
    assert program.size == 50
    assert not difference(program)

    def inexact_products(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda q, k, *rest: function(q * (1 + 1e-5), k, *rest)

    monkeypatch.setattr(fusec, "jit", inexact_products)
    assert "draws" in difference(program)
