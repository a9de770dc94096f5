"""Random numbers follow PyTorch's stream, whatever the order in which a tensor's axes lie."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import fusec

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

DRAWS: dict[str, Callable[[Any], Any]] = {
    "dropout of a transposed argument": lambda x: F.dropout(x.transpose(0, 1), 0.3),
    "dropout of what is computed so": lambda x: F.dropout((x * 2).permute(2, 0, 1), 0.3),
    "dropout after a matmul": lambda x: F.dropout((x.transpose(0, 1) @ torch.ones(16, 8)).transpose(0, 1), 0.3),
    "rand_like": lambda x: torch.rand_like(x.transpose(0, 1) + 1),
    "randn_like": lambda x: torch.randn_like(x.transpose(0, 1) + 1),
    "bernoulli_": lambda x: torch.empty_like(x.transpose(0, 1)).bernoulli_(0.3),
    "uniform_": lambda x: torch.empty_like(x.transpose(0, 2)).uniform_(1, 2),
    "exponential_": lambda x: torch.empty_like(x.transpose(1, 2)).exponential_(),
    "normal_": lambda x: torch.empty_like(x.transpose(0, 1)).normal_(1, 2),
    "random_": lambda x: torch.zeros_like(x.transpose(0, 1)).random_(0, 9),
    "channels last": lambda x: F.dropout2d(x[None].to(memory_format=torch.channels_last) * 2, 0.3),
}


@pytest.mark.parametrize("graded", [False, True])
@pytest.mark.parametrize("name", DRAWS)
def test_draws_for_axes_in_another_order(name: str, graded: bool) -> None:
    function = DRAWS[name]
    fast = fusec.jit(warn=False)(function)
    for seed in range(2):
        found = []
        for call in (fast, function):
            torch.manual_seed(seed)
            x = (torch.arange(160.0) + 1).reshape(2, 5, 16).requires_grad_(graded)
            y = call(x)
            if y.requires_grad:
                y.sum().backward()
            found.append((y.detach(), x.grad, torch.rand(2)))
        torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


def test_an_encoder_layer_in_training() -> None:
    torch.manual_seed(1)
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    fast = fusec.jit(warn=False)(layer)
    x = torch.randn(2, 5, 16)
    for gradients in (False, True):
        found = []
        for call in (fast, layer):
            torch.manual_seed(0)
            with torch.set_grad_enabled(gradients):
                found.append(call(x).detach())
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
