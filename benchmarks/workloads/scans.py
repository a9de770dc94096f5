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


def _timed(session: Session, name: str, function: Function, x: Tensor) -> Row:
    single = function not in (running_maximum, quantised)
    exact = (lambda: function(x.double()).numpy()) if single else None
    sides = [Faster(1.3, ("eager", "compile"))]
    nbytes = 8.0 * x.numel()
    return session.time(Case(name, torch_peers(function, (x,)), sides, function, (x,), exact=exact, nbytes=nbytes))
