"""Layers of experts as plain code: all experts for every token by einsum, and groups of rows by a loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate
from random import Random
from typing import Any

import torch
import torch.nn.functional as F


def dense(x: Any, gate: Any, up: Any, down: Any, weights: Any) -> Any:
    """Every expert for every token, added up with the router's weights."""
    hidden = F.silu(torch.einsum("td,edf->tef", x, gate)) * torch.einsum("td,edf->tef", x, up)
    return torch.einsum("tef,efd->td", hidden * weights[:, :, None], down)


def sizes_of(rows: int, groups: int) -> list[int]:
    """Rows of each group, as a router of random tokens might give them."""
    chance = Random(0)
    chosen = Counter(chance.choices(range(groups), [0.3 + chance.random() for _ in range(groups)], k=rows))
    return [chosen[n] for n in range(groups)]


def products(sizes: Sequence[int]) -> Callable[..., Any]:
    return lambda x, w: torch.cat([part @ w[n] for n, part in enumerate(x.split(sizes))])


def gated(sizes: Sequence[int]) -> Callable[..., Any]:
    def run(x: Any, gate: Any, up: Any, down: Any) -> Any:
        results = []
        for n, part in enumerate(x.split(sizes)):
            results.append((F.silu(part @ gate[n]) * (part @ up[n])) @ down[n])
        return torch.cat(results)

    return run


def library_products(sizes: Sequence[int]) -> Callable[..., Any]:
    """``_grouped_mm`` with ends that are on the device from the first call on."""

    @cache
    def ends() -> torch.Tensor:
        return torch.tensor([*accumulate(sizes)], dtype=torch.int32, device="cuda")

    return lambda x, w: torch._grouped_mm(x, w, offs=ends())


def library_gated(sizes: Sequence[int]) -> Callable[..., Any]:
    multiply = library_products(sizes)
    return lambda x, gate, up, down: multiply(F.silu(multiply(x, gate)) * multiply(x, up), down)
