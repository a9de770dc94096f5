# SPDX-License-Identifier: Apache-2.0
"""ATen's neural-network calls: softmax, norms, attention, gelu."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from fusec.frontend.torch_emit import Declined, Emitter, axis_of, extents, torch_dtype
from fusec.ir.attributes import (
    AxisAttributes,
    GeluAttributes,
    NormAttributes,
    ReduceAttributes,
    SdpaAttributes,
    VarAttributes,
)
from fusec.ir.nodes import Value
from fusec.ir.types import f32

Lowering = Callable[..., Value | list[Value]]


def _softmax(op: str) -> Lowering:
    def lower(e: Emitter, x: Value, dim: int, dtype: torch.dtype | bool | None = None) -> Value:
        if not e.out.dtype.is_float or x.type.rank == 0:
            raise Declined("of a 0-d tensor or of integers")
        return e.emit(op, e.cast(x, e.out.dtype), attributes=AxisAttributes(axis_of(x.type.rank, dim)))

    return lower


def _softmax_gradient(e: Emitter, gradient: Value, output: Value, dim: int, input_dtype: torch.dtype) -> Value:
    """``output * (gradient - sum(gradient * output))``, as PyTorch's kernel adds it up."""
    (g, y), axes = _wide_operands(e, dim, gradient, output)
    total = e.reduce("reduce_sum", e.emit("mul", g, y), axes, keep=True)
    return e.rounded(e.emit("mul", y, e.emit("sub", g, total)), e.out.dtype)


def _log_softmax_gradient(e: Emitter, gradient: Value, output: Value, dim: int, input_dtype: torch.dtype) -> Value:
    """``gradient - exp(output) * sum(gradient)``"""
    (g, y), axes = _wide_operands(e, dim, gradient, output)
    total = e.reduce("reduce_sum", g, axes, keep=True)
    return e.rounded(e.emit("sub", g, e.emit("mul", e.emit("exp", y), total)), e.out.dtype)


def _wide_operands(e: Emitter, dim: int, *values: Value) -> tuple[list[Value], tuple[int, ...]]:
    """The operands in f32 at least, and the axis of their reduction."""
    rank = values[0].type.rank
    if not e.out.dtype.is_float or rank == 0:
        raise Declined("of a 0-d tensor or of integers")
    return [e.cast(v, f32) if v.type.dtype.bits <= 16 else v for v in values], (axis_of(rank, dim),)


def _gelu(e: Emitter, x: Value, *, approximate: str = "none") -> Value:
    form = GeluAttributes("tanh" if approximate == "tanh" else "none")
    return e.emit("gelu", x, attributes=form)


def _layer_norm(
    e: Emitter,
    x: Value,
    normalized_shape: Sequence[int],
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Value:
    attributes = NormAttributes(_last_axes(x, normalized_shape), eps)
    affine = [weight, bias]
    if weight is None and bias is not None:
        affine = [e.broadcast(e.constant(1, x.type.dtype), bias.type.shape), bias]
    result = e.emit("layer_norm", *_same_dtype(x, affine), attributes=attributes)
    return result if bias is not None else _plus_zero(e, result)


def _plus_zero(e: Emitter, norm: Value) -> Value:
    """A norm without a bias: on a CPU the library adds 0, after which -0.0 is 0.0."""
    return e.emit("add", norm, e.constant(0, norm.type.dtype)) if e.is_on_cpu(norm.type) else norm


def _rms_norm(
    e: Emitter, x: Value, normalized_shape: Sequence[int], weight: Value | None = None, eps: float | None = None
) -> Value:
    if eps is None:
        dtype = x.type.dtype if x.type.dtype.bits > 16 else f32
        eps = torch.finfo(torch_dtype(dtype)).eps
    attributes = NormAttributes(_last_axes(x, normalized_shape), eps)
    return e.emit("rms_norm", *_same_dtype(x, [weight]), attributes=attributes)


def _last_axes(x: Value, normalized_shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(range(x.type.rank - len(normalized_shape), x.type.rank))


def _same_dtype(x: Value, affine: Sequence[Value | None]) -> list[Value]:
    given = [a for a in affine if a is not None]
    if any(a.type.dtype != x.type.dtype for a in given):
        raise Declined("with weights of another dtype")
    return [x, *given]


def _batch_norm(
    e: Emitter,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Value:
    if training or running_mean is None or running_var is None:
        raise Declined("with statistics of the batch")
    shape = [1, -1] + [1] * (input.type.rank - 2)
    shape[1] = extents(input)[1]
    wide = input.type.dtype.accumulator

    def channels(v: Value) -> Value:
        return e.reshape(e.cast(v, wide), shape)

    variance = e.emit("add", channels(running_var), e.constant(eps, wide))
    scale = e.emit("rsqrt", variance)
    if weight is not None:
        scale = e.emit("mul", scale, channels(weight))
    result = e.emit("mul", e.emit("sub", e.cast(input, wide), channels(running_mean)), scale)
    result = e.emit("add", result, channels(bias)) if bias is not None else _plus_zero(e, result)
    return e.rounded(result, input.type.dtype)


def _group_norm(
    e: Emitter,
    input: Value,
    num_groups: int,
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Value:
    """Statistics of each group of channels, then a scale and a shift for each channel."""
    batch, count, *rest = extents(input)
    wide = input.type.dtype.accumulator
    grouped = e.reshape(e.cast(input, wide), (batch, num_groups, count // num_groups, *rest))
    axes = tuple(range(2, grouped.type.rank))
    mean = e.keep(e.emit("mean", grouped, attributes=ReduceAttributes(axes)), grouped, axes)
    variance = e.keep(e.emit("var", grouped, attributes=VarAttributes(axes)), grouped, axes)
    scale = e.emit("rsqrt", e.emit("add", variance, e.constant(eps, wide)))
    result = e.reshape(e.emit("mul", e.emit("sub", grouped, mean), scale), input.type.shape)
    for op, affine in (("mul", weight), ("add", bias)):
        if affine is not None:
            result = e.emit(op, result, e.reshape(e.cast(affine, wide), (count, *(1 for _ in rest))))
    return e.rounded(result, input.type.dtype)


def _sdpa(
    e: Emitter,
    query: Value,
    key: Value,
    value: Value,
    attn_mask: Value | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    if dropout_p > 0:
        raise Declined("attention with dropout draws random numbers", final=True)
    attributes = SdpaAttributes(is_causal, scale, enable_gqa)
    mask = () if attn_mask is None else (attn_mask,)
    return e.emit("sdpa", query, key, value, *mask, attributes=attributes)


def _dropout(e: Emitter, input: Value, p: float, train: bool) -> Value:
    if train and 0 < p < 1:
        raise Declined("dropout in training mode draws random numbers; call eval() on the module", final=True)
    if train and p == 1:
        return e.emit("mul", input, e.constant(0, input.type.dtype))
    return e.emit("copy", input)


NETWORK: dict[str, Lowering] = {
    "softmax": _softmax("softmax"),
    "_softmax": _softmax("softmax"),
    "special_softmax": _softmax("softmax"),
    "log_softmax": _softmax("log_softmax"),
    "_log_softmax": _softmax("log_softmax"),
    "_softmax_backward_data": _softmax_gradient,
    "_log_softmax_backward_data": _log_softmax_gradient,
    "gelu": _gelu,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "batch_norm": _batch_norm,
    "group_norm": _group_norm,
    "scaled_dot_product_attention": _sdpa,
    "dropout": _dropout,
}
