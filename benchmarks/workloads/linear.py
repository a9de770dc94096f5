"""Linear layer with bias and tanh-approximated gelu, float32, weights held by a module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.harness import Peer
from benchmarks.peers import jax_peer, torch_peers
from benchmarks.report import FUSEC, Row
from benchmarks.session import Case, Faster, Session

SIZES = ((512, 768, 3072), (2048, 1024, 4096))
"""Rows, inputs, outputs."""


class Up(nn.Module):
    """The first half of a transformer's perceptron."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.linear(x), approximate="tanh")


def rows(session: Session) -> Iterator[Row]:
    for m, k, n in SIZES:
        yield session.time(case(m, k, n))


def case(m: int, k: int, n: int) -> Case:
    module = Up(k, n).eval().requires_grad_(False)
    x = torch.randn(m, k)
    weight, bias = module.linear.weight.data, module.linear.bias.data
    peers = {
        "matmul alone": Peer(F.linear, (x, weight)),
        **torch_peers(module, (x,)),
        **jax_peer(_in_jax, (x, weight, bias)),
    }
    return Case(
        f"linear+bias+gelu f32 {m}×{k}×{n}",
        peers,
        [Faster(1.2, ("eager", "compile"))],
        module,
        (x,),
        exact=lambda: F.gelu(F.linear(x.double(), weight.double(), bias.double()), approximate="tanh").numpy(),
        checked=("eager", FUSEC),
        flops=2.0 * m * k * n,
        nbytes=4.0 * (m * k + n * k + n + m * n),
    )


def _in_jax(jnp: Any) -> Any:
    import jax

    return lambda x, weight, bias: jax.nn.gelu(jnp.matmul(x, weight.T) + bias, approximate=True)
