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


def by_where(x: Any, index: Any, weights: Any, gate: Any, up: Any, down: Any) -> Any:
    """transformers 4's loop: experts with rows by ``index``, added up with the router's weights."""
    out = torch.zeros_like(x)
    for e in range(len(gate)):
        rows, place = torch.where(index == e)
        h = F.linear(F.silu(F.linear(x[rows], gate[e])) * F.linear(x[rows], up[e]), down[e])
        out.index_add_(0, rows, h * weights[rows, place, None])
    return out


def by_hits(x: Any, index: Any, weights: Any, gate_up: Any, down: Any) -> Any:
    """transformers 5's loop, over the experts that have rows; gate and up are halves of one matrix."""
    out = torch.zeros_like(x)
    mask = F.one_hot(index, num_classes=len(down) + 1).permute(2, 1, 0)
    for hit in torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero():
        e = hit[0]
        if e == len(down):
            continue
        place, rows = torch.where(mask[e])
        gate, up = F.linear(x[rows], gate_up[e]).chunk(2, dim=-1)
        h = F.linear(F.silu(gate) * up, down[e]) * weights[rows, place, None]
        out.index_add_(0, rows, h.to(out.dtype))
    return out


def library_routed(x: Any, index: Any, weights: Any, *matrices: Any) -> Any:
    """The same by a sort and ``_grouped_mm``, as transformers 5 has it for GPUs; gate and up may be apart."""
    *first, down = matrices
    (tokens, chosen), experts = index.shape, index.reshape(-1)
    order = torch.argsort(experts)
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(len(order), device=order.device)
    counts = torch.histc(experts[order].int(), bins=len(down), min=0, max=len(down) - 1)
    ends = torch.cumsum(counts, 0, dtype=torch.int32)
    rows = x[order // chosen]
    made = [torch._grouped_mm(rows, w.mT, offs=ends) for w in first]
    gate, up = made if len(made) > 1 else made[0].chunk(2, dim=-1)
    h = torch._grouped_mm(F.silu(gate) * up, down.mT, offs=ends) * weights.reshape(-1)[order, None]
    return h[inverse].view(tokens, chosen, -1).sum(1)
