"""A slice of the random NumPy programs, and that the campaign sees what is otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy_parity import DifferenceError, agree

import fusec
from tests.campaigns.numpy_programs import Program, make_program
from tests.campaigns.numpy_statements import difference, minimal, trial


@pytest.mark.parametrize("seed", range(25))
def test_programs_do_what_they_do_in_numpy(seed: int) -> None:
    program = make_program(seed)
    assert not difference(program), program.source


def _wrong(change: Callable[[Any], Any]) -> Callable[..., Any]:
    """What takes the place of ``fusec.jit``: as written, but for a change to the first result."""

    def jit(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            first, *rest = function(*args)
            return [change(first), *rest]

        return run

    return jit


WRONG: list[Callable[[Any], Any]] = [
    lambda x: x + 1,
    lambda x: x.copy(),
    lambda x: x.astype(np.float32),
    lambda x: np.asfortranarray(x),
    lambda x: x.view(),
    lambda x: x.reshape(-1),
    lambda x: x.tolist(),
]


@pytest.mark.parametrize("change", WRONG)
def test_what_is_otherwise_is_seen(change: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusec, "jit", _wrong(change))
    with pytest.raises(DifferenceError):
        agree(lambda x: [x, x + 1], np.arange(6.0).reshape(2, 3))


def test_what_happens_to_arguments_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def double(x: Any) -> None:
        x *= 2

    monkeypatch.setattr(fusec, "jit", lambda function: lambda x: x)
    with pytest.raises(DifferenceError):
        agree(double, np.arange(6.0))


def test_a_program_is_cut_down_to_what_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusec, "jit", _wrong(lambda x: x + 1))
    make = "args = [np.arange(6.0)]"
    program = Program(make, ("x0",), ["v1 = x0 * 2", "v2 = x0 + 1", "v3 = v2 * 2"], ["v3", "v1"])
    smallest = minimal(program)
    assert (smallest.lines, smallest.results) == (["v1 = x0 * 2"], ["v1"])


def test_what_is_known_is_told_apart() -> None:
    found = trial(3803)
    assert found is not None
    assert found.known
    assert trial(3125) is None
