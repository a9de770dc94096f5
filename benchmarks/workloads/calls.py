"""What calls cost when there is nothing to compute: of few elements, many kernels, many parameters."""

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


KERNELS = 24
PARAMETERS = 200


def in_turn(x: torch.Tensor) -> torch.Tensor:
    """Softmaxes over the axes in turn, none of which fuses with the next."""
    for k in range(KERNELS):
        x = torch.softmax(x, k % 2)
    return x


class Weighted(torch.nn.Module):
    """So many parameters, each of which is read once."""

    def __init__(self) -> None:
        super().__init__()
        self.added = torch.nn.ParameterList(torch.randn(8) for _ in range(PARAMETERS))
        self.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for parameter in self.added:
            x = x * 0.5 + parameter
        return x


def rows(session: Session) -> Iterator[Row]:
    x = torch.randn(8)
    target = [Within(2.0, "µs")]
    peers = torch_peers(in_torch, (x,))
    yield session.time(
        Case("a call, torch: relu(x*2+1), 8 elements", peers, target, in_torch, (x,), unit="µs", scale=1e6)
    )
    y = x.numpy()
    pair = {"NumPy": Peer(in_numpy, (y,)), FUSEC: Peer(fusec.jit(in_numpy), (y,))}
    title = "a call, NumPy: maximum(x*2+1, 0), 8 elements"
    yield session.time(Case(title, pair, target, in_numpy, (y,), unit="µs", scale=1e6))
    table = torch.randn(8, 64)
    title = f"{KERNELS} kernels in a row: softmax over the axes in turn, 8×64"
    peers = torch_peers(in_turn, (table,))
    yield session.time(Case(title, peers, [Within(15.0, "µs")], in_turn, (table,), unit="µs", scale=1e6))
    model = Weighted()
    peers = {"eager": Peer(model, (x,)), FUSEC: Peer(fusec.jit(model), (x,))}
    title = f"{PARAMETERS} parameters by reference: x = x*0.5 + p, 8 elements"
    yield session.time(Case(title, peers, [Within(50.0, "µs")], model, (x,), unit="µs", scale=1e6))
