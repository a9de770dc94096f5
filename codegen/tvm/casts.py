# SPDX-License-Identifier: Apache-2.0
"""Element types in memory and in registers, and conversions between them that are defined for every value.

In registers half types and those of 8 bits are f32, and a bool is a condition. In memory bf16 is its upper 16 bits, and
a bool a byte.
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm import tirx

from fusec.codegen.tvm import tir
from fusec.codegen.tvm.float8 import from_float8, to_float8
from fusec.codegen.tvm.tir import Value
from fusec.codegen.tvm.vector import Code, bits_of, is_float
from fusec.errors import UncompiledTypeError
from fusec.ir.types import DType

_REGISTER = {
    "f16": "float32",
    "bf16": "float32",
    "f8e4m3": "float32",
    "f8e5m2": "float32",
    "f32": "float32",
    "f64": "float64",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
    "bool": "bool",
}
_MEMORY = _REGISTER | {"f16": "float16", "bf16": "uint16", "f8e4m3": "uint8", "f8e5m2": "uint8", "bool": "int8"}


def register_type(dtype: DType) -> str:
    """TIR's name of the type that a value of this dtype has in a register."""
    return _find(_REGISTER, dtype)


def memory_type(dtype: DType) -> str:
    """TIR's name of the type that an element of this dtype has in memory."""
    return _find(_MEMORY, dtype)


def _find(table: Mapping[str, str], dtype: DType) -> str:
    if dtype.name not in table:
        raise UncompiledTypeError(f"the CPU backend does not compute with {dtype}")
    return table[dtype.name]


def from_memory(code: Code, raw: Value, dtype: DType) -> Value:
    match dtype.name:
        case "bf16":
            wide = code.convert(raw, "uint32")
            return code.reinterpret(code.bitwise("shift_left", wide, code.constant(wide, 16)), "float32")
        case "f16":
            return code.convert(raw, "float32") if code.fused else _from_f16(code, code.reinterpret(raw, "uint16"))
        case "f8e4m3" | "f8e5m2":
            return from_float8(code, raw, dtype)
        case "bool":
            return code.test(raw)
        case _:
            return raw


def to_memory(code: Code, value: Value, dtype: DType) -> Value:
    """The bits to store, a value of ``register_type(dtype)`` being rounded to nearest even."""
    match dtype.name:
        case "bf16":
            return _to_bf16(code, value)
        case "f16":
            return code.convert(value, "float16") if code.fused else code.reinterpret(_to_f16(code, value), "float16")
        case "f8e4m3" | "f8e5m2":
            return to_float8(code, value, dtype)
        case "bool":
            return code.byte(value)
        case _:
            return value


def _from_f16(code: Code, raw: Value) -> Value:
    """By integers and a product with the power of two between the formats' exponents."""
    wide = code.convert(raw, "uint32")
    sign = code.bitwise("bitwise_and", wide, code.constant(wide, 0x8000))
    size = code.bitwise("shift_left", code.sub(wide, sign), code.constant(wide, 13))
    number = code.mul(code.reinterpret(size, "float32"), tir.constant(2.0**112, "float32", raw.lanes))
    special = code.compare("ge", size, code.constant(wide, 0x7C00 << 13))
    bits = code.reinterpret(number, "uint32")
    bits = code.select(special, code.bitwise("bitwise_or", size, code.constant(wide, 0x7F800000)), bits)
    shifted = code.bitwise("shift_left", sign, code.constant(wide, 16))
    return code.reinterpret(code.bitwise("bitwise_or", bits, shifted), "float32")


def _to_f16(code: Code, value: Value) -> Value:
    """By integers, rounded to nearest even; for subnormal results a sum that has their last digit does the rounding."""
    bits = code.reinterpret(value, "uint32")
    sign = code.bitwise("bitwise_and", bits, code.constant(bits, 0x80000000))
    size = code.sub(bits, sign)
    odd = code.bitwise(
        "bitwise_and", code.bitwise("shift_right", size, code.constant(bits, 13)), code.constant(bits, 1)
    )
    rounded = code.add(code.sub(size, code.constant(bits, (112 << 23) - 0xFFF)), odd)
    usual = code.bitwise("shift_right", rounded, code.constant(bits, 13))
    small = code.add(code.abs(value), tir.constant(0.5, "float32", value.lanes))
    small = code.sub(code.reinterpret(small, "uint32"), code.constant(bits, 126 << 23))
    result = code.select(code.compare("lt", size, code.constant(bits, 113 << 23)), small, usual)
    result = code.select(code.compare("ge", size, code.constant(bits, 143 << 23)), code.constant(bits, 0x7C00), result)
    result = code.select(code.is_nan(value), code.constant(bits, 0x7E00), result)
    shifted = code.bitwise("shift_right", sign, code.constant(bits, 16))
    return code.convert(code.bitwise("bitwise_or", result, shifted), "uint16")


ROUND_IR = """
declare <16 x bfloat> @llvm.x86.avx512bf16.cvtneps2bf16.512(<16 x float>)
define linkonce_odr <16 x i16> @fusec_to_bf16(<16 x float> %x) alwaysinline
    "target-features"="+avx512bf16,+avx512f,+evex512" {
  %y = call <16 x bfloat> @llvm.x86.avx512bf16.cvtneps2bf16.512(<16 x float> %x)
  %r = bitcast <16 x bfloat> %y to <16 x i16>
  ret <16 x i16> %r
}
"""


def _to_bf16(code: Code, value: Value) -> Value:
    """Rounded to nearest even; by the instruction, which takes subnormal numbers for 0, where that is allowed."""
    if code.halves is not None and value.lanes == 16:
        code.halves.add(ROUND_IR)
        return code.let(Value(tirx.call_pure_extern("uint16x16", "fusec_to_bf16", value.node), "uint16", 16))
    bits = code.reinterpret(value, "uint32")
    sixteen = code.constant(bits, 16)
    odd = code.bitwise("bitwise_and", code.bitwise("shift_right", bits, sixteen), code.constant(bits, 1))
    rounded = code.add(bits, code.add(odd, code.constant(bits, 0x7FFF)))
    quiet = code.bitwise("bitwise_or", bits, code.constant(bits, 0x400000))
    chosen = code.select(code.is_nan(value), quiet, rounded)
    return code.convert(code.bitwise("shift_right", chosen, sixteen), "uint16")


def round_to(code: Code, value: Value, dtype: DType) -> Value:
    """A register value rounded to what ``dtype`` can hold."""
    if dtype.name in ("f16", "bf16") or dtype.kind == "float8":
        return from_memory(code, to_memory(code, value, dtype), dtype)
    return value


def cast(code: Code, value: Value, dtype: DType) -> Value:
    """NumPy's conversion. A float that an integer type can't hold gives what x86 gives, never undefined behaviour."""
    target = register_type(dtype)
    if value.type == "bool":
        return value if target == "bool" else _from_bool(code, value, target)
    if target == "bool":
        return code.settle(code.compare("ne", value, code.constant(value, 0)))
    if is_float(value.type) and not is_float(target):
        return _float_to_int(code, value, target)
    return round_to(code, code.convert(value, target), dtype)


def _from_bool(code: Code, value: Value, target: str) -> Value:
    return code.select(value, tir.constant(1, target, value.lanes), tir.constant(0, target, value.lanes))


def _float_to_int(code: Code, value: Value, target: str) -> Value:
    if target == "uint64":
        return _float_to_uint64(code, value)
    via = "int64" if target in ("int64", "uint32") else "int32"
    limit = 2.0 ** (bits_of(via) - 1)
    low = code.compare("ge", value, code.constant(value, -limit))
    fits = code.both(low, code.compare("lt", value, code.constant(value, limit)))
    whole = code.convert(code.select(fits, value, code.constant(value, 0.0)), via)
    indefinite = tir.constant(-(2 ** (bits_of(via) - 1)), via, value.lanes)
    return code.convert(code.select(fits, whole, indefinite), target)


def _float_to_uint64(code: Code, value: Value) -> Value:
    """Values from 2**63 on are converted less 2**63; negative ones wrap, as C compilers do it."""
    half = code.constant(value, 2.0**63)
    large = code.compare("ge", value, half)
    low = _float_to_int(code, value, "int64")
    high = _float_to_int(code, code.sub(value, half), "int64")
    flipped = code.bitwise("bitwise_xor", high, tir.constant(-(2**63), "int64", value.lanes))
    return code.reinterpret(code.select(large, flipped, low), "uint64")
