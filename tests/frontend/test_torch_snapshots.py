"""``.data``, ``.grad``, ``requires_grad`` of tensors that outlive the call, changed in functions or between calls."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fusec


class Holder(nn.Module):
    """Of weights whose products and sums are exact in any order, as those of :func:`eighths` are."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.plain = nn.Linear(3, 3, bias=False)
        self.p = nn.Parameter(torch.ones(4, 3))
        self.q = nn.Parameter(torch.full((4, 3), 2.0))
        self.register_buffer("b", torch.ones(2, 3))
        for parameter in self.parameters():
            parameter.data = (parameter.data * 8).round() / 8


def eighths(*shape: int) -> torch.Tensor:
    return torch.randint(-16, 16, shape) / 8


def double_data(m: Any, x: Any) -> Any:
    m.p.data = m.p.data * 2
    return x * m.p


def swap(m: Any, x: Any) -> Any:
    m.p.data, m.q.data = m.q.data, m.p.data
    return x * m.p + m.q


def share(m: Any, x: Any) -> Any:
    m.p.data = m.q.data
    return x * m.p


def weight_data(m: Any, x: Any) -> Any:
    m.lin.weight.data = m.lin.weight.data * 0.5
    return m.lin(x)


def then_fails(m: Any, x: Any) -> Any:
    m.p.data = m.p.data * 2
    return x @ m.p


def freezes(m: Any, x: Any) -> Any:
    m.p.requires_grad_(False)
    return x * m.p


def argument_requires_grad(m: Any, x: Any) -> Any:
    x.requires_grad_(True)
    return x * 2


def result_requires_grad(m: Any, x: Any) -> Any:
    return (x * 2).requires_grad_(True)


def gradient_of_argument(m: Any, x: Any) -> Any:
    x.grad = x * 2
    return x + 1


def gradient_of_result(m: Any, x: Any) -> Any:
    made = x * 2
    made.grad = x
    return made


def reads_gradient(m: Any, x: Any) -> Any:
    return x if x.grad is None else x + x.grad


def data_of_a_view(m: Any, x: Any) -> Any:
    row = x[0].view(3)
    row.data = x[1]
    return row + x[0]


def counts_writes(m: Any, x: Any) -> Any:
    x.add_(1)
    return x * x._version


def constant_weight(m: Any, x: Any) -> Any:
    nn.init.constant_(m.lin.weight, 0.5)
    return m.lin(x)


INSIDE = (
    *(double_data, swap, share, weight_data, then_fails, freezes, argument_requires_grad, result_requires_grad),
    *(gradient_of_argument, gradient_of_result, reads_gradient, data_of_a_view, counts_writes, constant_weight),
)


def state(module: nn.Module, x: torch.Tensor) -> list[Any]:
    tensors = [*module.state_dict(keep_vars=True).values(), x, *([] if x.grad is None else [x.grad])]
    named = [(type(t), t.requires_grad, t.stride(), t.tolist(), t.grad is None) for t in tensors]
    shared = [a.data_ptr() == b.data_ptr() for a in tensors for b in tensors]
    return [*named, shared]


def outcome(function: Callable[..., Any], x: torch.Tensor) -> Any:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            made = function(x)
        except RuntimeError as error:
            return type(error)
    return made.tolist(), made.requires_grad, made.is_leaf and made.grad is not None


@pytest.mark.parametrize("function", INSIDE)
def test_what_a_function_does_to_tensors_is_done(function):
    torch.manual_seed(0)
    ours = Holder()
    theirs = copy.deepcopy(ours)
    x = eighths(4, 3)
    a, b = x.clone(), x.clone()
    jitted = fusec.jit(lambda x: function(ours, x))
    for _ in range(3):
        assert outcome(jitted, a) == outcome(lambda x: function(theirs, x), b)
        assert state(ours, a) == state(theirs, b)


def grow(name: str, shape: tuple[int, ...]) -> Callable[[Any], None]:
    def change(m: Any) -> None:
        getattr(m, name).data = torch.ones(shape)

    return change


BETWEEN: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any], Any]]] = {
    "shape": (lambda m, x: x * m.p.shape[0], grow("p", (2, 3))),
    "length": (lambda m, x: x * len(m.b), grow("b", (5, 3))),
    "size of what is left out": (lambda m, x: x + torch.zeros_like(m.b).sum() + m.b.numel(), grow("b", (5, 3))),
    "dtype": (
        lambda m, x: x * (2 if m.p.dtype is torch.float32 else 3),
        lambda m: m.p.__setattr__("data", m.p.double()),
    ),
    "requires_grad": (lambda m, x: x * (2 if m.p.requires_grad else 3), lambda m: m.p.requires_grad_(False)),
    "of a layer": (
        lambda m, x: x * sum(t.numel() for t in m.lin.parameters() if t.requires_grad),
        lambda m: m.lin.weight.requires_grad_(False),
    ),
    "a gradient": (
        lambda m, x: x if m.p.grad is None else x + m.p.grad,
        lambda m: setattr(m.p, "grad", torch.ones(4, 3)),
    ),
    "a bias": (lambda m, x: m.plain(x), lambda m: setattr(m.plain, "bias", nn.Parameter(torch.ones(3)))),
    "a buffer": (lambda m, x: x * len(list(m.lin.buffers())), lambda m: m.lin.register_buffer("more", torch.ones(3))),
    "state": (lambda m, x: x * len(m.state_dict()), lambda m: m.register_buffer("more", torch.ones(3))),
    "children": (lambda m, x: x * len(list(m.lin.children())), lambda m: setattr(m.lin, "more", nn.ReLU())),
    "modules": (lambda m, x: x * len(list(m.lin.named_modules())), lambda m: setattr(m.lin, "more", nn.ReLU())),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_what_a_function_asks_of_tensors_and_modules_is_asked_at_each_call(name):
    read, change = BETWEEN[name]
    module, x = Holder(), torch.arange(12.0).reshape(4, 3)
    jitted = fusec.jit(lambda x: read(module, x))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = jitted(x)
        torch.testing.assert_close(before, read(module, x))
        change(module)
        found = jitted(x)
        assert not torch.equal(found, before)
        torch.testing.assert_close(found, read(module, x))


@pytest.mark.parametrize("last", [False, True])
def test_a_result_whose_strides_are_set_in_place_stays_captured(last: bool) -> None:
    """``adaptive_avg_pool2d`` does so to one with its channels last."""
    x = torch.randn(4, 24, 21, 20)
    x = x.to(memory_format=torch.channels_last) if last else x
    jitted = fusec.jit(lambda x: F.adaptive_avg_pool2d(x, 1), fallback="error")
    wanted = F.adaptive_avg_pool2d(x, 1)
    for _ in range(2):
        torch.testing.assert_close(jitted(x), wanted)
        assert jitted(x).stride() == wanted.stride()


def test_what_a_tensor_shows_after_as_strided_in_place() -> None:
    def shown(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        z = y.view(-1)
        z.as_strided_((4, 3), (1, 4))
        return y, z

    x = torch.arange(12.0).view(3, 4)
    jitted = fusec.jit(shown, fallback="error")
    for _ in range(2):
        y, z = jitted(x)
        torch.testing.assert_close((y, z), shown(x))
        assert z.stride() == (1, 4)
        assert z.data_ptr() == y.data_ptr()
