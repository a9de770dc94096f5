"""Layers of graph networks in plain PyTorch: rows gathered along edges, weighed, and added up at their ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from benchmarks.peers import torch_peers
from benchmarks.report import Row
from benchmarks.session import Case, Faster, Session

NODES, EDGES, WIDTH = 20_000, 200_000, 64


def convolution(x: Tensor, source: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """What a GCN does after its product: weighted sums over neighbours."""
    return torch.zeros_like(x).index_add_(0, target, x[source] * weight[:, None])


def normalised(x: Tensor, source: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """The same, with degrees on both sides."""
    degree = torch.zeros_like(x[:, 0]).index_add_(0, target, weight).clamp(min=1e-3).rsqrt()
    return torch.zeros_like(x).index_add_(0, target, x[source] * (degree[source] * weight * degree[target])[:, None])


def scattered(x: Tensor, source: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """By ``scatter_add_``, as torch_geometric writes it."""
    messages = x[source] * weight[:, None]
    return torch.zeros_like(x).scatter_add_(0, target[:, None].expand_as(messages), messages)


ALL: dict[str, Callable[..., Any]] = {
    "GCN: gather, weigh, index_add": convolution,
    "GCN with degrees": normalised,
    "gather, weigh, scatter_add": scattered,
}


def rows(session: Session) -> Iterator[Row]:
    ends = torch.randint(0, NODES, (2, EDGES))
    given = torch.randn(NODES, WIDTH), ends[0], ends[1], torch.rand(EDGES)
    nbytes = 4.0 * EDGES * WIDTH + 8.0 * NODES * WIDTH + 20.0 * EDGES
    for name, function in ALL.items():
        yield _timed(session, f"{name} {EDGES:,} edges, {NODES:,}×{WIDTH} f32", function, given, nbytes)


def _timed(session: Session, name: str, function: Callable[..., Any], given: tuple[Tensor, ...], nbytes: float) -> Row:
    def exact() -> Any:
        return function(*(x.double() if x.is_floating_point() else x for x in given)).numpy()

    sides = [Faster(1.3, ("eager", "compile"))]
    return session.time(Case(name, torch_peers(function, given), sides, function, given, exact=exact, nbytes=nbytes))
