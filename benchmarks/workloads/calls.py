"""What a call costs when there is nothing to compute: two elementwise operations on eight elements."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

import fusec
from benchmarks.harness import Peer
from benchmarks.peers import torch_peers
from benchmarks.report import FUSEC, Row
from benchmarks.session import Array, Case, Session, Within


def in_torch(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x * 2 + 1)


def in_numpy(x: Array) -> Array:
    return np.maximum(x * 2 + 1, 0)  # type: ignore[no-any-return]


def rows(session: Session) -> Iterator[Row]:
    x = torch.randn(8)
    target = [Within(4.0, "µs")]
    peers = torch_peers(in_torch, (x,))
    yield session.time(
        Case("a call, torch: relu(x*2+1), 8 elements", peers, target, in_torch, (x,), unit="µs", scale=1e6)
    )
    y = x.numpy()
    pair = {"NumPy": Peer(in_numpy, (y,)), FUSEC: Peer(fusec.jit(in_numpy), (y,))}
    title = "a call, NumPy: maximum(x*2+1, 0), 8 elements"
    yield session.time(Case(title, pair, target, in_numpy, (y,), unit="µs", scale=1e6))
