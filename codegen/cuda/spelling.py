# SPDX-License-Identifier: Apache-2.0
"""How CUDA C++ spells each elementwise op. Half types have been widened to float before an op is spelled.

Names that CUDA does not have are in ``include/fusec/scalar.cuh``.
"""

from __future__ import annotations

from math import isinf, isnan

from fusec.ir.types import DType

TYPES = {
    "f16": "f16",
    "bf16": "bf16",
    "f32": "float",
    "f64": "double",
    "f8e4m3": "f8e4m3",
    "f8e5m2": "f8e5m2",
    "i8": "i8",
    "i16": "i16",
    "i32": "int",
    "i64": "i64",
    "u8": "u8",
    "u16": "u16",
    "u32": "u32",
    "u64": "u64",
    "bool": "bool",
}
"""In memory."""

FLOATS = {
    "add": "({0} + {1})",
    "sub": "({0} - {1})",
    "mul": "({0} * {1})",
    "neg": "(-{0})",
    "abs": "fabs({0})",
    "maximum": "maximum({0}, {1})",
    "minimum": "minimum({0}, {1})",
    "fmax": "number_maximum({0}, {1})",
    "fmin": "number_minimum({0}, {1})",
    "isnan": "({0} != {0})",
    "isinf": "is_infinite({0})",
    "isfinite": "is_finite({0})",
    "floor": "floor({0})",
    "ceil": "ceil({0})",
    "round": "rint({0})",
    "trunc": "trunc({0})",
    "sign": "sign({0})",
    "floordiv": "float_floor_divide({0}, {1})",
    "remainder": "float_remainder({0}, {1})",
    **{name: f"{name}({{0}})" for name in ("expm1", "log10", "log1p", "sqrt", "sin", "cos", "tan", "sinh", "cosh")},
    **{name: f"{name}({{0}})" for name in ("asin", "acos", "atan", "asinh", "acosh", "atanh", "erf", "erfc")},
    **{name: f"{name}({{0}}, {{1}})" for name in ("fmod", "pow", "atan2", "copysign", "hypot")},
}

EXACT = {
    "div": "({0} / {1})",
    "exp": "exp({0})",
    "exp2": "exp2({0})",
    "log": "log({0})",
    "log2": "log2({0})",
    "rsqrt": "rsqrt({0})",
    "tanh": "tanh({0})",
}
"""Where an output is f32 or f64."""

DOUBLES = {**FLOATS, **EXACT, "rsqrt": "(1.0 / sqrt({0}))"}
"""CUDA's rsqrt of doubles is not rounded correctly."""

FAST = {
    "div": "__fdividef({0}, {1})",
    "exp": "fast_exp({0})",
    "exp2": "fast_exp2({0})",
    "log": "__logf({0})",
    "log2": "__log2f({0})",
    "rsqrt": "rsqrt({0})",
    "tanh": "fast_tanh({0})",
}
"""Where every output is a half type: hardware approximations, a few f32 ulp off, far below the outputs' rounding."""

COARSE = {"tanh": "coarse_tanh({0})", "erf": "coarse_erf({0})"}
"""Where every output is bf16: 2⁻¹¹ relative, a quarter of the outputs' rounding."""

INTEGERS = {
    "add": "wrapping_add({0}, {1})",
    "sub": "wrapping_sub({0}, {1})",
    "mul": "wrapping_mul({0}, {1})",
    "neg": "wrapping_sub({type}(0), {0})",
    "abs": "magnitude({0})",
    "sign": "sign({0})",
    "maximum": "maximum({0}, {1})",
    "minimum": "minimum({0}, {1})",
    "fmax": "maximum({0}, {1})",
    "fmin": "minimum({0}, {1})",
    "floordiv": "floor_divide({0}, {1})",
    "remainder": "floor_remainder({0}, {1})",
    "fmod": "truncated_remainder({0}, {1})",
    "pow": "integer_power({0}, {1})",
    "shift_left": "shift_left({0}, {1})",
    "shift_right": "shift_right({0}, {1})",
    "bitwise_and": "{type}({0} & {1})",
    "bitwise_or": "{type}({0} | {1})",
    "bitwise_xor": "{type}({0} ^ {1})",
    "bitwise_not": "{type}(~{0})",
}

BOOLS = {
    "logical_and": "({0} && {1})",
    "logical_or": "({0} || {1})",
    "logical_xor": "({0} != {1})",
    "logical_not": "(!{0})",
    "bitwise_and": "({0} && {1})",
    "bitwise_or": "({0} || {1})",
    "bitwise_xor": "({0} != {1})",
    "bitwise_not": "(!{0})",
    "maximum": "({0} || {1})",
    "minimum": "({0} && {1})",
    "fmax": "({0} || {1})",
    "fmin": "({0} && {1})",
    "mul": "({0} && {1})",
    "add": "({0} || {1})",
}

ANY = {
    "copy": "{0}",
    "eq": "({0} == {1})",
    "ne": "({0} != {1})",
    "lt": "({0} < {1})",
    "le": "({0} <= {1})",
    "gt": "({0} > {1})",
    "ge": "({0} >= {1})",
    "select": "({0} ? {1} : {2})",
}


def memory_type(dtype: DType) -> str:
    """The type of an element in memory. KeyError for complex numbers."""
    return TYPES[dtype.name]


def register_type(dtype: DType) -> str:
    """The type of a value that is computed with: half types, and floats of 8 bits, are floats."""
    return "float" if is_widened(dtype) else TYPES[dtype.name]


def is_widened(dtype: DType) -> bool:
    """Whether values of a type are computed with as floats, and are made from floats in memory."""
    return dtype.is_half or dtype.kind == "float8"


def literal(value: complex, dtype: DType) -> str:
    """A constant of the type that computes ``dtype``."""
    if dtype.name == "bool":
        return "true" if value else "false"
    if not dtype.is_float:
        number = int(value.real)
        if dtype.name == "i32" and number > -(2**31):
            return str(number)
        suffix = "ull" if dtype.kind == "uint" else "ll"
        text = f"(-{2**63 - 1}ll - 1)" if number == -(2**63) else f"{number}{suffix}"
        return f"{TYPES[dtype.name]}({text})"
    real, double = float(value.real), dtype.bits == 64
    if isnan(real) or isinf(real):
        text = "nan_value" if isnan(real) else "infinity" if real > 0 else "-infinity"
        return f"double({text})" if double else text
    return repr(real) if double else f"{real!r}f"
