# SPDX-License-Identifier: Apache-2.0
"""Calls that are whole layers: which stay the library's, which are opened, and what they leave undefined.

Norms of half types with f32 weights are computed in f32, of which PyTorch's fake tensors know only a part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch._ops import OpOverload

UNROLLED = 32
"""Cells (steps, times layers and directions) of a recurrent network up to which it is opened."""

_RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})

_NORMS = frozenset(
    {
        *(f"native_{kind}_norm{way}" for kind in ("layer", "group", "batch") for way in ("", "_backward")),
        *(f"_native_batch_norm_legit{way}" for way in ("", "_functional", "_no_training")),
    }
)


def stays_whole(
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], is_on_cpu: Callable[[torch.Tensor], bool]
) -> bool:
    """Whether a call is a recurrent network that the library computes better than its cells one by one."""
    if func.overloadpacket.__name__ not in _RECURRENT or func._overloadname != "input":
        return False
    given = _named(func, args, kwargs)
    if given["train"] and given["dropout"]:  # it draws random numbers, in an order of its own
        return True
    steps = given["input"].shape[1 if given["batch_first"] else 0]
    cells = steps * given["num_layers"] * (2 if given["bidirectional"] else 1)
    return cells > UNROLLED or not is_on_cpu(given["input"])


def as_called(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Any:
    """What a call gave for fake tensors, with None where the call of real ones gives no tensor, and states of recurrent
    networks in the shape of those that it was given: fake tensors on a card, and the decompositions of PyTorch 2.11 and
    older, give one axis more."""
    if func.overloadpacket.__name__ in _RECURRENT and func._overloadname == "input" and isinstance(result, tuple):
        given = _named(func, args, kwargs)["hx"]
        states = given if isinstance(given, list | tuple) else [given]
        made = zip(result[1:], states, strict=True)
        return (result[0], *(m if m.shape == state.shape else m.reshape(state.shape) for m, state in made))
    test = _UNDEFINED.get(func.overloadpacket.__name__)
    if test is None or not isinstance(result, tuple | list):
        return result
    return (*result[:-1], None) if test(_named(func, args, kwargs)) else result


_UNDEFINED: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    "_native_multi_head_attention": lambda given: not given["need_weights"],
    "mkldnn_rnn_layer": lambda given: not given["train"],
}
"""Calls whose last result is undefined, and when."""


def widened(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[[], Any] | None:
    """A norm of a half type with f32 weights, in calls of f32 alone; None for other calls.

    On a CPU the library keeps the mean and the deviation in f32, and gives the gradient in the half type. Fake tensors
    say otherwise (native_layer_norm in torch/_refs, native_group_norm_backward in torch/_decomp), so that what a
    forward hands to a backward would be rounded.
    """
    if func.namespace != "aten" or func.overloadpacket.__name__ not in _NORMS:
        return None
    given = _named(func, args, kwargs)
    x, tensors = given["input"], [t for t in given.values() if isinstance(t, torch.Tensor)]
    halves = (torch.bfloat16, torch.float16)
    if not x.is_cpu or x.dtype not in halves or {t.dtype for t in tensors} != {x.dtype, torch.float32}:
        return None

    def wide(value: Any) -> Any:
        return value.float() if isinstance(value, torch.Tensor) and value.dtype is x.dtype else value

    def call() -> Any:
        first, *rest = func(*map(wide, args), **{name: wide(value) for name, value in kwargs.items()})
        return (None if first is None else first.to(x.dtype), *rest)

    return call


def _named(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments by their names in the schema."""
    parameters = func._schema.arguments
    given = {p.name: p.default_value for p in parameters if p.has_default_value()}
    return {**given, **dict(zip((p.name for p in parameters), args)), **kwargs}


def native_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[torch.Tensor, ...]:
    """``_native_multi_head_attention`` in calls that fuse."""
    weights, biases = qkv_weight.chunk(3), qkv_bias.chunk(3)
    made = [F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True)]
    q, k, v = (x.view(*x.shape[:2], num_head, -1).transpose(1, 2) for x in made)
    if mask is None and not need_weights:
        joined = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return (F.linear(joined, proj_weight, proj_bias),)
    scores = q * q.shape[-1] ** -0.5 @ k.mT
    if mask is not None:  # a row without a key is NaN, where scaled_dot_product_attention gives 0
        scores = scores.masked_fill(_over_scores(mask, mask_type, scores.shape), float("-inf"))
    shares = torch.softmax(scores, -1)
    result = F.linear((shares @ v).transpose(1, 2).flatten(2), proj_weight, proj_bias)
    if not need_weights:
        return (result,)
    return result, shares.mean(1) if average_attn_weights else shares


def rms_norm_gradient(
    gradient: torch.Tensor,
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    output_mask: Sequence[bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """``_fused_rms_norm_backward``, with the mean of a row divided and not each of its elements."""
    wide = torch.float64 if input.dtype is torch.float64 else torch.float32
    outer, inner = input.dim() - len(normalized_shape), len(normalized_shape)
    g, r = gradient.to(wide), rstd.to(wide).reshape(*input.shape[:outer], *(1 for _ in range(inner)))
    h = input.to(wide) * r
    of_input = of_weight = None
    if output_mask[0]:
        scaled = g if weight is None else g * weight.to(wide)
        axes = tuple(range(outer, outer + inner))
        mean = (scaled * h).sum(axes, keepdim=True) / max(math.prod(normalized_shape), 1)
        of_input = ((scaled - h * mean) * r).to(input.dtype)
    if output_mask[1] and weight is not None:
        product = g * h
        of_weight = (product.sum(tuple(range(outer))) if outer else product).to(input.dtype)
    return of_input, of_weight


_SHAPED: Mapping[int | None, tuple[int, ...]] = {0: (2, 3), 1: (0, 3)}
"""The axes of the scores that a mask has, by its type: one of pairs, one of keys. Any other has all."""


def _over_scores(mask: torch.Tensor, mask_type: int | None, shape: torch.Size) -> torch.Tensor:
    """Which scores count for nothing: where the mask is not 0. NotImplementedError for what the library refuses."""
    axes = _SHAPED.get(mask_type, tuple(range(len(shape))))
    if tuple(mask.shape) != tuple(shape[axis] for axis in axes):
        raise NotImplementedError
    return mask.bool().reshape([shape[axis] if axis in axes else 1 for axis in range(len(shape))])


def encoder_layer(
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    """``_transformer_encoder_layer_fwd`` in calls that fuse."""

    def attend(x: torch.Tensor) -> torch.Tensor:
        weights = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        made = native_attention(x, x, x, embed_dim, num_heads, *weights, mask, need_weights=False, mask_type=mask_type)
        return made[0]

    def feed(x: torch.Tensor) -> torch.Tensor:
        inner = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(inner) if use_gelu else F.relu(inner), ffn_weight_2, ffn_bias_2)

    def norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (embed_dim,), weight, bias, eps)

    if norm_first:
        x = src + attend(norm(src, norm_weight_1, norm_bias_1))
        return x + feed(norm(x, norm_weight_2, norm_bias_2))
    x = norm(src + attend(src), norm_weight_1, norm_bias_1)
    return norm(x + feed(x), norm_weight_2, norm_bias_2)


OPENED: Mapping[str, Callable[..., Any]] = {
    "_native_multi_head_attention": native_attention,
    "_transformer_encoder_layer_fwd": encoder_layer,
    "_fused_rms_norm_backward": rms_norm_gradient,
}
"""Calls for which PyTorch has no decomposition, or one that costs more, and ours."""
