# SPDX-License-Identifier: Apache-2.0
"""Activations, softmax, statistics and norms opened into primitives.

Half types are cast to f32 at the start and rounded once at the end, as the libraries compute them.
"""

from __future__ import annotations

from math import pi, sqrt

from fusec.ir.attributes import (
    AxisAttributes,
    CastAttributes,
    ExtentAttributes,
    GeluAttributes,
    NormAttributes,
    ReduceAttributes,
    VarAttributes,
)
from fusec.ir.index import product
from fusec.ir.nodes import Value
from fusec.ir.types import Dim, DType, bf16, f16, f32
from fusec.passes.rewrite import Outcome, Rewriter, Rule, rule


def compute_dtype(dtype: DType) -> DType:
    """The dtype that a composite on ``dtype`` computes in: f32 for the half types, else its own."""
    return f32 if dtype in (f16, bf16) else dtype


def upcast(r: Rewriter, value: Value) -> Value:
    """``value`` in the dtype that it computes in."""
    return r.cast(value, compute_dtype(value.type.dtype))


def downcast(r: Rewriter, value: Value) -> Value:
    """``value`` in the result's dtype. The rounding to a half type ends a library's call: no user wrote it."""
    dtype = r.op.result.type.dtype
    if dtype not in (f16, bf16) or value.type.dtype == dtype:
        return r.cast(value, dtype)
    return r.emit("cast", value, attributes=CastAttributes(dtype, True))


def _binary(r: Rewriter, name: str, value: Value, number: float, hint: str = "") -> Value:
    return r.emit(name, value, r.constant(number, value), hint=hint)


@rule("relu")
def relu(r: Rewriter) -> Outcome:
    """relu(x) ⇒ maximum(x, 0)"""
    (x,) = r.operands
    return r.emit("maximum", x, r.constant(0.0 if x.type.dtype.is_float else 0, x))


@rule("sigmoid")
def sigmoid(r: Rewriter) -> Outcome:
    """sigmoid(x) ⇒ 1 / (1 + exp(-x))"""
    return downcast(r, _reciprocal_logistic(r, None))


@rule("silu")
def silu(r: Rewriter) -> Outcome:
    """silu(x) ⇒ x / (1 + exp(-x))"""
    return downcast(r, _reciprocal_logistic(r, upcast(r, r.operands[0])))


def _reciprocal_logistic(r: Rewriter, numerator: Value | None) -> Value:
    x = numerator or upcast(r, r.operands[0])
    below = _binary(r, "add", r.emit("exp", r.emit("neg", x)), 1.0)
    return r.emit("div", numerator or r.constant(1.0, x), below)


@rule("softplus")
def softplus(r: Rewriter) -> Outcome:
    """softplus(x) ⇒ maximum(x, 0) + log1p(exp(-|x|)), which neither overflows nor cancels"""
    x = upcast(r, r.operands[0])
    rest = r.emit("log1p", r.emit("exp", r.emit("neg", r.emit("abs", x))))
    return downcast(r, r.emit("add", _binary(r, "maximum", x, 0.0), rest))


@rule("gelu")
def gelu(r: Rewriter) -> Outcome:
    """gelu(x) ⇒ 0.5 x (1 + erf(x / √2)), or 0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³)))"""
    x = upcast(r, r.operands[0])
    if r.op.expect(GeluAttributes).approximate == "none":
        curve = r.emit("erf", _binary(r, "mul", x, sqrt(0.5)))
    else:
        cube = r.emit("mul", r.emit("mul", x, x), x, hint="cube")
        inner = r.emit("add", x, _binary(r, "mul", cube, 0.044715), hint="inner")
        curve = r.emit("tanh", _binary(r, "mul", inner, sqrt(2 / pi)))
    half = _binary(r, "mul", x, 0.5, hint="half")
    return downcast(r, r.emit("mul", half, _binary(r, "add", curve, 1.0)))


@rule("softmax")
def softmax(r: Rewriter) -> Outcome:
    """softmax(x) ⇒ e / sum(e), e = exp(x - max(x))

    A row of only -inf gives NaN, as PyTorch's softmax does (-inf - -inf).
    """
    x = upcast(r, r.operands[0])
    axis = r.op.expect(AxisAttributes).axis
    if x.type.shape[axis] == 0:
        return r.emit("copy", r.operands[0])
    weights, _ = softmax_of(r, x, axis)
    return downcast(r, weights)


def softmax_of(r: Rewriter, x: Value, axis: int) -> tuple[Value, Value]:
    """The softmax along one axis that is not empty, and the maximum along it (kept as extent 1)."""
    shifted, largest = _shifted(r, x, axis)
    powers = r.emit("exp", shifted)
    total = r.keep(r.reduce("reduce_sum", powers, [axis], hint="sum"), x, [axis])
    return r.emit("div", powers, total), largest


@rule("log_softmax")
def log_softmax(r: Rewriter) -> Outcome:
    """log_softmax(x) ⇒ d - log(sum(exp(d))), d = x - max(x)"""
    x = upcast(r, r.operands[0])
    axis = r.op.expect(AxisAttributes).axis
    if x.type.shape[axis] == 0:
        return r.emit("copy", r.operands[0])
    shifted, _ = _shifted(r, x, axis)
    total = r.reduce("reduce_sum", r.emit("exp", shifted), [axis], hint="sum")
    return downcast(r, r.emit("sub", shifted, r.keep(r.emit("log", total), x, [axis])))


def _shifted(r: Rewriter, x: Value, axis: int) -> tuple[Value, Value]:
    largest = r.keep(r.reduce("reduce_max", x, [axis], hint="max"), x, [axis])
    return r.emit("sub", x, largest, hint="shifted"), largest


@rule("mean")
def mean(r: Rewriter) -> Outcome:
    """mean(x) ⇒ sum(x) / n"""
    return downcast(r, _mean(r, upcast(r, r.operands[0]), r.op.expect(ReduceAttributes).axes))


@rule("var")
def var(r: Rewriter) -> Outcome:
    """var(x) ⇒ sum(d²) / max(n - correction, 0), d = x - sum(x) / n"""
    attributes = r.op.expect(VarAttributes)
    axes, correction = attributes.axes, attributes.correction
    x = upcast(r, r.operands[0])
    centred = _centred(r, x, axes)
    total = r.reduce("reduce_sum", r.emit("mul", centred, centred, hint="square"), axes, hint="sum")
    return downcast(r, r.emit("div", total, _count(r, x, axes, correction)))


@rule("layer_norm")
def layer_norm(r: Rewriter) -> Outcome:
    """layer_norm(x, w, b) ⇒ d · rsqrt(mean(d²) + eps) · w + b, d = x - mean(x)"""
    x, *affine = (upcast(r, v) for v in r.operands)
    centred = _centred(r, x, r.op.expect(NormAttributes).axes)
    result = _normalised(r, centred, r.op.expect(NormAttributes))
    if affine:
        result = r.emit("mul", result, affine[0], hint="scaled")
    if affine[1:]:
        result = r.emit("add", result, affine[1], hint="biased")
    return downcast(r, result)


@rule("rms_norm")
def rms_norm(r: Rewriter) -> Outcome:
    """rms_norm(x, w) ⇒ x · rsqrt(mean(x²) + eps) · w"""
    x, *weight = (upcast(r, v) for v in r.operands)
    result = _normalised(r, x, r.op.expect(NormAttributes))
    return downcast(r, r.emit("mul", result, weight[0], hint="scaled") if weight else result)


def _normalised(r: Rewriter, x: Value, norm: NormAttributes) -> Value:
    """``x`` over the root of its mean square plus eps."""
    square = _mean(r, r.emit("mul", x, x, hint="square"), norm.axes, hint="var")
    scale = r.emit("rsqrt", _binary(r, "add", r.keep(square, x, norm.axes), norm.eps))
    return r.emit("mul", x, scale, hint="normal")


def _mean(r: Rewriter, x: Value, axes: tuple[int, ...], hint: str = "mean") -> Value:
    return r.emit("div", r.reduce("reduce_sum", x, axes, hint="sum"), _count(r, x, axes), hint=hint)


def _centred(r: Rewriter, x: Value, axes: tuple[int, ...]) -> Value:
    return r.emit("sub", x, r.keep(_mean(r, x, axes), x, axes), hint="centred")


def _count(r: Rewriter, x: Value, axes: tuple[int, ...], correction: float = 0.0) -> Value:
    """The number of elements reduced, less ``correction``, in the dtype of ``x``."""
    count: Dim = product(x.type.shape[a] for a in axes)
    if isinstance(count, int):
        return r.constant(max(float(count) - correction, 0.0), x)
    number = r.emit("extent", attributes=ExtentAttributes((count,), x.type.dtype, x.type.device), hint="count")
    if not correction:
        return number
    return _binary(r, "maximum", _binary(r, "sub", number, correction), 0.0)


COMPOSITE_RULES: tuple[Rule, ...] = (
    relu,
    sigmoid,
    silu,
    softplus,
    gelu,
    softmax,
    log_softmax,
    mean,
    var,
    layer_norm,
    rms_norm,
)
