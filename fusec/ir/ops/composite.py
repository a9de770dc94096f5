# SPDX-License-Identifier: Apache-2.0
"""Composites: what libraries offer as one function, opened into primitives by canonicalisation.

Half types compute in f32 and round once, as PyTorch does.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import numpy as np

from fusec.errors import TypeRuleError
from fusec.ir.attributes import (
    Attributes,
    AxisAttributes,
    GeluAttributes,
    NormAttributes,
    ReduceAttributes,
    SdpaAttributes,
    VarAttributes,
)
from fusec.ir.definition import (
    A,
    Array,
    Arrays,
    OpDef,
    Types,
    define,
    require_axes,
    require_kind,
    require_same_dtype,
    show,
    widened,
)
from fusec.ir.ops.elementwise import erf
from fusec.ir.ops.shapes import broadcast_shapes, without_axes
from fusec.ir.types import FLOAT, REAL, Dim, DTypeKind, bool_


def _composite(
    name: str,
    attributes: type[A],
    arity: tuple[int, int],
    rule: Callable[[Types, A], Types],
    function: Callable[[Arrays, A], Array],
    flops: int = 1,
) -> OpDef:
    def reference(arrays: Arrays, record: A) -> Array:
        return np.asarray(function(widened(arrays), record)).astype(arrays[0].dtype, copy=False)

    return define(name, "composite", attributes, arity, rule, reference, flops)


def _activation(
    name: str, function: Callable[[Array], Array], flops: int, kinds: tuple[DTypeKind, ...] = FLOAT
) -> OpDef:
    def rule(types: Types, _: Attributes) -> Types:
        require_kind(types, kinds)
        return types

    return _composite(name, Attributes, (1, 1), rule, lambda xs, _: function(xs[0]), flops)


def _relu(x: Array) -> Array:
    return np.asarray(np.maximum(x, np.zeros((), x.dtype)))


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _silu(x: Array) -> Array:
    return np.asarray(x / (1 + np.exp(-x)))


def _softplus(x: Array) -> Array:
    return np.asarray(np.logaddexp(np.zeros((), x.dtype), x))


def _gelu_rule(types: Types, attributes: GeluAttributes) -> Types:
    require_kind(types, FLOAT)
    if attributes.approximate not in ("none", "tanh"):
        raise TypeRuleError(f"approximate is {attributes.approximate!r}; it must be 'none' or 'tanh'")
    return types


def _gelu(arrays: Arrays, attributes: GeluAttributes) -> Array:
    (x,) = arrays
    if attributes.approximate == "none":
        return np.asarray(0.5 * x * (1 + erf(np.asarray(x * sqrt(0.5)))))
    return np.asarray(0.5 * x * (1 + np.tanh(sqrt(2 / np.pi) * (x + 0.044715 * x * x * x))))


def _axis_rule(types: Types, attributes: AxisAttributes) -> Types:
    require_kind(types, FLOAT)
    require_axes((attributes.axis,), types[0])
    return types


def _shifted(x: Array, axis: int) -> Array:
    return np.asarray(x - np.max(x, axis=axis, keepdims=True, initial=-np.inf))


def _softmax(arrays: Arrays, attributes: AxisAttributes) -> Array:
    weights = np.exp(_shifted(arrays[0], attributes.axis))
    return np.asarray(weights / np.sum(weights, axis=attributes.axis, keepdims=True))


def _log_softmax(arrays: Arrays, attributes: AxisAttributes) -> Array:
    shifted = _shifted(arrays[0], attributes.axis)
    return np.asarray(shifted - np.log(np.sum(np.exp(shifted), axis=attributes.axis, keepdims=True)))


def _statistic_rule(types: Types, attributes: ReduceAttributes | VarAttributes) -> Types:
    (t,) = types
    require_kind(types, FLOAT)
    require_axes(attributes.axes, t, ascending=True)
    return (t.with_shape(without_axes(t, attributes.axes)),)


def _count(x: Array, axes: tuple[int, ...]) -> int:
    return int(np.prod([x.shape[a] for a in axes], dtype=np.int64))


def _mean(arrays: Arrays, attributes: ReduceAttributes) -> Array:
    (x,) = arrays
    return np.asarray(np.sum(x, axis=attributes.axes) / np.asarray(_count(x, attributes.axes), x.dtype))


def _var(arrays: Arrays, attributes: VarAttributes) -> Array:
    (x,) = arrays
    count = _count(x, attributes.axes)
    centred = x - np.sum(x, axis=attributes.axes, keepdims=True) / np.asarray(count, x.dtype)
    left = np.asarray(max(count - attributes.correction, 0.0), x.dtype)
    return np.asarray(np.sum(centred * centred, axis=attributes.axes) / left)


def _norm_rule(types: Types, attributes: NormAttributes) -> Types:
    t, *affine = types
    require_same_dtype(types)
    require_kind(types, FLOAT)
    require_axes(attributes.axes, t, ascending=True)
    if attributes.axes != tuple(range(t.rank - len(attributes.axes), t.rank)):
        raise TypeRuleError(f"axes {list(attributes.axes)} of {t} must be its last axes; permute it first")
    wanted = t.shape[t.rank - len(attributes.axes) :]
    if any(a.shape != wanted for a in affine):
        raise TypeRuleError(f"{show(affine)} must have the shape of the normalised axes of {t}")
    return (t,)


def _layer_norm(arrays: Arrays, attributes: NormAttributes) -> Array:
    x, *affine = arrays
    count = np.asarray(_count(x, attributes.axes), x.dtype)
    centred = x - np.sum(x, axis=attributes.axes, keepdims=True) / count
    variance = np.sum(centred * centred, axis=attributes.axes, keepdims=True) / count
    result = centred / np.sqrt(variance + np.asarray(attributes.eps, x.dtype))
    if affine:
        result = result * affine[0]
    return np.asarray(result + affine[1] if len(affine) > 1 else result)


def _rms_norm(arrays: Arrays, attributes: NormAttributes) -> Array:
    x, *weight = arrays
    count = np.asarray(_count(x, attributes.axes), x.dtype)
    square = np.sum(x * x, axis=attributes.axes, keepdims=True) / count
    result = x / np.sqrt(square + np.asarray(attributes.eps, x.dtype))
    return np.asarray(result * weight[0] if weight else result)


def _sdpa_rule(types: Types, attributes: SdpaAttributes) -> Types:
    q, k, v, *mask = types
    require_same_dtype((q, k, v))
    require_kind((q, k, v), FLOAT)
    if min(q.rank, k.rank, v.rank) < 2 or q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise TypeRuleError(
            f"q, k, v are {show(types[:3])}; they must be [..., L, E], [..., S, E] and [..., S, Ev] with equal E and S"
        )
    key_batch = _key_batch(q.shape, k.shape, attributes)
    value_batch = _key_batch(q.shape, v.shape, attributes)
    batch = broadcast_shapes(q.shape[:-2], key_batch, value_batch)
    if mask:
        _check_mask(types, (*batch, q.shape[-2], k.shape[-2]), attributes)
    return (q.with_shape([*batch, q.shape[-2], v.shape[-1]]),)


def _check_mask(types: Types, scores: tuple[Dim, ...], attributes: SdpaAttributes) -> None:
    q, mask = types[0], types[3]
    if attributes.causal:
        raise TypeRuleError("a mask and causal=True exclude each other; add the causal part to the mask")
    if mask.dtype is not bool_ and mask.dtype != q.dtype:
        raise TypeRuleError(f"the mask is {mask}; it must be bool or {q.dtype} as the query is")
    if broadcast_shapes(mask.shape, scores) != scores:
        raise TypeRuleError(f"the mask {mask} does not broadcast to the scores {list(scores)}")


def _key_batch(q: tuple[Dim, ...], k: tuple[Dim, ...], attributes: SdpaAttributes) -> tuple[Dim, ...]:
    """The batch axes of keys or values after their heads are repeated for the query's."""
    if not attributes.grouped:
        return k[:-2]
    if len(q) < 3 or len(k) < 3:
        raise TypeRuleError("grouped heads need operands of 3 axes or more, the heads third from the right")
    heads, groups = q[-3], k[-3]
    if heads == groups:
        return k[:-2]
    if not isinstance(heads, int) or not isinstance(groups, int) or groups == 0 or heads % groups:
        raise TypeRuleError(f"{heads} query heads are not a multiple of {groups} key or value heads")
    return (*k[:-3], heads)


def _sdpa(arrays: Arrays, attributes: SdpaAttributes) -> Array:
    q, k, v, *mask = arrays
    if attributes.grouped:
        k = np.repeat(k, q.shape[-3] // k.shape[-3], axis=-3)
        v = np.repeat(v, q.shape[-3] // v.shape[-3], axis=-3)
    scale = attributes.scale if attributes.scale is not None else 1 / sqrt(q.shape[-1])
    scores = np.matmul(q, np.swapaxes(k, -1, -2)) * np.asarray(scale, q.dtype)
    if attributes.causal:
        keep = np.tril(np.ones(scores.shape[-2:], np.bool_))
        scores = np.where(keep, scores, np.asarray(-np.inf, q.dtype))
    if mask and mask[0].dtype == np.bool_:
        scores = np.where(mask[0], scores, np.asarray(-np.inf, q.dtype))
    elif mask:
        scores = scores + mask[0]
    return np.asarray(np.matmul(_safe_softmax(scores), v))


def _safe_softmax(scores: Array) -> Array:
    """Softmax of the last axis in which a row of only -inf gives zeros, as PyTorch's attention does."""
    weights = _softmax((scores,), AxisAttributes(scores.ndim - 1))
    masked = np.all(np.isneginf(scores), axis=-1, keepdims=True)
    return np.where(masked, np.zeros((), scores.dtype), weights)


COMPOSITE_OPS: tuple[OpDef, ...] = (
    _activation("relu", _relu, 1, REAL),
    _activation("sigmoid", _sigmoid, 15),
    _activation("silu", _silu, 16),
    _activation("softplus", _softplus, 25),
    _composite("gelu", GeluAttributes, (1, 1), _gelu_rule, _gelu, 24),
    _composite("softmax", AxisAttributes, (1, 1), _axis_rule, _softmax),
    _composite("log_softmax", AxisAttributes, (1, 1), _axis_rule, _log_softmax),
    _composite("mean", ReduceAttributes, (1, 1), _statistic_rule, _mean),
    _composite("var", VarAttributes, (1, 1), _statistic_rule, _var),
    _composite("layer_norm", NormAttributes, (1, 3), _norm_rule, _layer_norm),
    _composite("rms_norm", NormAttributes, (1, 2), _norm_rule, _rms_norm),
    _composite("sdpa", SdpaAttributes, (3, 4), _sdpa_rule, _sdpa),
)
