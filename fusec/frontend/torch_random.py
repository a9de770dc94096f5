# SPDX-License-Identifier: Apache-2.0
"""Dropout, of which only the draw is the library's. It is done as PyTorch's kernels for CPUs do it, in their order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from fusec.frontend.torch_emit import memory_order

_OPERANDS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


DRAWN = frozenset(
    ("bernoulli_", "uniform_", "exponential_", "geometric_", "cauchy_", "log_normal_", "random_", "normal_")
)
"""Calls that fill a tensor with random numbers, on a CPU in the order in which its elements lie."""

_FILLED = {"rand_like": "uniform_", "randn_like": "normal_"}


def drawn_apart(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], is_on_cpu: Callable[[torch.Tensor], bool]
) -> Callable[[], Any] | None:
    """What a call with dropout, or a draw, does, in calls of which one draws; None for other calls.

    On a GPU the library's own kernels draw, in an order of their own.
    """
    if name in ("dropout", "native_dropout"):
        if len(args) == 3 and args[2] and 0 < args[1] < 1:
            if is_on_cpu(args[0]):
                return partial(_dropout if name == "dropout" else _dropout_and_mask, args[0], args[1])
            return partial(_dropout_by_gpu, args[0], args[1]) if name == "dropout" else None
    elif name + "_" in DRAWN and name != "normal" and args and not args[0].is_contiguous() and is_on_cpu(args[0]):
        if any(isinstance(value, torch.Tensor) for value in args[1:]):
            return None
        order = memory_order(args[0])
        if order != tuple(range(args[0].dim())):
            return partial(drawn_as_it_lies, getattr(torch.ops.aten, name), order, *args, **kwargs)
    elif name in _FILLED and args and not args[0].is_contiguous() and is_on_cpu(args[0]):
        return lambda: getattr(torch.empty_like(args[0], **kwargs), _FILLED[name])()
    elif name == "scaled_dot_product_attention" and is_on_cpu(args[0]):
        given = {**dict(zip(_OPERANDS, args)), **kwargs}
        if 0 < given.get("dropout_p", 0) < 1:
            return partial(_attention, **given)
    return None


def drawn_as_it_lies(
    draw: Callable[..., Any], order: tuple[int, ...], x: torch.Tensor, *args: Any, **kwargs: Any
) -> Any:
    """A draw that makes a tensor of its own like ``x``, in the order of memory."""
    made = draw(x.permute(order), *args, **kwargs)
    return made.permute([order.index(axis) for axis in range(x.dim())])


def _dropout(x: torch.Tensor, p: float) -> torch.Tensor:
    return x * torch.empty_like(x).bernoulli_(1 - p).div_(1 - p)


def _dropout_by_gpu(x: torch.Tensor, p: float) -> Any:
    """As PyTorch's own decomposition is for tensors on a GPU (``dropout``, ATen/native/Dropout.cpp)."""
    return torch.ops.aten.native_dropout.default(x, p, True)[0]


def _dropout_and_mask(x: torch.Tensor, p: float) -> tuple[torch.Tensor, torch.Tensor]:
    mask = torch.empty_like(x).bernoulli_(1 - p)
    return x.mul(mask).mul_(1 / (1 - p)), mask.bool()


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> Any:
    mask = attn_mask
    if mask is not None and mask.dtype is torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, float("-inf"))
    whole = torch.ops.aten._scaled_dot_product_attention_math.default
    return whole(query, key, value, mask, dropout_p, is_causal, None, **options)[0]
