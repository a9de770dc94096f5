# SPDX-License-Identifier: Apache-2.0
"""How Triton spells each elementwise op. Half types have been widened to f32 before an op is spelled."""

from __future__ import annotations

from fusec.ir.types import DType

TYPES = {
    "f16": "tl.float16",
    "bf16": "tl.bfloat16",
    "f32": "tl.float32",
    "f64": "tl.float64",
    "f8e4m3": "tl.uint8",
    "f8e5m2": "tl.uint8",
    "i8": "tl.int8",
    "i16": "tl.int16",
    "i32": "tl.int32",
    "i64": "tl.int64",
    "u8": "tl.uint8",
    "u16": "tl.uint16",
    "u32": "tl.uint32",
    "u64": "tl.uint64",
    "bool": "tl.int1",
}

POINTERS = {
    "f16": "*fp16",
    "bf16": "*bf16",
    "f32": "*fp32",
    "f64": "*fp64",
    "f8e4m3": "*u8",
    "f8e5m2": "*u8",
    "i8": "*i8",
    "i16": "*i16",
    "i32": "*i32",
    "i64": "*i64",
    "u8": "*u8",
    "u16": "*u16",
    "u32": "*u32",
    "u64": "*u64",
    "bool": "*i1",
}

SHARED = {
    "add": "({0} + {1})",
    "sub": "({0} - {1})",
    "mul": "({0} * {1})",
    "copy": "{0}",
    "neg": "(-{0})",
    "abs": "tl.abs({0})",
    "eq": "({0} == {1})",
    "ne": "({0} != {1})",
    "lt": "({0} < {1})",
    "le": "({0} <= {1})",
    "gt": "({0} > {1})",
    "ge": "({0} >= {1})",
    "maximum": "tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "minimum": "tl.minimum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "fmax": "tl.maximum({0}, {1})",
    "fmin": "tl.minimum({0}, {1})",
    "select": "tl.where({0}, {1}, {2})",
    "logical_and": "({0} & {1})",
    "logical_or": "({0} | {1})",
    "logical_xor": "({0} ^ {1})",
    "logical_not": "({0} == 0)",
    "bitwise_and": "({0} & {1})",
    "bitwise_or": "({0} | {1})",
    "bitwise_xor": "({0} ^ {1})",
    "bitwise_not": "(~{0})",
    "shift_left": "({0} << {1})",
    "shift_right": "({0} >> {1})",
    "isnan": "({0} != {0})",
    "floor": "tl.floor({0})",
    "ceil": "tl.ceil({0})",
    "sqrt": "tl.sqrt_rn({0})",
    "sin": "tl.sin({0})",
    "cos": "tl.cos({0})",
    "erf": "tl.erf({0})",
    "isinf": "(tl.abs({0}) == float('inf'))",
    "isfinite": "(tl.abs({0}) < float('inf'))",
}
"""Spellings that serve every float width."""

FAST = {
    "div": "({0} / {1})",
    "exp": "tl.exp({0})",
    "exp2": "tl.exp2({0})",
    "log": "tl.log({0})",
    "log2": "tl.log2({0})",
    "rsqrt": "tl.rsqrt({0})",
    "tanh": "(1.0 - 2.0 / (tl.exp(2.0 * {0}) + 1.0))",
}
"""Where every output is a half type: hardware approximations, a few f32 ulp off, far below the outputs' rounding."""

COARSE = {"tanh": "_tanh({0})", "erf": "_erf({0})"}
"""Where every output is bf16: 2⁻¹¹ relative, a quarter of the outputs' rounding."""

BEGIN = """@triton.jit
def _begin():
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
"""
"""What a kernel starts with that is launched before the one ahead of it has ended (Hopper and later)."""

SPLIT = """_F32: tl.constexpr = tl.constexpr("{0}")"""
"""How blocks of f32 are multiplied: as they are, or each in two parts of TF32, whose products are added up."""

TANH = {
    "cuda": """@triton.jit
def _tanh(x):
    return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
""",
    "hip": """@triton.jit
def _tanh(x):
    return 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)
""",
}
"""The coarse hyperbolic tangent of each backend."""

WIDEN = {
    "cuda": """@triton.jit
def _widen(x):
    text: tl.constexpr = "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;"
    return tl.inline_asm_elementwise(text, "=f,=f,r", [x], dtype=tl.float32, is_pure=True, pack=2)
""",
    "hip": """@triton.jit
def _widen(x):
    return x.to(tl.float32)
""",
}
"""Pairs of bf16 to f32: LLVM spends half an instruction more on each, which wide rows feel (layer norm and gelu of 8192
on an H200: 4.12 instead of 4.01 TB/s)."""

EIGHT_BITS = """@triton.jit
def _to_f8e4m3(x):
    # The instruction gives the largest number for what is beyond it, and a NaN without a sign.
    sign = (x.to(tl.int32, bitcast=True) >> 24) & 0x80
    near = tl.where(tl.abs(x) <= 464.0, x, float("nan")).to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    return near | sign.to(tl.uint8)
"""
"""For GPUs that have an instruction for it."""

ERF = """@triton.jit
def _erf(x):
    u = tl.minimum(x * x, 16.0)
    return _tanh(x * (1.12831393 + u * (0.10364079 - 0.00161515 * u)))
"""
"""erf(x) = tanh(x P(x²)): P fitted to 6e-5 relative in erf up to x = 4, from where erf is 1."""

EXACT = {
    "div": "tl.div_rn({0}, {1})",
    "exp": "libdevice.exp({0})",
    "exp2": "libdevice.exp2({0})",
    "log": "libdevice.log({0})",
    "log2": "libdevice.log2({0})",
    "rsqrt": "tl.div_rn(1.0, tl.sqrt_rn({0}))",
    "tanh": "libdevice.tanh({0})",
}
"""Where an output is f32 or f64."""

DOUBLE = {"div": "({0} / {1})", "sqrt": "tl.sqrt({0})", "rsqrt": "(1.0 / tl.sqrt({0}))"}
"""Of f64, where the functions of correct rounding above serve f32 alone and the plain ones round correctly."""

LIBDEVICE = {
    "expm1": "expm1",
    "log10": "log10",
    "log1p": "log1p",
    "tan": "tan",
    "sinh": "sinh",
    "cosh": "cosh",
    "asin": "asin",
    "acos": "acos",
    "atan": "atan",
    "asinh": "asinh",
    "acosh": "acosh",
    "atanh": "atanh",
    "erfc": "erfc",
    "pow": "pow",
    "atan2": "atan2",
    "copysign": "copysign",
    "hypot": "hypot",
    "fmod": "fmod",
    "round": "rint",
    "trunc": "trunc",
}
"""Functions of CUDA's and AMD's device libraries, by their names there."""


FLOAT_HELPERS = {"floordiv": "_floordiv_float", "remainder": "_remainder_float"}
INT_HELPERS = {"floordiv": "_floordiv_int", "remainder": "_remainder_int", "fmod": "_fmod_int", "pow": "_power_int"}
"""Functions of :data:`HELPER_SOURCE`, for floats and for integers."""

HELPER_SOURCE = """@triton.jit
def _floordiv_int(a, b):
    d = tl.where(b == 0, 1, b)
    q = a // d
    return tl.where(b == 0, 0, tl.where((q * d != a) & ((a < 0) != (d < 0)), q - 1, q))


@triton.jit
def _fmod_int(a, b):
    return tl.where(b == 0, 0, a % tl.where(b == 0, 1, b))


@triton.jit
def _remainder_int(a, b):
    r = _fmod_int(a, b)
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)


@triton.jit
def _power_int(a, b, BITS: tl.constexpr):
    result = tl.full(a.shape, 1, a.dtype)
    factor = a
    for bit in range(BITS):
        result = tl.where((b >> bit) & 1 != 0, result * factor, result)
        factor = factor * factor
    below = tl.where(a == 1, 1, tl.where(a == -1, tl.where(b & 1 != 0, -1, 1), 0))
    return tl.where(b < 0, below.to(a.dtype), result)


@triton.jit
def _divide(a, b):
    if a.dtype == tl.float64:
        return a / b
    else:
        return tl.div_rn(a, b)


@triton.jit
def _floordiv_float(a, b):
    r = libdevice.fmod(a, b)
    q = _divide(a - r, b)
    q = tl.where((r != 0) & ((r < 0) != (b < 0)), q - 1, q)
    whole = tl.floor(q)
    whole = tl.where(q - whole > 0.5, whole + 1, whole)
    whole = tl.where(q == 0, _divide(a, b) * 0, whole)
    return tl.where(b == 0, _divide(a, b), whole)


@triton.jit
def _remainder_float(a, b):
    r = libdevice.fmod(a, b)
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)
"""
"""Division as the libraries define it: towards minus infinity, and 0 for an integer by 0."""


def float_literal(value: float) -> str:
    """A float as Triton source, with infinities and NaN."""
    return f"float('{value}')" if value in (float("inf"), -float("inf")) or value != value else repr(float(value))


def type_name(dtype: DType) -> str:
    return TYPES[dtype.name]
