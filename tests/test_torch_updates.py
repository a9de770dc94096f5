"""Inputs that graphs of torch.compile update, written where they lie: what eager writes, reads and gives back."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import fusec
from fusec.torch_compile import gathering


class Net(nn.Module):
    """A function of a module with buffers and a parameter."""

    def __init__(self, function: Callable[..., Any], *buffers: torch.Tensor) -> None:
        super().__init__()
        self.function, self.w = function, nn.Parameter(torch.linspace(0.5, 1.5, 4))
        for number, buffer in enumerate(buffers):
            self.register_buffer(f"b{number}", buffer)

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def swapped(m: Any, x: torch.Tensor) -> torch.Tensor:
    kept = m.b0.clone()
    m.b0.copy_(m.b1)
    m.b1.copy_(kept)
    return (x * m.w + m.b0).sum()


def from_each_other(m: Any, x: torch.Tensor) -> torch.Tensor:
    a, b = m.b0 * 1.0, m.b1 * 1.0
    m.b0.copy_(b + 1)
    m.b1.copy_(a + 2)
    return (x * m.w + m.b0 - m.b1).sum()


def given_back(m: Any, x: torch.Tensor) -> Any:
    m.b0.add_(x.detach().mean(0))
    return (x * m.w).sum(), m.b0.view(2, 2)


def read_before_and_after(m: Any, x: torch.Tensor) -> torch.Tensor:
    before = m.b0.clone() * x
    m.b0.mul_(2)
    return (before * m.w + m.b0).sum()


def one_value_in_two(m: Any, x: torch.Tensor) -> Any:
    new = x.detach().mean(0)
    m.b0.copy_(new)
    m.b1.copy_(new)
    return (x * m.w).sum(), new


def through_a_view(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.b0.copy_(m.b1.flip(0))
    m.b1[1:3] = x.detach()[0, :2]
    return (x * m.w).sum()


def rounded(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.b0.copy_(x.detach().mean(0))
    return (x * m.w).sum()


def numbers() -> torch.Tensor:
    return torch.arange(4.0)


SHARED = torch.arange(8.0)
CASES: dict[str, tuple[Any, ...]] = {
    "swapped": (swapped, numbers(), numbers() * 2),
    "from each other": (from_each_other, numbers(), numbers() * 2),
    "given back": (given_back, numbers()),
    "read before and after": (read_before_and_after, numbers()),
    "one value in two": (one_value_in_two, numbers(), numbers()),
    "through a view": (through_a_view, numbers(), numbers()),
    "rounded": (rounded, torch.zeros(4, dtype=torch.float16)),
    "every other": (read_before_and_after, torch.arange(8.0)[::2]),
    "overlapping": (from_each_other, SHARED[:4], SHARED[2:6]),
}


def results(made: Any) -> tuple[torch.Tensor, ...]:
    return made if isinstance(made, tuple) else (made,)


@pytest.mark.parametrize("name", CASES)
def test_as_eager(name: str) -> None:
    torch._dynamo.reset()  # its guards don't ask whether buffers overlap
    net = Net(*CASES[name])
    net, eager = copy.deepcopy(net), copy.deepcopy(net)
    compiled = torch.compile(net, backend="fusec")
    for seed in range(2):
        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(seed))
        xs = x.clone().requires_grad_(), x.clone().requires_grad_()
        found, wanted = results(compiled(xs[0])), results(eager(xs[1]))
        found[0].backward()
        wanted[0].backward()
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(xs[0].grad, xs[1].grad)
        torch.testing.assert_close(list(net.buffers()), list(eager.buffers()))


def test_running_statistics_are_outputs_in_their_own_memory() -> None:
    """And the backward of a batch norm in training asks for none of them."""
    net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU())
    with gathering() as graphs:
        compiled = torch.compile(net, backend="fusec")
        compiled(torch.randn(6, 8)).sum().backward()
    forward, backward = (graph.executables[0].program for graph in graphs)
    assert set(forward.outputs[:3]) <= set(forward.inputs)
    assert (
        len(backward.inputs) == 7
    )  # the input, what the norm reads, its weight, the batch's statistics, its result, the gradient


def test_a_write_between_forward_and_backward_is_found() -> None:
    """A backward that reads a buffer is refused after the next call has updated it, as eager refuses it."""

    def scaled(m: Any, x: torch.Tensor) -> torch.Tensor:
        y = x * m.w * m.b0
        m.b1.add_(1)
        return y.sum()

    net = Net(scaled, numbers() + 1, numbers())
    loss = torch.compile(net, backend="fusec")(torch.randn(5, 4))
    net.b0.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_gpu_writes_them_in_the_kernel_that_reads_them() -> None:
    """No copy follows: the kernel that adds up the parts, and the one that counts, write the module's buffers."""
    norm = nn.BatchNorm2d(64).bfloat16()
    x = torch.randn(4, 64, 48, 48, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    graph = fusec.trace(norm, x, target="cuda:sm_90")
    kernels = fusec.lower(graph, "cuda:sm_90").kernels
    assert sorted(k.name.partition("_")[0] for k in kernels) == ["map", "map", "row", "row"]
