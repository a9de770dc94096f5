"""Every elementwise op on every dtype it takes, special values included, against the NumPy reference."""

from __future__ import annotations

import numpy as np
import pytest
from tile_harness import buffer, compare_compiled, iters, kernel, load, op, sym

from fusec.codegen.tvm.build import compile_kernels
from fusec.ir.types import DTYPES, bf16, bool_, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from fusec.target.cpu import cpu_target
from fusec.tile.nodes import Store

N = 83
FLOATS = (f32, f64, f16, bf16)
INTEGERS = (i8, i16, i32, i64, u8, u16, u32, u64)
PREDICATES = {"isnan", "isinf", "isfinite", "eq", "ne", "lt", "le", "gt", "ge"}

FLOAT_UNARY = [
    "copy",
    "neg",
    "abs",
    "sign",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sqrt",
    "rsqrt",
    "sin",
    "cos",
    "tan",
    "sinh",
    "cosh",
    "tanh",
    "asin",
    "acos",
    "atan",
    "asinh",
    "acosh",
    "atanh",
    "erf",
    "erfc",
    "floor",
    "ceil",
    "round",
    "trunc",
    "isnan",
    "isinf",
    "isfinite",
]
FLOAT_BINARY = [
    "add",
    "sub",
    "mul",
    "div",
    "floordiv",
    "remainder",
    "fmod",
    "pow",
    "maximum",
    "minimum",
    "fmax",
    "fmin",
    "atan2",
    "copysign",
    "hypot",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
]
INTEGER_UNARY = ["copy", "neg", "abs", "sign", "bitwise_not"]
INTEGER_BINARY = [
    "add",
    "sub",
    "mul",
    "floordiv",
    "remainder",
    "fmod",
    "pow",
    "maximum",
    "minimum",
    "fmax",
    "fmin",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
]
BOOL_UNARY = ["copy", "logical_not", "bitwise_not"]
BOOL_BINARY = [
    "logical_and",
    "logical_or",
    "logical_xor",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "maximum",
    "minimum",
]


def ops_of(dtype):
    if dtype.kind == "bool":
        return [(name, 1) for name in BOOL_UNARY] + [(name, 2) for name in BOOL_BINARY]
    if dtype.is_float:
        return [(name, 1) for name in FLOAT_UNARY] + [(name, 2) for name in FLOAT_BINARY]
    return [(name, 1) for name in INTEGER_UNARY] + [(name, 2) for name in INTEGER_BINARY]


def operands(dtype, seed):
    """Numbers of all sizes, and every pair of special values in the first entries of two calls."""
    rng = np.random.default_rng(seed)
    if dtype.kind == "bool":
        return rng.integers(0, 2, N).astype(bool)
    if dtype.is_float:
        special = np.array([0.0, -0.0, 1.0, -1.0, 2.5, np.inf, -np.inf, np.nan], np.float64)
        values = rng.normal(size=N) * np.exp(rng.normal(size=N))
    else:
        limits = np.iinfo(dtype.long_name)
        special = np.array([0, 1, 2, 3, limits.max, limits.min, 7, limits.max - 1], object)
        if dtype.kind == "int":
            special[3] = -1
        values = rng.integers(0 if dtype.kind == "uint" else -9, 9, N).astype(object)
    grid = np.tile(special, 8) if seed % 2 else np.repeat(special, 8)
    values[:64] = grid
    with np.errstate(all="ignore"):
        return values.astype(dtype.numpy)


def make_kernel(name, arity, dtype, result):
    i = sym("i", N)
    parameters = [buffer(f"x{n}", dtype, (N,)) for n in range(arity)]
    out = buffer("out", result, (N,))
    value = op(name, *(load(p, i) for p in parameters), dtype=result)
    return kernel(f"{name}_{dtype}", (*parameters, out), (Store(iters((i, N)), out, (i,), value),))


CASES = [(dtype, "cpu") for dtype in (*FLOATS, i8, i32, i64, u8, bool_)] + [(f32, "cpu:x86-64-v3")]
CASES += [pytest.param(dtype, "cpu", marks=pytest.mark.nightly) for dtype in (i16, u16, u32, u64)]
CASES += [pytest.param(i64, "cpu:x86-64-v3", marks=pytest.mark.nightly)]


@pytest.mark.parametrize(("dtype", "target"), CASES, ids=lambda value: str(value))
def test_elementwise_ops(dtype, target):
    kernels = {
        (name, arity): make_kernel(name, arity, dtype, bool_ if name in PREDICATES else dtype)
        for name, arity in ops_of(dtype)
    }
    compiled = compile_kernels(list(kernels.values()), cpu_target(target))
    digits = {"f16": 1e-3, "bf16": 8e-3, "f32": 1e-6, "f64": 1e-14}.get(dtype.name, 0.0)
    for (name, arity), k in kernels.items():
        inputs = [operands(dtype, seed) for seed in range(arity)]
        if name == "pow" and not dtype.is_float:
            inputs[1] = np.arange(N).astype(dtype.numpy) % 9
        (actual,) = compare_special(compiled, k, inputs, digits)
        assert actual.shape == (N,)


def compare_special(compiled, k, inputs, digits):
    """Compares, a signed zero counting as different from its opposite."""
    return compare_compiled(compiled, k, inputs, rtol=digits, atol=0.0)


@pytest.mark.parametrize(
    "name", ["neg", "abs", "floor", "ceil", "round", "trunc", "maximum", "mul", "sin", "tanh", "erf"]
)
def test_zeros_keep_their_sign(name):
    arity = 2 if name in ("maximum", "mul") else 1
    k = make_kernel(name, arity, f32, f32)
    zeros = np.tile(np.array([0.0, -0.0], np.float32), N)[:N]
    compiled = compile_kernels([k], cpu_target())
    (actual,) = compare_compiled(compiled, k, [zeros] * arity)
    expected = {"neg": ~np.signbit(zeros), "abs": np.zeros(N, bool), "mul": np.zeros(N, bool)}
    np.testing.assert_array_equal(np.signbit(actual), expected.get(name, np.signbit(zeros)))


@pytest.mark.parametrize("dtype", [i32, u8, i64], ids=str)
def test_shifts_beyond_the_width_shift_everything_out(dtype):
    bits = dtype.bits
    amounts = (np.arange(N) % (bits + 3)).astype(dtype.numpy)
    values = operands(dtype, 0)
    kernels = [make_kernel(name, 2, dtype, dtype) for name in ("shift_left", "shift_right")]
    compiled = compile_kernels(kernels, cpu_target())
    for k in kernels:
        compare_compiled(compiled, k, [values, amounts])


CASTS = [f32, f64, f16, bf16, i8, i16, i32, i64, u8, u32, bool_]


@pytest.mark.parametrize("source", CASTS, ids=str)
def test_casts(source):
    kernels = []
    i = sym("i", N)
    x = buffer("x", source, (N,))
    for target in CASTS:
        out = buffer("out", target, (N,))
        value = op("cast", load(x, i), dtype=target)
        kernels.append(kernel(f"to_{target}", (x, out), (Store(iters((i, N)), out, (i,), value),)))
    compiled = compile_kernels(kernels, cpu_target())
    values = operands(source, 0)
    for k in kernels:
        target = k.parameters[-1].dtype
        inputs = values
        if source.is_float and not target.is_float:
            inputs = np.clip(np.nan_to_num(values.astype(np.float64), posinf=100, neginf=0), 0, 100).astype(
                source.numpy
            )
        compare_compiled(compiled, k, [inputs], rtol=0, atol=0)


def test_float_to_int_out_of_range_is_what_x86_gives():
    x, out = buffer("x", f32, (4,)), buffer("out", i32, (4,))
    i = sym("i", 4)
    k = kernel("trunc", (x, out), (Store(iters((i, 4)), out, (i,), op("cast", load(x, i), dtype=i32)),))
    values, result = np.array([1e10, -1e10, np.nan, -1.5], np.float32), np.zeros(4, np.int32)
    compile_kernels([k], cpu_target()).function("trunc")(values.ctypes.data, result.ctypes.data)
    np.testing.assert_array_equal(result, [-(2**31), -(2**31), -(2**31), -1])


def test_every_bf16_is_rounded_to_nearest_even():
    n = 1 << 16
    x, out = buffer("x", f32, (n,)), buffer("out", bf16, (n,))
    i = sym("i", n)
    k = kernel("round", (x, out), (Store(iters((i, n)), out, (i,), load(x, i)),))
    bits = (np.arange(n, dtype=np.uint32) << 16) | np.tile(np.array([0x7FFF, 0x8000, 0x8001, 0], np.uint32), n // 4)
    values = bits.view(np.float32)
    result = np.zeros(n, DTYPES["bf16"].numpy)
    compile_kernels([k], cpu_target()).function("round")(values.ctypes.data, result.ctypes.data)
    with np.errstate(all="ignore"):
        expected = values.astype(DTYPES["bf16"].numpy)
    nan = np.isnan(values)
    np.testing.assert_array_equal(result.view(np.uint16)[~nan], expected.view(np.uint16)[~nan])
    assert np.isnan(result[nan].astype(np.float32)).all()
