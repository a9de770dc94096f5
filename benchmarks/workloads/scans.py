"""Running sums, products and log-sum-exps in plain PyTorch, and rows quantised to 8 bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from benchmarks.peers import torch_peers
from benchmarks.report import Row
from benchmarks.session import Case, Faster, Session

Function = Callable[..., Any]


def sum_between_maps(x: Tensor) -> Tensor:
    return torch.cumsum(torch.exp(-x.abs()), -1) * x


def running_sum(x: Tensor) -> Tensor:
    return x.cumsum(-1)


def sum_of_columns(x: Tensor) -> Tensor:
    return x.cumsum(0)


def reversed_sum(x: Tensor) -> Tensor:
    return x.flip(-1).cumsum(-1).flip(-1)


def running_product(x: Tensor) -> Tensor:
    return torch.cumprod(1 + x / 100, -1)


def running_log_sum(x: Tensor) -> Tensor:
    return torch.logcumsumexp(x, -1)


def running_maximum(x: Tensor) -> tuple[Tensor, Tensor]:
    values, indices = torch.cummax(x, -1)
    return values, indices


def quantised(x: Tensor) -> tuple[Tensor, Tensor]:
    """Each row over its largest number, in 8 bits, and what it was divided by."""
    scale = x.abs().amax(-1, keepdim=True) / 448
    return (x / scale).to(torch.float8_e4m3fn), scale


def recurrence(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    """``h = a*h + b`` over time, as a loop."""
    out = []
    for t in range(a.shape[0]):
        h = a[t] * h + b[t]
        out.append(h)
    return torch.stack(out)


def gated(f: Tensor, x: Tensor) -> Tensor:
    """A forget gate, along the second axis."""
    h, out = torch.zeros_like(x[:, 0]), torch.empty_like(x)
    for t in range(x.shape[1]):
        gate = torch.sigmoid(f[:, t])
        h = gate * h + (1 - gate) * x[:, t]
        out[:, t] = h
    return out


def selective(u: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Mamba's selective scan, as its reference writes it."""
    factors = torch.exp(torch.einsum("bdl,dn->bdln", delta, a))
    terms = torch.einsum("bdl,bnl,bdl->bdln", delta, b, u)
    x, out = torch.zeros_like(factors[:, :, 0]), []
    for t in range(u.shape[2]):
        x = factors[:, :, t] * x + terms[:, :, t]
        out.append(torch.einsum("bdn,bn->bd", x, c[:, :, t]))
    return torch.stack(out, 2)


ALL: dict[str, Function] = {
    "cumsum(exp(-abs x))·x": sum_between_maps,
    "cumsum along axis 0": sum_of_columns,
    "flip, cumsum, flip": reversed_sum,
    "cumprod": running_product,
    "logcumsumexp": running_log_sum,
    "cummax with indices": running_maximum,
    "quantised rows": quantised,
}


def rows(session: Session) -> Iterator[Row]:
    wide = torch.randn(1024, 4096)
    for name, function in ALL.items():
        yield _timed(session, f"{name} f32 1024×4096", function, wide)
    yield _timed(session, "cumsum f32 1×2²²", running_sum, torch.randn(1, 1 << 22))
    steps = torch.rand(64, 64, 512), torch.randn(64, 64, 512), torch.randn(64, 512)
    yield _timed(session, "recurrence, 64 steps of 64×512 f32", recurrence, *steps)
    yield _timed(session, "gated recurrence, 64 steps of 64×512 f32", gated, torch.randn(64, 64, 512), steps[1])
    u, delta, b, c = torch.randn(2, 64, 128), torch.rand(2, 64, 128), torch.randn(2, 16, 128), torch.randn(2, 16, 128)
    yield _timed(session, "selective scan B2 D64 N16, 128 steps f32", selective, u, delta, -torch.rand(64, 16), b, c)


def _timed(session: Session, name: str, function: Function, *given: Tensor) -> Row:
    single = function not in (running_maximum, quantised)
    exact = (lambda: function(*(x.double() for x in given)).numpy()) if single else None
    sides = [Faster(1.3, ("eager", "compile"))]
    nbytes = 4.0 * (sum(x.numel() for x in given) + given[0].numel())
    return session.time(Case(name, torch_peers(function, given), sides, function, given, exact=exact, nbytes=nbytes))
