"""A slice of the programs of views and writes, and that the campaign sees what is otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusec
from tests.campaigns.views import Program, Writer, difference, smallest


@pytest.mark.parametrize("seed", range(25))
def test_programs_do_what_they_do_in_eager(seed: int) -> None:
    program = Writer(seed).write_program()
    assert not difference(program), program.text


def _wrong(change: Callable[..., Any]) -> Callable[..., Any]:
    """What takes the place of ``fusec.jit``: as written, but for a change to the results or the arguments."""

    def jit(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments: change(function, *arguments)

    return jit


def _swallow(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception:
        return (arguments[0],)


WRONG: dict[str, Callable[..., Any]] = {
    "numbers": lambda f, *a: tuple(x + 1e-3 for x in f(*a)),
    "a copy": lambda f, *a: tuple(x.clone() for x in f(*a)),
    "another tensor": lambda f, *a: tuple(x.detach() for x in f(*a)),
    "a layout": lambda f, *a: tuple(x.t().contiguous().t() for x in f(*a)),
    "an argument": lambda f, *a: (f(*a), a[1].add_(1))[0],
    "no error": _swallow,
}


@pytest.mark.parametrize("name", WRONG)
def test_a_difference_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(("v0 = y * 2", "v1 = x[i]", "return x,"), 0, 0)
    assert not difference(program)
    monkeypatch.setattr(fusec, "jit", _wrong(WRONG[name]))
    assert difference(program)


def test_a_program_is_cut_down(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets_zeros(function: Callable[..., Any], *arguments: Any) -> Any:
        made = function(*arguments)
        return tuple(torch.where(x == 0, 1.0, x) if not x.all() else x for x in made)

    monkeypatch.setattr(fusec, "jit", _wrong(forgets_zeros))
    program = Program(("v0 = x + 1", "v1 = y.clone()", "v1.zero_()", "v2 = v0 * z", "return x, v1"), 0, 0)
    assert smallest(program).lines == ("v1 = y.clone()", "v1.zero_()", "return x, v1")
