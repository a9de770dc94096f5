"""The odd programs that differed once and a slice of the others, and that the comparison sees what is otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import fusec
from tests.campaigns.odd_programs import KNOWN, Program, compared, programs

ALL = list(programs())
RUN = [p for p in ALL if p.name.startswith("found: ")] + [p for p in ALL if not p.name.startswith("found: ")][::36]


@pytest.mark.parametrize("program", RUN, ids=lambda program: program.name.replace(" ", "_"))
def test_it_does_what_it_does_as_written(program: Program) -> None:
    assert bool(compared(program)) is (program.name in KNOWN)


def test_names_are_distinct() -> None:
    assert len({program.name for program in ALL}) == len(ALL)


TORCH = Program(
    "x", "kept = []\ndef f(x):\n    return x + 0.0, x, [x[0], x[0]], 2", ("f(r(2, 3) * 0)", "f(r(2, 3))"), ("f",)
)
NUMPY = Program("y", "def f(x):\n    return x[1:], x.sum(), x + 1", ("x = a(3)", "f(x)"), ("f",))


def _changed(change: Callable[..., Any]) -> Callable[[Any], Any]:
    return lambda function: lambda *arguments: change(function, *arguments)


def _raise(function: Any, *arguments: Any) -> Any:
    raise ValueError


WRONG: dict[str, Callable[..., Any]] = {
    "numbers": lambda f, x: (f(x)[0] + 1e-3, *f(x)[1:]),
    "a sign of zero": lambda f, x: (-f(x)[0].abs(), *f(x)[1:]) if not x.any() else f(x),
    "a copy": lambda f, x: (f(x)[0], x.clone(), *f(x)[2:]),
    "an alias": lambda f, x: (x, *f(x)[1:]),
    "a type": lambda f, x: (*f(x)[:3], 2.0),
    "a dtype": lambda f, x: (f(x)[0].double(), *f(x)[1:]),
    "a layout": lambda f, x: (f(x)[0].t().contiguous().t(), *f(x)[1:]),
    "an error": _raise,
    "the argument": lambda f, x: (f(x), x.add_(1))[0],
    "random numbers": lambda f, x: (torch.rand(1), f(x))[1],
    "output": lambda f, x: (print("made"), f(x))[1],
    "state": lambda f, x: (f.__globals__["kept"].append(1), f(x))[1],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_difference_is_seen(name: str) -> None:
    assert not compared(TORCH, lambda function: function)
    assert compared(TORCH, _changed(WRONG[name]))


@pytest.mark.parametrize(
    "change",
    [
        lambda f, x: (f(x)[0].copy(), *f(x)[1:]),
        lambda f, x: (f(x)[0], float(f(x)[1]), f(x)[2]),
        lambda f, x: (f(x)[0], np.array(f(x)[1]), f(x)[2]),
        lambda f, x: (np.broadcast_to(f(x)[0], (2,)), *f(x)[1:]),
    ],
    ids=["a copy", "a number", "an array", "a flag"],
)
def test_a_difference_of_arrays_is_seen(change: Callable[..., Any]) -> None:
    assert not compared(NUMPY, fusec.jit)
    assert compared(NUMPY, _changed(change))
