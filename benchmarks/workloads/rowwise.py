"""Softmax, and layer norm with gelu, over the rows of a large matrix."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.peers import torch_peers
from benchmarks.report import Row
from benchmarks.session import Case, Faster, Session

SIDE = 4096


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, dim=-1)


def norm_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(F.layer_norm(x, (x.shape[-1],), weight, bias))


def rows(session: Session) -> Iterator[Row]:
    x = torch.randn(SIDE, SIDE)
    scale, shift = torch.randn(SIDE), torch.randn(SIDE)
    for name, function, args in (("softmax", softmax, (x,)), ("layernorm+gelu", norm_gelu, (x, scale, shift))):
        yield session.time(
            Case(
                f"{name} f32 {SIDE}²",
                torch_peers(function, args),
                [Faster(1.5, ("compile",))],
                function,
                args,
                exact=lambda function=function, args=args: function(*(a.double() for a in args)).numpy(),  # type: ignore[misc]
                nbytes=8.0 * x.numel(),
            )
        )
