# SPDX-License-Identifier: Apache-2.0
"""Layers of experts whose rows data chooses, in plain PyTorch: a loop over ``where``, and one over experts hit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.peers import torch_peers
from benchmarks.report import Row
from benchmarks.session import Case, Faster, Session

SIZES = ((64, 64, 128, 8, 2), (128, 128, 256, 32, 4), (205, 2048, 1024, 8, 2))
"""Tokens, width, width of an expert, experts, how many of them a token has. The last: a twentieth of 4096 tokens."""


def by_where(x: Tensor, index: Tensor, weights: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for e in range(len(gate)):
        rows, place = torch.where(index == e)
        h = x[rows]
        h = (F.silu(h @ gate[e].T) * (h @ up[e].T)) @ down[e].T
        out.index_add_(0, rows, h * weights[rows, place, None])
    return out


def by_hits(x: Tensor, index: Tensor, weights: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """Over the experts that have rows."""
    out = torch.zeros_like(x)
    mask = F.one_hot(index, num_classes=len(gate)).permute(2, 1, 0)
    for e in torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero():
        place, rows = torch.where(mask[e[0]])
        h = x[rows]
        h = F.linear(F.silu(F.linear(h, gate[e[0]])) * F.linear(h, up[e[0]]), down[e[0]])
        out.index_add_(0, rows, h * weights[rows, place, None])
    return out


ALL: dict[str, Callable[..., Any]] = {"where, index_add": by_where, "transformers' loop": by_hits}


def rows(session: Session) -> Iterator[Row]:
    for tokens, width, hidden, experts, chosen in SIZES:
        weights, index = torch.topk(torch.randn(tokens, experts).softmax(-1), chosen)
        matrices = (torch.randn(experts, *shape) / shape[1] ** 0.5 for shape in ((hidden, width),) * 2)
        given = (
            torch.randn(tokens, width),
            index,
            weights,
            *matrices,
            torch.randn(experts, width, hidden) / hidden**0.5,
        )
        flops = 6.0 * tokens * chosen * width * hidden
        for name, function in ALL.items():
            work = f"{experts} experts, top {chosen}, {tokens}×{width}×{hidden}: {name}"
            yield _timed(session, work, function, given, flops)


def _timed(session: Session, work: str, function: Callable[..., Any], given: tuple[Tensor, ...], flops: float) -> Row:
    def exact() -> Any:
        return function(*(x.double() if x.is_floating_point() else x for x in given)).numpy()

    sides = [Faster(1.0, ("eager", "compile"))]
    return session.time(Case(work, torch_peers(function, given), sides, function, given, exact=exact, flops=flops))
