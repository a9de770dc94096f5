"""Functions of two arguments: every pair of special values, and random pairs in units in the last place."""

from __future__ import annotations

import numpy as np
import pytest
from tile_harness import buffer, const, iters, kernel, load, op, sym

from fusec.codegen.tvm.build import compile_kernels
from fusec.ir.types import f32, f64, u32
from fusec.target.cpu import cpu_target
from fusec.tile.nodes import Store

N = 1 << 13

FUNCTIONS = {
    "pow": (np.power, 0.51, 0.7),
    "atan2": (np.arctan2, 1.0, 0.85),
    "hypot": (np.hypot, 0.51, 0.52),
    "fmod": (np.fmod, 0.0, 0.0),
}
"""The function in a wider type, and the most ulps that ours may be off in f32 and in f64."""

SPECIAL = [0.0, 1.0, 0.5, 2.0, 3.0, 2.5, np.inf, np.nan, 1e10, 16777217.0]
EDGES = {
    f32: [1e-45, 1e-39, 1.2e-38, 3e38, 5e-20],
    f64: [5e-324, 1e-310, 2.3e-308, 1.7e308, 1e-160, 9007199254740993.0],
}


def pairs(dtype):
    special = np.array(SPECIAL + EDGES[dtype], dtype.numpy)
    special = np.concatenate([special, -special])
    a, b = np.repeat(special, len(special)), np.tile(special, len(special))
    rng = np.random.default_rng(3)
    n = N - len(a)
    base = np.exp(rng.normal(size=n) * 5) * np.where(rng.random(n) < 0.2, -1, 1)
    near = rng.random(n) < 0.3
    base = np.where(near, 1 + rng.normal(size=n) * 1e-3, base)
    exponent = np.where(near, rng.normal(size=n) * 1e4, rng.normal(size=n) * 5)
    return np.concatenate([a, base]).astype(dtype.numpy), np.concatenate([b, exponent]).astype(dtype.numpy)


@pytest.fixture(scope="module", params=["cpu", "cpu:x86-64-v3", "cpu:x86-64"])
def functions(request):
    i, kernels = sym("i", N), []
    for dtype in (f32, f64):
        a, b, out = (buffer(name, dtype, (N,)) for name in ("a", "b", "out"))
        for name in FUNCTIONS:
            value = op(name, load(a, i), load(b, i))
            kernels.append(kernel(f"{name}_{dtype}", (a, b, out), (Store(iters((i, N)), out, (i,), value),)))
    return compile_kernels(kernels, cpu_target(request.param))


@pytest.mark.parametrize("name", ["fmod", "remainder", "floordiv"])
@pytest.mark.parametrize("target", ["cpu", "cpu:x86-64"])
def test_a_divisor_that_is_no_number(name, target):
    """LLVM knows that an integer is finite, and that NaN is not 0."""
    a, out = buffer("a", u32, (N,)), buffer("out", f64, (N,))
    i = sym("i", N)
    value = op(name, op("cast", load(a, i), dtype=f64), const(np.nan, f64))
    code = compile_kernels([kernel("k", (a, out), (Store(iters((i, N)), out, (i,), value),))], cpu_target(target))
    x, result = np.arange(N, dtype=np.uint32), np.zeros(N)
    code.function("k")(x.ctypes.data, result.ctypes.data)
    assert np.isnan(result).all()


@pytest.mark.sweep(1)
@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_ulps(functions, name, dtype):
    reference, *bounds = FUNCTIONS[name]
    allowed = bounds[dtype is f64]
    if dtype is f64 and np.finfo(np.longdouble).nmant < 63 and name != "fmod":
        pytest.skip("needs extended precision as the reference")
    wide = np.longdouble if dtype is f64 else np.float64
    x, y = pairs(dtype)
    result = np.empty_like(x)
    functions.function(f"{name}_{dtype}")(x.ctypes.data, y.ctypes.data, result.ctypes.data)
    with np.errstate(all="ignore"):
        exact = reference(x.astype(wide), y.astype(wide))
        rounded = exact.astype(dtype.numpy)
    finite = np.isfinite(rounded)
    np.testing.assert_array_equal(result[~finite], rounded[~finite])
    np.testing.assert_array_equal(np.signbit(result[finite]), np.signbit(rounded[finite]))
    least = np.finfo(dtype.numpy).smallest_subnormal
    spacing = np.maximum(np.spacing(np.abs(rounded[finite])), least).astype(wide)
    error = np.abs(result[finite].astype(wide) - exact[finite]) / spacing
    worst = int(error.argmax())
    assert error[worst] <= allowed, f"{name}({x[finite][worst]!r}, {y[finite][worst]!r}) is off by {error[worst]} ulp"
