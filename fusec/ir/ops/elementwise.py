# SPDX-License-Identifier: Apache-2.0
"""Elementwise ops: operands broadcast NumPy-style and have one dtype."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Unpack

import numpy as np

from fusec.errors import TypeRuleError
from fusec.ir.attributes import Attributes, CastAttributes, CopyAtAttributes
from fusec.ir.definition import (
    Array,
    Arrays,
    Facts,
    OpDef,
    Types,
    define,
    require_kind,
    require_positions,
    require_same_dtype,
    widened,
)
from fusec.ir.ops.shapes import broadcast_shapes
from fusec.ir.types import (
    ANY,
    BITS,
    BOOL,
    FLOAT,
    INEXACT,
    INTEGER,
    NUMBER,
    ORDERED,
    REAL,
    DTypeKind,
    TensorType,
    bf16,
    bool_,
    f16,
    f32,
)

Kinds = tuple[DTypeKind, ...]


def _elementwise(
    name: str,
    arity: int,
    function: Callable[..., Array],
    kinds: Kinds,
    flops: int = 1,
    predicate: bool = False,
    **facts: Unpack[Facts],
) -> OpDef:
    """An op whose result has the operands' dtype, or bool for a predicate."""

    def rule(types: Types, _: Attributes) -> Types:
        require_same_dtype(types)
        require_kind(types, kinds)
        shape = broadcast_shapes(*(t.shape for t in types))
        return (TensorType(bool_ if predicate else types[0].dtype, shape, types[0].device),)

    def reference(arrays: Arrays, _: Attributes) -> Array:
        result = np.asarray(function(*widened(arrays)))
        return result if predicate else result.astype(arrays[0].dtype, copy=False)

    return define(name, "elementwise", Attributes, (arity, arity), rule, reference, flops, **facts)


def each(function: Callable[[float], float]) -> Callable[[Array], Array]:
    """A function of one double, for arrays; computes in double precision."""
    vectorised = np.frompyfunc(function, 1, 1)

    def apply(x: Array) -> Array:
        return np.asarray(vectorised(x.astype(np.float64))).astype(x.dtype)

    return apply


erf = each(math.erf)


def _rsqrt(x: Array) -> Array:
    return np.asarray(np.reciprocal(np.sqrt(x)))


def _pow(x: Array, y: Array) -> Array:
    """An integer to a negative power is truncated toward zero, 0 included, where NumPy would raise."""
    if y.dtype.kind not in "i":
        return np.asarray(np.power(x, y))
    odd = np.where(y % 2 == 0, np.ones_like(y), -np.ones_like(y))
    negative = np.where(x == 1, np.ones_like(x), np.where(x == -1, odd, np.zeros_like(x)))
    return np.where(y < 0, negative, np.power(x, np.maximum(y, 0)))


def _select(condition: Array, a: Array, b: Array) -> Array:
    return np.where(condition, a, b)


def _select_rule(types: Types, _: Attributes) -> Types:
    condition, a, b = types
    if condition.dtype is not bool_:
        raise TypeRuleError(f"the condition is {condition}; it must be bool: compare it with 0 first")
    require_same_dtype((a, b))
    return (TensorType(a.dtype, broadcast_shapes(*(t.shape for t in types)), a.device),)


def _cast_rule(types: Types, attributes: CastAttributes) -> Types:
    (t,) = types
    if t.dtype.kind == "complex" and attributes.dtype.kind not in ("complex", "bool"):
        raise TypeRuleError(f"{t} can't be cast to {attributes.dtype}: it would lose the imaginary part")
    if attributes.implied and not (t.dtype in (f32, f16, bf16) and attributes.dtype in (f16, bf16)):
        raise TypeRuleError(f"a cast of {t} to {attributes.dtype} can't be implied: kernels keep digits of f32 alone")
    return (t.with_dtype(attributes.dtype),)


def _cast(arrays: Arrays, attributes: CastAttributes) -> Array:
    return arrays[0].astype(attributes.dtype.numpy)


def _copy_at_rule(types: Types, attributes: CopyAtAttributes) -> Types:
    value, *positions = types
    require_positions(value, attributes.axes, positions)
    return (value,)


def _copy_at(arrays: Arrays, attributes: CopyAtAttributes) -> Array:
    return arrays[0].copy()


def _scatter_rule(types: Types, attributes: CopyAtAttributes) -> Types:
    value, *index = types
    require_positions(value, attributes.axes, index)
    if len(index) != 1 or index[0].rank != 1 or attributes.extents != index[0].shape:
        shapes = ", ".join(map(str, types))
        raise TypeRuleError(f"{shapes}: an index of all places along one axis says where they go")
    return (value,)


def _scatter(arrays: Arrays, attributes: CopyAtAttributes) -> Array:
    result = np.empty_like(arrays[0])
    np.moveaxis(result, attributes.axes[0], 0)[arrays[1]] = np.moveaxis(arrays[0], attributes.axes[0], 0)
    return result


def _unary(
    name: str, function: Callable[..., Array], kinds: Kinds = FLOAT, flops: int = 1, **facts: Unpack[Facts]
) -> OpDef:
    return _elementwise(name, 1, function, kinds, flops, **facts)


def _binary(name: str, function: Callable[..., Array], kinds: Kinds, flops: int = 1, **facts: Unpack[Facts]) -> OpDef:
    return _elementwise(name, 2, function, kinds, flops, **facts)


def _predicate(name: str, arity: int, function: Callable[..., Array], kinds: Kinds, **facts: Unpack[Facts]) -> OpDef:
    return _elementwise(name, arity, function, kinds, predicate=True, **facts)


ELEMENTWISE_OPS: tuple[OpDef, ...] = (
    # A copy is not a view: it gives its operand new memory.
    _unary("copy", np.array, ANY, flops=0, exact=True),
    _unary("neg", np.negative, NUMBER, exact=True),
    _unary("abs", np.abs, REAL, exact=True),
    _unary("sign", np.sign, REAL, jumps=True),  # of NaN: NaN, as NumPy has it
    _unary("exp", np.exp, INEXACT, 10),
    _unary("exp2", np.exp2, FLOAT, 8),
    _unary("expm1", np.expm1, FLOAT, 14),
    _unary("log", np.log, INEXACT, 12),
    _unary("log2", np.log2, FLOAT, 12),
    _unary("log10", np.log10, FLOAT, 12),
    _unary("log1p", np.log1p, FLOAT, 14),
    _unary("sqrt", np.sqrt, INEXACT, 4),
    _unary("rsqrt", _rsqrt, INEXACT, 5),
    _unary("sin", np.sin, INEXACT, 15),
    _unary("cos", np.cos, INEXACT, 15),
    _unary("tan", np.tan, INEXACT, 20),
    _unary("sinh", np.sinh, INEXACT, 16),
    _unary("cosh", np.cosh, INEXACT, 16),
    _unary("tanh", np.tanh, INEXACT, 14),
    _unary("asin", np.arcsin, FLOAT, 16),
    _unary("acos", np.arccos, FLOAT, 16),
    _unary("atan", np.arctan, FLOAT, 16),
    _unary("asinh", np.arcsinh, FLOAT, 20),
    _unary("acosh", np.arccosh, FLOAT, 20),
    _unary("atanh", np.arctanh, FLOAT, 20),
    _unary("erf", erf, FLOAT, 18),
    _unary("erfc", each(math.erfc), FLOAT, 20),
    _unary("floor", np.floor, jumps=True),
    _unary("ceil", np.ceil, jumps=True),
    _unary("round", np.rint, jumps=True),  # half to even
    _unary("trunc", np.trunc, jumps=True),
    _unary("bitwise_not", np.invert, BITS),
    _predicate("isnan", 1, np.isnan, FLOAT),
    _predicate("isinf", 1, np.isinf, FLOAT),
    _predicate("isfinite", 1, np.isfinite, FLOAT),
    _predicate("logical_not", 1, np.logical_not, BOOL),
    # Whoever has the result lets it lie in an array, after so many of its elements along an axis.
    define("copy_at", "elementwise", CopyAtAttributes, (2, None), _copy_at_rule, _copy_at, 0),
    define("scatter", "elementwise", CopyAtAttributes, (2, 2), _scatter_rule, _scatter, 0),
    define("cast", "elementwise", CastAttributes, (1, 1), _cast_rule, _cast, exact=True, jumps=True),
    _binary("add", np.add, NUMBER, commutative=True),
    _binary("sub", np.subtract, NUMBER),
    _binary("mul", np.multiply, NUMBER, commutative=True),
    _binary("div", np.true_divide, INEXACT, 4),
    _binary("floordiv", np.floor_divide, REAL, 8, jumps=True),  # an integer by 0 gives 0
    _binary("remainder", np.remainder, REAL, 8, jumps=True),  # has the divisor's sign; an integer by 0 gives 0
    _binary("fmod", np.fmod, REAL, 8, jumps=True),  # has the dividend's sign; an integer by 0 gives 0
    _binary("pow", _pow, NUMBER, 20),
    _binary("maximum", np.maximum, ORDERED, commutative=True, exact=True),  # NaN wins
    _binary("minimum", np.minimum, ORDERED, commutative=True, exact=True),  # NaN wins
    _binary("fmax", np.fmax, ORDERED, commutative=True, exact=True),  # a number wins against NaN
    _binary("fmin", np.fmin, ORDERED, commutative=True, exact=True),  # a number wins against NaN
    _binary("atan2", np.arctan2, FLOAT, 20),
    _binary("copysign", np.copysign, FLOAT, exact=True),
    _binary("hypot", np.hypot, FLOAT, 8, commutative=True),
    _predicate("eq", 2, np.equal, ANY, commutative=True, jumps=True),
    _predicate("ne", 2, np.not_equal, ANY, commutative=True, jumps=True),
    _predicate("lt", 2, np.less, ORDERED, jumps=True),
    _predicate("le", 2, np.less_equal, ORDERED, jumps=True),
    _predicate("gt", 2, np.greater, ORDERED, jumps=True),
    _predicate("ge", 2, np.greater_equal, ORDERED, jumps=True),
    _predicate("logical_and", 2, np.logical_and, BOOL, commutative=True),
    _predicate("logical_or", 2, np.logical_or, BOOL, commutative=True),
    _predicate("logical_xor", 2, np.logical_xor, BOOL, commutative=True),
    _binary("bitwise_and", np.bitwise_and, BITS, commutative=True),
    _binary("bitwise_or", np.bitwise_or, BITS, commutative=True),
    _binary("bitwise_xor", np.bitwise_xor, BITS, commutative=True),
    # A shift by the width or more gives what shifting one bit at a time would: 0, or -1 for a negative shifted right.
    _binary("shift_left", np.left_shift, INTEGER),
    _binary("shift_right", np.right_shift, INTEGER),
    define("select", "elementwise", Attributes, (3, 3), _select_rule, lambda xs, _: _select(*xs), exact=True),
)
