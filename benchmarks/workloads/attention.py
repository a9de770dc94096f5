"""Attention written out in plain PyTorch: matmul, scale, mask, softmax, matmul."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.harness import Peer
from benchmarks.peers import torch_peers
from benchmarks.report import FUSEC, Row
from benchmarks.session import Array, Case, Faster, Session

DEPTH = 64


def full(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return torch.softmax(scores, dim=-1) @ v


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    n = q.shape[-2]
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    seen = torch.ones(n, n, dtype=torch.bool).tril()
    scores = scores.masked_fill(~seen, float("-inf"))
    return torch.softmax(scores, dim=-1) @ v


def rows(session: Session) -> Iterator[Row]:
    yield session.time(case(12, 1024, is_causal=False))
    yield session.time(case(12, 1024, is_causal=True))
    yield session.time(case(4, 4096, is_causal=True))


def case(heads: int, n: int, *, is_causal: bool) -> Case:
    function = causal if is_causal else full
    q, k, v = (torch.randn(1, heads, n, DEPTH) for _ in range(3))
    peers = torch_peers(function, (q, k, v))
    peers["SDPA"] = Peer(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=is_causal), (q, k, v))
    pairs = n * (n + 1) // 2 if is_causal else n * n
    targets = [Faster(1.15, ("SDPA",)), *([Faster(3.0, ("compile",))] if is_causal else [])]
    return Case(
        f"attention f32, plain code, {heads} heads N{n} D{DEPTH} {'causal' if is_causal else 'full'}",
        peers,
        targets,
        function,
        (q, k, v),
        exact=lambda: exact(function, q, k, v),
        checked=("eager", FUSEC, "SDPA"),
        flops=4.0 * heads * pairs * DEPTH,
        nbytes=4.0 * 4 * heads * n * DEPTH,
    )


def exact(function: object, q: Tensor, k: Tensor, v: Tensor) -> Array:
    """Head by head, so that the float64 scores of one are there at a time."""
    assert callable(function)
    heads = [function(*(x[:, h : h + 1].double() for x in (q, k, v))).numpy() for h in range(q.shape[1])]
    return np.concatenate(heads, axis=1)
