"""Functions whose named dimensions have ranges, and extents in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Function = Callable[..., Any]
F = torch.nn.functional
Shapes = tuple[tuple[int | str, ...], ...]


def scaled(x: Any) -> Any:
    return torch.relu(x * 2 + 1)


def both(x: Any) -> Any:
    return torch.cat([x * 2, x + 1], -1).transpose(0, 1)


def soft(x: Any) -> Any:
    return torch.softmax(x * 2, -1)


def normed(x: Any, w: Any, b: Any) -> Any:
    return F.layer_norm(x, (x.shape[-1],), w, b)


def mlp(x: Any, w: Any, b: Any) -> Any:
    return F.gelu(F.linear(x, w, b))


def gated(x: Any, a: Any, b: Any) -> Any:
    return F.silu(x @ a) * (x @ b) + x[..., :1]


def scores(x: Any) -> Any:
    return torch.matmul(x, x.transpose(-1, -2))


def transposed_product(x: Any, y: Any) -> Any:
    return torch.matmul(x.transpose(-1, -2), y)


def product(x: Any, w: Any) -> Any:
    return torch.matmul(x, w)


def full(q: Any, k: Any, v: Any) -> Any:
    return torch.softmax(q @ k.transpose(-1, -2) * 0.125, -1) @ v


def causal(q: Any, k: Any, v: Any) -> Any:
    i = torch.arange(q.shape[-2], device=q.device)
    s = (q @ k.transpose(-1, -2) * 0.125).masked_fill(i[None, :] > i[:, None], float("-inf"))
    return torch.softmax(s, -1) @ v


def experts(x: Any, s: Any, w: Any, v: Any) -> Any:
    """Rows by expert, of which the values of ``s`` name two for each."""
    rows, scores = x.reshape(-1, x.shape[-1]), s.reshape(-1, s.shape[-1])
    index = (scores[:, :2] > 0).long() + (scores[:, 1:] > 0.3).long()
    out = torch.zeros_like(rows)
    for e in range(len(w)):
        row, slot = torch.where(index == e)
        out.index_add_(0, row, F.silu(rows[row] @ w[e].T) @ v[e].T * scores[row, slot, None] * 0.1)
    return out


QKV = (("B", 4, "S", 64),) * 3
CASES: dict[str, tuple[Function, Shapes]] = {
    "map": (scaled, (("B", "S", 24),)),
    "joined": (both, (("B", "S", 24),)),
    "softmax": (soft, (("B", "S", 100),)),
    "softmax of any length": (soft, (("B", "S"),)),
    "sum of any length": (lambda x: torch.sum(x.float(), (0, 1)), (("B", "S", 40),)),
    "variance": (lambda x: torch.var(x.float(), 1), (("B", "S"),)),
    "layer norm": (normed, (("B", "S", 96), (96,), (96,))),
    "linear and gelu": (mlp, (("B", "S", 96), (320, 96), (320,))),
    "gated": (gated, (("B", "S", 64), (64, 128), (64, 128))),
    "product along a symbol": (scores, (("B", "S", 64),)),
    "sum along a symbol": (transposed_product, (("B", "S", 64), ("B", "S", 48))),
    "attention": (full, QKV),
    "causal attention": (causal, QKV),
    "experts": (experts, (("B", "S", 16), ("B", "S", 3), (3, 16, 16), (3, 16, 16))),
    "few queries": (full, (("B", 4, 1, 64), ("B", 4, "S", 64), ("B", 4, "S", 64))),
}
EXTENTS = ((1, 2), (1, 300), (2, 3), (3, 65), (5, 128), (8, 301), (7, 2))
FEW_EXTENTS = ((1, 2), (3, 65))
DIMS = {"B": (1, 8), "S": (2, 301)}


def sizes(shapes: Shapes, b: int, s: int) -> list[list[int]]:
    """The shapes at these extents."""
    known = {"B": b, "S": s}
    return [[known[n] if isinstance(n, str) else n for n in shape] for shape in shapes]
