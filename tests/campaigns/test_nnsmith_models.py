"""A slice of NNSmith's models, and that the campaign sees what is otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("nnsmith")

import fusec
from tests.campaigns.nnsmith_models import (
    Net,
    Program,
    _alike,
    _gradients_in_double,
    _moved,
    difference,
    generated,
    smallest,
)

SEED = 12
"""A model whose results are floats."""


@pytest.mark.parametrize("seed", range(5))
def test_models_do_what_they_do_in_eager(seed: int) -> None:
    assert not difference(Program(seed)), generated(seed).pretty()


def _wrong(change: Callable[[Net, list[Any]], list[Any]]) -> Callable[..., Any]:
    """What takes the place of ``fusec.jit``: as written, but for a change to the results."""

    def jit(net: Net) -> Callable[..., Any]:
        return lambda *arguments: change(net, net(*arguments))

    return jit


def _float(net: Net, made: list[Any], change: Callable[[Any], Any]) -> list[Any]:
    return [change(x) if x.is_floating_point() else x for x in made]


WRONG: dict[str, Callable[[Net, list[Any]], list[Any]]] = {
    "numbers": lambda net, made: _float(net, made, lambda x: x * 1.001 + 0.01),
    "a dtype": lambda net, made: _float(net, made, torch.Tensor.double),
    "a shape": lambda net, made: [x[None] for x in made],
    "a NaN": lambda net, made: _float(net, made, lambda x: torch.full_like(x, float("nan"))),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_difference_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(SEED)
    assert not difference(program, ("jit",))
    monkeypatch.setattr(fusec, "jit", _wrong(WRONG[name]))
    assert difference(program, ("jit",))


def test_a_model_is_cut_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusec, "jit", _wrong(WRONG["a NaN"]))
    short = smallest(Program(SEED), "jit")
    assert len(short.results) == 1
    assert len(Net(short).steps) == 1


class Steps(torch.nn.Module):
    """A model of functions, as the campaign runs it."""

    def __init__(self, *functions: Callable[..., Any]) -> None:
        super().__init__()
        self.functions, self.results = functions, (str(len(functions) - 1),)

    def run(self, arguments: Any, each: Callable[..., Any]) -> dict[str, Any]:
        (value,), values = arguments, {}
        for k, function in enumerate(self.functions):
            values[str(k)] = value = each(str(k), None, function(value))
        return values


@pytest.mark.parametrize(
    ("functions", "x"),
    [
        ((lambda x: x / x,), torch.tensor([0.3, 1.5, -7.0], dtype=torch.float16)),
        ((torch.cos, torch.acos), torch.tensor([1.0, 3.1415, 0.5, 6.283], dtype=torch.float64)),
    ],
    ids=["equal parts", "a pole"],
)
def test_a_gradient_of_roundings_is_no_finding(functions: Any, x: torch.Tensor) -> None:
    net: Any = Steps(*functions)
    eps = torch.finfo(x.dtype).eps
    (moved,) = _moved(net, [x], eps)
    (right,) = _gradients_in_double(net, [x], eps, 0.0, 0)
    assert not _alike(right + 2 * moved.spread, right, eps)
    assert _alike(right + 2 * moved.spread, right, eps, moved)
    assert not _alike(right + 1, right, eps, moved)


def test_a_gradient_that_overflows_in_half_precision_may_be_right() -> None:
    net: Any = Steps(torch.square, torch.square, torch.rsqrt)
    x = torch.tensor([20.0, 3.0], dtype=torch.float16)
    (moved,) = _moved(net, [x], torch.finfo(x.dtype).eps)
    overflown = torch.tensor([-torch.inf, moved.exact[1]], dtype=torch.float16)
    for ours, right in ((moved.exact, True), (moved.exact * 2, False), (overflown.neg(), False)):
        assert _alike(ours.half(), overflown, 0.001, moved) is right
