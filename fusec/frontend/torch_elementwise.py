# SPDX-License-Identifier: Apache-2.0
"""ATen's elementwise calls, with PyTorch's rules of type promotion."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan, pi

import torch
from torch.utils._python_dispatch import _disable_current_modes

from fusec.frontend.torch_emit import Declined, Emitter, Operand, exact_in
from fusec.ir.attributes import Scalar
from fusec.ir.nodes import Value
from fusec.ir.types import DType, bool_, f16, f32

Lowering = Callable[..., Value]


def _unary(op: str) -> Lowering:
    """In the result's dtype, so that an integer's sine is a float."""

    def lower(e: Emitter, x: Value) -> Value:
        return e.emit(op, e.cast(x, e.out.dtype))

    return lower


def _of_floats(op: str) -> Lowering:
    """Rounding: of an integer, the integer."""

    def lower(e: Emitter, x: Value) -> Value:
        return e.emit(op if x.type.dtype.is_float else "copy", x)

    return lower


def _round(e: Emitter, x: Value, *, decimals: int = 0) -> Value:
    if not decimals or not x.type.dtype.is_float:
        return _of_floats("round")(e, x)
    ten = e.constant(10.0 ** abs(decimals), x.type.dtype)
    there, back = ("mul", "div") if decimals > 0 else ("div", "mul")
    rounded = e.emit("round", e.emit(there, x, ten))
    return e.emit(back, rounded, ten)


def _angle(e: Emitter, x: Value) -> Value:
    """Of a real number: pi where it is negative, and NaN where it is that."""
    dtype = e.out.dtype
    if x.type.dtype.kind == "complex":
        raise Declined("a complex operand")
    side = e.emit("lt", x, e.constant(0, x.type.dtype))
    found = e.emit("select", side, e.broadcast(e.constant(pi, dtype), x.type.shape), e.constant(0, dtype))
    return e.emit("select", e.emit("isnan", x), x, found) if x.type.dtype.is_float else found


def _fma(e: Emitter, a: Operand, b: Operand, c: Operand) -> Value:
    dtype = e.out.dtype
    return e.emit("add", e.emit("mul", e.value(a, dtype), e.value(b, dtype)), e.value(c, dtype))


def _float_predicate(op: str, of_integers: bool) -> Lowering:
    def lower(e: Emitter, x: Value) -> Value:
        if x.type.dtype.kind == "complex":
            raise Declined("a complex operand")
        if not x.type.dtype.is_float:
            return e.broadcast(e.constant(of_integers, bool_), x.type.shape)
        return e.emit(op, x)

    return lower


def _arithmetic(op: str) -> Lowering:
    """Two operands in the result's dtype."""

    def lower(e: Emitter, self: Operand, other: Operand) -> Value:
        return binary(e, op, self, other)

    return lower


def binary(e: Emitter, op: str, a: Operand, b: Operand) -> Value:
    """``op`` in the dtype of the call's result; for half types, numbers that they can't hold are used in f32."""
    dtype = e.out.dtype
    if op in ("add", "mul") and dtype is bool_:
        op = "logical_or" if op == "add" else "logical_and"
    wide = dtype if _rounds_numbers(e, op) else _working_dtype(dtype, a, b)
    result = e.emit(op, e.value(a, wide), e.value(b, wide))
    return e.rounded(result, dtype)


def _rounds_numbers(e: Emitter, op: str) -> bool:
    """Whether PyTorch rounds a number to the half type before it computes."""
    return op == "fmod" or (op in ("add", "sub") and _CPU_ADDS_ROUNDED and e.is_on_cpu(e.out))


_CPU_ADDS_ROUNDED = (torch.tensor([258.0], dtype=torch.bfloat16, device="cpu") + 65519.0).item() == 66048.0
"""Whether this version's CPU kernels add 65536, bfloat16's 65519, to 258: else the sum rounds to 65536."""


def _working_dtype(dtype: DType, *operands: Operand) -> DType:
    """f32 where a half-precision call has a scalar that half can't hold: PyTorch keeps such a scalar exact."""
    if not dtype.is_float or dtype.bits > 16:
        return dtype
    for operand in operands:
        if isinstance(operand, Value):
            if operand.type.rank == 0 and operand.type.dtype.is_float and operand.type.dtype.bits > 16:
                return f32
        elif not exact_in(operand, dtype):
            return f32
    return dtype


def _add(e: Emitter, self: Operand, other: Operand, alpha: Scalar = 1) -> Value:
    return binary(e, "add", self, _scaled(e, other, alpha))


def _sub(e: Emitter, self: Operand, other: Operand, alpha: Scalar = 1) -> Value:
    return binary(e, "sub", self, _scaled(e, other, alpha))


def _rsub(e: Emitter, self: Operand, other: Operand, alpha: Scalar = 1) -> Value:
    return binary(e, "sub", other, _scaled(e, self, alpha))


def _scaled(e: Emitter, operand: Operand, alpha: Scalar) -> Operand:
    if alpha == 1:
        return operand
    if not isinstance(operand, Value):
        return operand * alpha
    wide = _working_dtype(e.out.dtype, operand, alpha)
    if wide != e.out.dtype or wide.bits <= 16:
        raise Declined("alpha of a half-precision call")
    return e.emit("mul", e.cast(operand, wide), e.constant(alpha, wide))


def _div(e: Emitter, self: Operand, other: Operand, *, rounding_mode: str | None = None) -> Value:
    if rounding_mode is None:
        return binary(e, "div", self, other)
    if rounding_mode == "floor":
        return _floor_divide(e, self, other)
    if e.out.dtype.is_float:
        wide = e.out.dtype.accumulator
        return e.rounded(e.emit("trunc", e.emit("div", e.value(self, wide), e.value(other, wide))), e.out.dtype)
    _require_nonzero(e, other)
    a, b = e.value(self, e.out.dtype), e.value(other, e.out.dtype)
    if e.out.dtype.kind == "uint":
        return e.emit("floordiv", a, b)
    rest = e.emit("fmod", a, b)
    return e.emit("floordiv", e.emit("sub", a, rest), b)


def _floor_divide(e: Emitter, self: Operand, other: Operand) -> Value:
    if not e.out.dtype.is_float:
        _require_nonzero(e, other)
    return binary(e, "floordiv", self, other)


def _fmod(e: Emitter, self: Operand, other: Operand) -> Value:
    if not e.out.dtype.is_float:
        _require_nonzero(e, other)
    return binary(e, "fmod", self, other)


def _remainder(e: Emitter, self: Operand, other: Operand) -> Value:
    """``fmod``, brought to the divisor's sign where it is not 0: a zero keeps the sign of the dividend."""
    dtype = e.out.dtype
    if not dtype.is_float:
        _require_nonzero(e, other)
        return binary(e, "remainder", self, other)
    a, b = e.value(self, dtype), e.value(other, dtype)
    zero = e.constant(0, dtype)
    rest = e.emit("fmod", a, b)
    apart = e.emit("ne", e.emit("lt", b, zero), e.emit("lt", rest, zero))
    off = e.emit("logical_and", e.emit("ne", rest, zero), apart)
    return e.emit("select", off, e.emit("add", rest, b), rest)


def _require_nonzero(e: Emitter, divisor: Operand) -> None:
    if isinstance(divisor, Value):
        raise Declined("PyTorch raises an error when an integer divisor is 0, which a kernel can't", final=True)
    if int(divisor.real) == 0:
        raise Declined("an integer is divided by 0", final=True)


def _pow(e: Emitter, self: Operand, exponent: Operand) -> Value:
    """PyTorch computes the common powers by products and roots, in the operand's dtype."""
    if isinstance(exponent, Value) or not e.out.dtype.is_float or not isinstance(self, Value):
        if not e.out.dtype.is_float and not isinstance(exponent, Value) and exponent.real < 0:
            raise Declined("an integer to a negative power", final=True)
        return binary(e, "pow", self, exponent)
    x = e.cast(self, e.out.dtype)
    match exponent:
        case 0:
            return e.broadcast(e.constant(1, e.out.dtype), e.out.shape)
        case 1:
            return e.emit("copy", x)
        case 2:
            return e.emit("mul", x, x)
        case 3:
            return in_f32(e, lambda v: e.emit("mul", e.emit("mul", v, v), v), x)
        case 0.5 | -0.5 if x.type.dtype is f16 and e.is_on_cpu(x.type):
            root = _root_of_c(e, x)
            return root if exponent == 0.5 else e.emit("div", e.constant(1, x.type.dtype), root)
        case 0.5:
            return e.emit("sqrt", x)
        case -0.5:
            return e.emit("rsqrt", x)
        case -1:
            return e.emit("div", e.constant(1, e.out.dtype), x)
        case -2:
            return in_f32(e, lambda v: e.emit("div", e.constant(1, v.type.dtype), e.emit("mul", v, v)), x)
    return binary(e, "pow", x, exponent)


def _root_of_c(e: Emitter, x: Value) -> Value:
    """The power of ½ as C's ``pow`` has it, which a CPU calls for f16: 0.0 of -0.0 and inf of -inf."""
    root = e.emit("sqrt", e.emit("add", x, e.constant(0, x.type.dtype)))
    below = e.emit("eq", x, e.constant(-inf, x.type.dtype))
    return e.emit("select", below, e.constant(inf, x.type.dtype), root)


def in_f32(e: Emitter, compute: Callable[[Value], Value], x: Value) -> Value:
    """Several ops as PyTorch's one kernel does them: half types in f32, rounded once."""
    dtype = x.type.dtype
    wide = dtype.accumulator
    return e.rounded(compute(e.cast(x, wide)), dtype)


def _comparison(op: str) -> Lowering:
    def lower(e: Emitter, self: Operand, other: Operand) -> Value:
        common = e.promote(self, other)
        if not common.is_float:
            other = _comparable(e, op, other, common)
        return e.emit(op, e.value(self, common), e.value(other, common))

    return lower


def _comparable(e: Emitter, op: str, other: Operand, common: DType) -> Operand:
    if isinstance(other, Value | bool):
        return other
    low = 0 if common.kind in ("uint", "bool") else -(1 << (common.bits - 1))
    high = 1 if common.kind == "bool" else low + (1 << common.bits) - 1
    if not low <= other.real <= high:
        raise Declined(f"comparing {common} with {other}, which it can't hold")
    return other


def _logical(op: str) -> Lowering:
    def lower(e: Emitter, self: Operand, other: Operand) -> Value:
        return e.emit(op, e.truth(self), e.truth(other))

    return lower


def _logical_not(e: Emitter, x: Value) -> Value:
    return e.emit("logical_not", e.truth(x))


def _extreme(op: str) -> Lowering:
    def lower(e: Emitter, self: Operand, other: Operand) -> Value:
        return e.emit(op, e.value(self, e.out.dtype), e.value(other, e.out.dtype))

    return lower


def clamp(e: Emitter, x: Value, min: Operand | None = None, max: Operand | None = None) -> Value:
    """``minimum(maximum(x, min), max)``, so that max wins where the bounds cross and NaN stays."""
    result = e.cast(x, e.out.dtype)
    alone = min is None or max is None
    for op, bound in (("maximum", min), ("minimum", max)):
        if bound is None or _bounds_nothing(op, bound, alone):
            continue
        result = e.emit(op, result, e.value(bound, e.out.dtype))
    return result if result is not x else e.emit("copy", x)


def _bounds_nothing(op: str, bound: Operand, alone: bool) -> bool:
    if isinstance(bound, Value):
        return False
    return bound == (inf if op == "minimum" else -inf) or (alone and bound != bound and not _A_NAN_ALONE_BOUNDS)


with torch._C.DisableTorchFunction(), _disable_current_modes():
    _A_NAN_ALONE_BOUNDS = bool(torch.zeros(1, device="cpu").clamp(min=nan).isnan().all())
"""Whether one bound that is NaN makes all NaN, as two do: not in PyTorch 2.11 and older."""


def _clamp_min(e: Emitter, x: Value, min: Operand) -> Value:
    return clamp(e, x, min, None)


def _clamp_max(e: Emitter, x: Value, max: Operand) -> Value:
    return clamp(e, x, None, max)


def _where(e: Emitter, condition: Value, self: Operand, other: Operand) -> Value:
    dtype = e.out.dtype
    return e.emit("select", e.truth(condition), e.value(self, dtype), e.value(other, dtype))


def _masked_fill(e: Emitter, x: Value, mask: Value, value: Operand) -> Value:
    return e.emit("select", e.truth(mask), e.value(value, x.type.dtype), x)


def _square(e: Emitter, x: Value) -> Value:
    x = e.cast(x, e.out.dtype)
    return e.emit("mul", x, x)


def _reciprocal(e: Emitter, x: Value) -> Value:
    return e.emit("div", e.constant(1, e.out.dtype), e.cast(x, e.out.dtype))


def _sign(e: Emitter, x: Value) -> Value:
    """PyTorch's sign of NaN is 0."""
    if not x.type.dtype.is_float:
        return e.emit("copy" if x.type.dtype is bool_ else "sign", x)
    zero = e.constant(0, x.type.dtype)
    return e.emit("select", e.emit("isnan", x), zero, e.emit("sign", x))


def _signbit(e: Emitter, x: Value) -> Value:
    dtype = x.type.dtype
    if not dtype.is_float:
        return e.emit("lt", x, e.constant(0, dtype))
    return e.emit("lt", e.emit("copysign", e.constant(1, dtype), x), e.constant(0, dtype))


def _abs(e: Emitter, x: Value) -> Value:
    if x.type.dtype.kind in ("complex", "bool"):
        raise Declined(f"of {x.type.dtype}")
    return e.emit("abs", x)


def _bitwise(op: str) -> Lowering:
    """Of bools it is logic, so that masks have one form."""

    def lower(e: Emitter, self: Operand, other: Operand) -> Value:
        name = op.replace("bitwise", "logical") if e.out.dtype is bool_ else op
        return e.emit(name, e.value(self, e.out.dtype), e.value(other, e.out.dtype))

    return lower


def _bitwise_not(e: Emitter, x: Value) -> Value:
    return e.emit("logical_not" if x.type.dtype is bool_ else "bitwise_not", x)


def _shift(op: str) -> Lowering:
    def lower(e: Emitter, self: Operand, other: Operand) -> Value:
        if isinstance(other, Value) or not 0 <= other.real < e.out.dtype.bits:
            raise Declined("a shift by an amount that may pass the width")
        return e.emit(op, e.value(self, e.out.dtype), e.value(other, e.out.dtype))

    return lower


def _addcmul(e: Emitter, x: Value, tensor1: Value, tensor2: Value, *, value: Scalar = 1) -> Value:
    return _fused_product(e, "mul", x, tensor1, tensor2, value)


def _addcdiv(e: Emitter, x: Value, tensor1: Value, tensor2: Value, *, value: Scalar = 1) -> Value:
    return _fused_product(e, "div", x, tensor1, tensor2, value)


def _fused_product(e: Emitter, op: str, x: Value, a: Value, b: Value, scale: Scalar) -> Value:
    dtype = e.out.dtype
    if not dtype.is_float:
        raise Declined("of integers")
    wide = dtype.accumulator
    first = e.cast(a, wide)
    if scale != 1:
        first = e.emit("mul", e.constant(scale, wide), first)
    product = e.emit(op, first, e.cast(b, wide))
    return e.rounded(e.emit("add", e.cast(x, wide), product), dtype)


# fmt: off
_SAME_NAME = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan", "sinh", "cosh",
    "tanh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "erf", "erfc", "neg",
)
# fmt: on

ELEMENTWISE: dict[str, Lowering] = {
    **{name: _unary(name) for name in _SAME_NAME},
    "negative": _unary("neg"),
    "bitwise_not": _bitwise_not,
    "abs": _abs,
    "sign": _sign,
    "signbit": _signbit,
    "floor": _of_floats("floor"),
    "ceil": _of_floats("ceil"),
    "trunc": _of_floats("trunc"),
    "round": _round,
    "isnan": _float_predicate("isnan", False),
    "isinf": _float_predicate("isinf", False),
    "isfinite": _float_predicate("isfinite", True),
    "add": _add,
    "sub": _sub,
    "rsub": _rsub,
    "mul": _arithmetic("mul"),
    "div": _div,
    "floor_divide": _floor_divide,
    "remainder": _remainder,
    "fmod": _fmod,
    "pow": _pow,
    "atan2": _arithmetic("atan2"),
    "copysign": _arithmetic("copysign"),
    "hypot": _arithmetic("hypot"),
    "maximum": _extreme("maximum"),
    "minimum": _extreme("minimum"),
    "fmax": _extreme("fmax"),
    "fmin": _extreme("fmin"),
    **{name: _comparison(name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "logical_not": _logical_not,
    **{name: _logical(name) for name in ("logical_and", "logical_or", "logical_xor")},
    **{name: _bitwise(name) for name in ("bitwise_and", "bitwise_or", "bitwise_xor")},
    "bitwise_left_shift": _shift("shift_left"),
    "bitwise_right_shift": _shift("shift_right"),
    "__lshift__": _shift("shift_left"),
    "__rshift__": _shift("shift_right"),
    "clamp": clamp,
    "clamp_min": _clamp_min,
    "clamp_max": _clamp_max,
    "where": _where,
    "masked_fill": _masked_fill,
    "square": _square,
    "reciprocal": _reciprocal,
    "addcmul": _addcmul,
    "addcdiv": _addcdiv,
    "angle": _angle,
    "fma": _fma,
}
