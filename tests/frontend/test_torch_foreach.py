"""Calls on lists of tensors, and the optimizers that make them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusec
from fusec.torch_compile import backend, gathering

Tensors = list[torch.Tensor]

CALLS: dict[str, Callable[[Tensors, Tensors, Tensors], Any]] = {
    "add": lambda a, b, c: torch._foreach_add(a, b, alpha=0.5),
    "add a number": lambda a, b, c: torch._foreach_add(a, 2.0),
    "add numbers": lambda a, b, c: torch._foreach_add(a, [1.0, 2.0, 3.0]),
    "add a tensor": lambda a, b, c: torch._foreach_add(a, torch.ones(())),
    "sub": lambda a, b, c: torch._foreach_sub(a, b),
    "mul by a tensor": lambda a, b, c: torch._foreach_mul(a, torch.full((), 0.25)),
    "div": lambda a, b, c: torch._foreach_div(a, c),
    "div by numbers": lambda a, b, c: torch._foreach_div(a, [3.0, 2.0, 1.0]),
    "addcmul": lambda a, b, c: torch._foreach_addcmul(a, b, c, 0.1),
    "addcmul with numbers": lambda a, b, c: torch._foreach_addcmul(a, b, c, [0.1, 0.2, 0.3]),
    "addcmul with a tensor": lambda a, b, c: torch._foreach_addcmul(a, b, c, torch.tensor([0.1, 0.2, 0.3])),
    "addcdiv": lambda a, b, c: torch._foreach_addcdiv(a, b, c, [-0.1, 0.2, 0.3]),
    "lerp": lambda a, b, c: torch._foreach_lerp(a, b, 0.9),
    "lerp by tensors": lambda a, b, c: torch._foreach_lerp(a, b, c),
    "maximum": lambda a, b, c: torch._foreach_maximum(a, b),
    "maximum of a number": lambda a, b, c: torch._foreach_maximum(a, 0.5),
    "minimum": lambda a, b, c: torch._foreach_minimum(a, b),
    "clamp_max": lambda a, b, c: torch._foreach_clamp_max(a, [0.1, 0.2, 0.3]),
    "pow": lambda a, b, c: torch._foreach_pow(c, 1.5),
    "power of a number": lambda a, b, c: torch._foreach_pow(0.9, c),
    "sqrt": lambda a, b, c: torch._foreach_sqrt(c),
    "neg": lambda a, b, c: torch._foreach_neg(a),
    "reciprocal": lambda a, b, c: torch._foreach_reciprocal(c),
    "norm": lambda a, b, c: torch._foreach_norm(a),
    "norm of another order": lambda a, b, c: torch._foreach_norm(a, 1),
    "largest": lambda a, b, c: torch._foreach_norm(a, float("inf")),
}

IN_PLACE: dict[str, Callable[[Tensors, Tensors, Tensors], Any]] = {
    "add": lambda a, b, c: torch._foreach_add_(a, b, alpha=-0.5),
    "mul": lambda a, b, c: torch._foreach_mul_(a, 0.9),
    "addcdiv": lambda a, b, c: torch._foreach_addcdiv_(a, b, c, -0.1),
    "lerp": lambda a, b, c: torch._foreach_lerp_(a, b, 0.1),
    "maximum": lambda a, b, c: torch._foreach_maximum_(a, b),
    "copy": lambda a, b, c: torch._foreach_copy_(a, b),
    "zero": lambda a, b, c: torch._foreach_zero_(a),
    "sqrt": lambda a, b, c: torch._foreach_sqrt_(a),
}


def lists() -> tuple[Tensors, Tensors, Tensors]:
    torch.manual_seed(0)
    shapes = [(5,), (3, 4), (2, 3, 2)]
    a, b = ([torch.randn(shape) for shape in shapes] for _ in range(2))
    a[0][1], b[1][0, 0] = float("nan"), float("inf")
    return a, b, [torch.rand(shape) + 0.5 for shape in shapes]


@pytest.mark.parametrize("name", CALLS)
def test_the_same_results(name: str) -> None:
    given = lists()
    for mine, wanted in zip(fusec.jit(CALLS[name])(*given), CALLS[name](*given), strict=True):
        torch.testing.assert_close(mine, wanted, equal_nan=True)


@pytest.mark.parametrize("name", IN_PLACE)
def test_written_in_place(name: str) -> None:
    mine, wanted = lists(), lists()

    def call(a: Tensors, b: Tensors, c: Tensors) -> None:
        IN_PLACE[name](a, b, c)

    fusec.jit(call)(*mine)
    call(*wanted)
    for x, y in zip(mine[0], wanted[0], strict=True):
        torch.testing.assert_close(x, y, equal_nan=True)


def test_a_gpu_s_are_the_library_s() -> None:
    """There a step of its own for each parameter would be slower."""
    a, b, _ = lists()
    graph = fusec.trace(lambda a, b: torch._foreach_add(a, b), a, b, target="cuda:sm_90")
    assert [op.name for op in graph.ops] == ["extern"]


def test_lists_of_different_lengths_are_refused_as_eager_does() -> None:
    a, b, _ = lists()
    with pytest.raises(RuntimeError, match=r"same number|same length|lists"):
        fusec.jit(lambda a, b: torch._foreach_add(a, b))(a, b[:2])


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, foreach=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=1e-2, foreach=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True),
    "AdamW amsgrad": lambda p: torch.optim.AdamW(p, lr=1e-2, amsgrad=True, foreach=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_s_step_is_kernels(name: str) -> None:
    """With the gradients clipped by their norm: one kernel a parameter at most, but for the norms."""
    torch.manual_seed(0)
    mine = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    eager = copy.deepcopy(mine)
    x = torch.randn(4, 8)

    def stepped(model: Any) -> Callable[[], None]:
        optimizer = OPTIMIZERS[name](model.parameters())

        def step() -> None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5, foreach=True)
            optimizer.step()

        return step

    with gathering() as graphs:
        fast, plain = torch.compile(stepped(mine), backend=backend), stepped(eager)
        for _ in range(3):
            for model, step in ((mine, fast), (eager, plain)):
                model.zero_grad()
                model(x).square().sum().backward()
                step()
    for p, q in zip(mine.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
    calls = [
        s.attributes.target for g in graphs for e in g.executables for s in e.program.steps if hasattr(s, "results")
    ]
    assert not [target for target in calls if "foreach" in target]
