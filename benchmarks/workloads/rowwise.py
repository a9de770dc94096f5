"""Softmax, and layer norm with gelu, over the rows of a large matrix."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.peers import torch_peers
from benchmarks.report import Row
from benchmarks.session import Case, Faster, Session
from benchmarks.traffic import copy_peers

SIDE = 4096
COPY_TARGET = Faster(0.9, ("copyto", "copy"))
"""Of a copy into memory that is there already: the faster of NumPy's and one past the caches."""


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
                {**torch_peers(function, args), **copy_peers(x.numpy())},
                [Faster(1.5, ("compile",)), COPY_TARGET],
                function,
                args,
                exact=lambda function=function, args=args: function(*(a.double() for a in args)).numpy(),  # type: ignore[misc]
                nbytes=8.0 * x.numel(),
            )
        )
