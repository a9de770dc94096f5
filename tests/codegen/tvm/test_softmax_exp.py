"""Weights of attention: their sums are as exact as eager's, also where many of them are equal."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import fusec

Scores = Callable[[Tensor], Tensor]
LOWER = torch.tril(torch.ones(64, 129))

SCORES: dict[str, Scores] = {
    "multiplied by a mask": lambda s: s * LOWER,
    "cut": lambda s: s.clamp(max=0.5),
    "plain": lambda s: s,
    "hidden": lambda s: s.masked_fill(LOWER == 0, float("-inf")),
}


@pytest.mark.parametrize("name", list(SCORES))
def test_the_error_is_like_eager_s(name: str) -> None:
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(SCORES[name](q @ k.mT), -1) @ v

    jitted = fusec.jit(attention)
    ours, eager = [], []
    for seed in range(12):
        g = torch.Generator().manual_seed(seed)
        q, k, v = (torch.randn(n, 16, generator=g) for n in (64, 129, 129))
        exact = attention(q.double(), k.double(), v.double())
        ours.append((jitted(q, k, v) - exact).square().mean().item())
        eager.append((attention(q, k, v) - exact).square().mean().item())
    assert np.sqrt(np.mean(ours)) < 1.5 * np.sqrt(np.mean(eager))
