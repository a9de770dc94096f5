# SPDX-License-Identifier: Apache-2.0
"""Numbers of 8 bits (e4m3fn, e5m2) to f32 and back, by integers: no CPU converts them all.

Rounded to nearest even. A number beyond the largest becomes NaN in e4m3fn, which has no infinity, and infinity in e5m2;
a NaN keeps its sign.
"""

from __future__ import annotations

from dataclasses import dataclass

from fusec.codegen.tvm import tir
from fusec.codegen.tvm.tir import Value
from fusec.codegen.tvm.vector import Code
from fusec.ir.types import DType


@dataclass(frozen=True)
class _Format:
    """digits: of the mantissa in memory. bias: of the exponent. beyond: bits of the least f32 that is beyond all
    numbers, to which it may not round. infinite: what such a number becomes."""

    digits: int
    bias: int
    beyond: int
    infinite: int


_FORMATS = {"f8e4m3": _Format(3, 7, 1087 << 20, 0x7F), "f8e5m2": _Format(2, 15, 143 << 23, 0x7C)}
_NAN = 0x7F


def from_float8(code: Code, raw: Value, dtype: DType) -> Value:
    """A product with the power of two between the formats' exponents; the largest patterns are special."""
    f = _FORMATS[dtype.name]
    wide = code.convert(raw, "uint32")
    sign = code.bitwise("bitwise_and", wide, code.constant(wide, 0x80))
    size = code.sub(wide, sign)
    shifted = code.bitwise("shift_left", size, code.constant(wide, 23 - f.digits))
    number = code.mul(code.reinterpret(shifted, "float32"), tir.constant(2.0 ** (127 - f.bias), "float32", raw.lanes))
    bits = code.reinterpret(number, "uint32")
    if f.infinite != _NAN:
        special = code.bitwise("bitwise_or", shifted, code.constant(wide, 0x7F800000))
        bits = code.select(code.compare("ge", size, code.constant(wide, f.infinite)), special, bits)
    else:
        bits = code.select(code.compare("eq", size, code.constant(wide, _NAN)), code.constant(wide, 0x7FC00000), bits)
    return code.reinterpret(
        code.bitwise("bitwise_or", bits, code.bitwise("shift_left", sign, code.constant(wide, 24))), "float32"
    )


def to_float8(code: Code, value: Value, dtype: DType) -> Value:
    """For subnormal results a sum that has their last digit does the rounding."""
    f = _FORMATS[dtype.name]
    drop = 23 - f.digits
    bits = code.reinterpret(value, "uint32")
    sign = code.bitwise("bitwise_and", bits, code.constant(bits, 0x80000000))
    size = code.sub(bits, sign)
    odd = code.bitwise(
        "bitwise_and", code.bitwise("shift_right", size, code.constant(bits, drop)), code.constant(bits, 1)
    )
    less = ((127 - f.bias) << 23) - ((1 << (drop - 1)) - 1)
    rounded = code.add(code.sub(size, code.constant(bits, less)), odd)
    usual = code.bitwise("shift_right", rounded, code.constant(bits, drop))
    magic = 127 + drop - f.bias + 1
    small = code.add(code.abs(value), tir.constant(2.0 ** (magic - 127), "float32", value.lanes))
    small = code.sub(code.reinterpret(small, "uint32"), code.constant(bits, magic << 23))
    result = code.select(code.compare("lt", size, code.constant(bits, (128 - f.bias) << 23)), small, usual)
    beyond = code.compare("ge", size, code.constant(bits, f.beyond))
    result = code.select(beyond, code.constant(bits, f.infinite), result)
    if f.infinite != _NAN:
        result = code.select(code.is_nan(value), code.constant(bits, _NAN), result)
    shifted = code.bitwise("shift_right", sign, code.constant(bits, 24))
    return code.convert(code.bitwise("bitwise_or", result, shifted), "uint8")
