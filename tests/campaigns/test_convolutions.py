"""A slice of the random convolutions and pools, and that the campaign sees what is otherwise."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import fusec
from tests.campaigns import wrong
from tests.campaigns.comparing import FAKE_STRIDES
from tests.campaigns.convolutions import INDICES, LIBRARY_NAN, Argument, Program, difference, known, written

PLAIN = ("y = F.conv2d(x, w, padding=1)", "return y,")
IMAGE, WEIGHT = Argument("x", (2, 3, 6, 5)), Argument("w", (4, 3, 3, 3), scale=0.2)


def plain(*, dtype: str = "f32", lines: tuple[str, ...] = PLAIN) -> Program:
    return Program(lines, (IMAGE, WEIGHT), dtype, 0)


@pytest.mark.parametrize("seed", range(14))
def test_programs_do_what_they_do_in_eager(seed: int) -> None:
    program = written(seed)
    said = difference(program)
    assert not said or known(program, said), program.text


def test_programs_are_of_all_kinds() -> None:
    text = "".join(written(seed).text for seed in range(200))
    kinds = [f"{kind}{n}d(" for kind in ("conv", "conv_transpose", "max_pool", "avg_pool") for n in (1, 2, 3)]
    assert all(kind in text for kind in (*kinds, "'same'", "ceil_mode", "return_indices", "batch_norm", "unfold("))


WRONG = {
    **wrong.RESULTS,
    "numbers": wrong.everywhere(3e-6),
    "a layout": lambda x: x.contiguous(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_difference_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not difference(plain())
    monkeypatch.setattr(fusec, "jit", wrong.jit(WRONG[name]))
    assert difference(plain()) not in ("", FAKE_STRIDES)


def test_an_error_that_is_not_raised_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    program = plain(lines=("y = F.conv2d(w, x)", "return y,"))
    assert not difference(program)
    monkeypatch.setattr(fusec, "jit", lambda function: lambda x, *rest: (x,))
    assert "raises" in difference(program)


def test_places_of_the_largest_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    program = plain(lines=("y = F.max_pool2d(x, 2, return_indices=True)[1]", "return y, w"))
    assert not difference(program)
    monkeypatch.setattr(fusec, "jit", wrong.jit(lambda x: x if x.is_floating_point() else x + (x == x.max())))
    assert "differ from eager" in difference(program)


def test_indices_that_are_pytorchs_own_are_known() -> None:
    """Of one window after another a vectorised kernel of PyTorch's begins with an index that lies outside."""
    given = Argument("x", (1, 8, 4, 8, 8), "last", "special")
    program = Program(("y = F.max_pool3d(x, 1, return_indices=True)[1]", "return y,"), (given,), "f32", 0)
    assert known(program, difference(program)) == INDICES


def test_other_indices_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    given = Argument("x", (1, 8, 4, 8, 8), "last")
    program = Program(("y = F.max_pool3d(x, 2, return_indices=True)[1]", "return y,"), (given,), "f32", 0)
    assert not difference(program)
    monkeypatch.setattr(fusec, "jit", wrong.jit(lambda x: x + (x == x.max())))
    assert not known(program, difference(program))


def test_nan_that_is_the_librarys_own_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    given = (Argument("x", (1, 5, 6, 6), "plain", "special"), Argument("w", (8, 5, 3, 3)))
    program = Program(("y = F.conv2d(x, w)", "return y,"), given, "bf16", 0)
    said = "result 0: NaN is not where eager has it, at 1 of 8 elements"
    assert known(program, said) == LIBRARY_NAN
    assert not known(replace(program, dtype="f32"), said)
    monkeypatch.setattr(fusec, "jit", wrong.jit(wrong.RESULTS["NaN"]))
    assert not known(program, difference(program))
