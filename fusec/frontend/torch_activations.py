# SPDX-License-Identifier: Apache-2.0
"""Activations of torch.nn that PyTorch has as calls of their own."""

from __future__ import annotations

from math import inf

from fusec.frontend.torch_elementwise import Lowering, clamp, in_f32
from fusec.frontend.torch_emit import Declined, Emitter
from fusec.ir.attributes import Scalar
from fusec.ir.nodes import Value


def _hardtanh(e: Emitter, x: Value, min_val: Scalar = -1, max_val: Scalar = 1) -> Value:
    return clamp(e, x, min_val, max_val)


def _relu(e: Emitter, x: Value) -> Value:
    return e.emit("relu", x)


def _leaky_relu(e: Emitter, x: Value, negative_slope: Scalar = 0.01) -> Value:
    def compute(v: Value) -> Value:
        zero = e.constant(0, v.type.dtype)
        scaled = e.emit("mul", v, e.constant(negative_slope, v.type.dtype))
        return e.emit("select", e.emit("gt", v, zero), v, scaled)

    return in_f32(e, compute, x)


def _elu(e: Emitter, x: Value, alpha: Scalar = 1, scale: Scalar = 1, input_scale: Scalar = 1) -> Value:
    """``scale * x`` from 0 on, below ``scale * alpha * (exp(x * input_scale) - 1)``."""

    def compute(v: Value) -> Value:
        dtype = v.type.dtype
        scaled = v if input_scale == 1 else e.emit("mul", v, e.constant(input_scale, dtype))
        below = e.emit("mul", e.emit("expm1", scaled), e.constant(alpha * scale, dtype))
        above = v if scale == 1 else e.emit("mul", v, e.constant(scale, dtype))
        return e.emit("select", e.emit("lt", v, e.constant(0, dtype)), below, above)

    if not e.out.dtype.is_float or any(isinstance(number, complex) for number in (alpha, scale, input_scale)):
        raise Declined("of integers or complex numbers")
    return in_f32(e, compute, x)


def _celu(e: Emitter, x: Value, alpha: Scalar = 1) -> Value:
    inverse = 1 / alpha if alpha else inf
    if abs(inverse) > 3.4e38:
        raise Declined(f"with alpha {alpha}, whose inverse the library refuses", final=True)
    return _elu(e, x, alpha, 1, inverse)


def _softshrink(e: Emitter, x: Value, lambd: Scalar = 0.5) -> Value:
    """Towards 0 by ``lambd``; 0 from ``-lambd`` to ``lambd``."""

    def compute(v: Value) -> Value:
        dtype = v.type.dtype
        high, low = e.constant(lambd, dtype), e.constant(-lambd, dtype)
        inside = e.emit("logical_and", e.emit("ge", v, low), e.emit("le", v, high))
        outside = e.emit("select", e.emit("gt", v, high), e.emit("sub", v, high), e.emit("add", v, high))
        return e.emit("select", inside, e.constant(0, dtype), outside)

    return in_f32(e, compute, x)


def _float_activation(op: str) -> Lowering:
    def lower(e: Emitter, x: Value) -> Value:
        if not e.out.dtype.is_float:
            raise Declined(f"of {x.type.dtype}")
        return e.emit(op, e.cast(x, e.out.dtype))

    return lower


def _softplus(e: Emitter, x: Value, beta: Scalar = 1, threshold: Scalar = 20) -> Value:
    if beta != 1 or threshold != 20:
        raise Declined("beta or threshold is not the default")
    return e.emit("softplus", x)


ACTIVATIONS: dict[str, Lowering] = {
    "hardtanh": _hardtanh,
    "relu": _relu,
    "leaky_relu": _leaky_relu,
    "elu": _elu,
    "celu": _celu,
    "softshrink": _softshrink,
    "sigmoid": _float_activation("sigmoid"),
    "silu": _float_activation("silu"),
    "softplus": _softplus,
}
