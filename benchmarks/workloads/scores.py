"""Scores without a softmax in plain PyTorch, and attention's backward as code that computes the scores again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from benchmarks.peers import torch_peers
from benchmarks.report import FUSEC, Row
from benchmarks.session import Case, Faster, Session
from benchmarks.workloads.attention import exact

DEPTH = 64
Function = Callable[..., Any]


def indices(s: Tensor) -> tuple[Tensor, Tensor]:
    n, m = s.shape[-2:]
    return torch.arange(n, device=s.device)[:, None], torch.arange(m, device=s.device)[None, :]


def causal(s: Tensor, fill: float) -> Tensor:
    i, j = indices(s)
    return s.masked_fill(j > i, fill)


def sigmoid_causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.sigmoid(causal(q @ k.mT / q.shape[-1] ** 0.5, -torch.inf)) @ v


def relu_squared(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (torch.relu(q @ k.mT / q.shape[-1] ** 0.5) ** 2 / k.shape[-2]) @ v


def retention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = q @ k.mT
    i, j = indices(s)
    decay = torch.where(i >= j, 0.97 ** (i - j).float(), 0.0)
    return (s * decay.to(q.dtype)) @ v


def difference(q1: Tensor, q2: Tensor, k1: Tensor, k2: Tensor, v: Tensor) -> Tensor:
    """Two score matrices of half the heads' columns, one subtracted from the other."""
    a, b = (torch.sigmoid(q @ k.mT / q.shape[-1] ** 0.5) for q, k in ((q1, k1), (q2, k2)))
    return causal(a - 0.5 * b, 0.0) @ v


def backward_queries(q: Tensor, k: Tensor, v: Tensor, do: Tensor, lse: Tensor, delta: Tensor) -> Tensor:
    return _scores_backward(q, k, v, do, lse, delta)[1] @ k


def backward_keys(q: Tensor, k: Tensor, v: Tensor, do: Tensor, lse: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
    p, ds = _scores_backward(q, k, v, do, lse, delta)
    return ds.mT @ q, p.mT @ do


def _scores_backward(*x: Tensor) -> tuple[Tensor, Tensor]:
    """The weights of a causal attention, and the gradient of its scores."""
    q, k, v, do, lse, delta = x
    scale = q.shape[-1] ** -0.5
    p = torch.exp(causal((q @ k.mT).float() * scale, -torch.inf) - lse[..., None])
    ds = p * ((do @ v.mT).float() - delta[..., None]) * scale
    return p.to(q.dtype), ds.to(q.dtype)


FORWARD: dict[str, tuple[Function, bool]] = {
    "sigmoid attention, causal": (sigmoid_causal, True),
    "ReLU² attention": (relu_squared, False),
    "retention": (retention, True),
}
"""Functions of q, k and v, and whether they are causal."""

BACKWARD: dict[str, tuple[Function, int]] = {
    "attention's backward, queries": (backward_queries, 3),
    "attention's backward, keys and values": (backward_keys, 4),
}
"""Functions that compute causal scores again, and how many matmuls of a point they have."""


def rows(session: Session) -> Iterator[Row]:
    for name, (function, is_causal) in FORWARD.items():
        yield session.time(case(name, function, 4, 2048, is_causal=is_causal))


def case(name: str, function: Function, heads: int, n: int, *, is_causal: bool) -> Case:
    q, k, v = (torch.randn(1, heads, n, DEPTH) for _ in range(3))
    pairs = n * (n + 1) // 2 if is_causal else n * n
    return Case(
        f"{name} f32, {heads} heads N{n} D{DEPTH}",
        torch_peers(function, (q, k, v)),
        [Faster(1.3, ("compile", "eager"))],
        function,
        (q, k, v),
        exact=lambda: exact(function, q, k, v),
        checked=("eager", FUSEC),
        flops=4.0 * heads * pairs * DEPTH,
        nbytes=4.0 * 4 * heads * n * DEPTH,
    )


def backward_arguments(make: Callable[..., Tensor], b: int, h: int, n: int, d: int) -> tuple[Tensor, ...]:
    """Queries, keys, values, the gradient of the result, and for each query about its scores' log-sum-exp, and 0."""
    tensors = [make(b, h, n, d) for _ in range(4)]
    counts = torch.arange(1, n + 1, device=tensors[0].device, dtype=torch.float32)
    lse = (counts.log() + 0.5).expand(b, h, n).contiguous()
    return (*tensors, lse, torch.zeros_like(lse))
