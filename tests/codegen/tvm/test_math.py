"""Accuracy of the vector functions in units in the last place, against double precision."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from tile_harness import buffer, const, iters, kernel, load, op, sym

from fusec.codegen.tvm.build import compile_kernels
from fusec.ir.types import f32, f64
from fusec.target.cpu import cpu_target
from fusec.tile.nodes import Store

N = 1 << 15

REFERENCES = {
    "exp": (np.exp, 0.85),
    "exp2": (np.exp2, 0.85),
    "expm1": (np.expm1, 1.1),
    "log": (np.log, 0.9),
    "log2": (np.log2, 1.0),
    "log10": (np.log10, 1.0),
    "log1p": (np.log1p, 0.9),
    "sin": (np.sin, 1.0),
    "cos": (np.cos, 1.0),
    "tan": (np.tan, 1.3),
    "asin": (np.arcsin, 0.7),
    "acos": (np.arccos, 0.7),
    "atan": (np.arctan, 0.85),
    "sinh": (np.sinh, 1.0),
    "cosh": (np.cosh, 1.0),
    "tanh": (np.tanh, 1.25),
    "asinh": (np.arcsinh, 0.51),
    "acosh": (np.arccosh, 0.51),
    "atanh": (np.arctanh, 0.51),
    "erf": (np.vectorize(math.erf), 1.6),
    "erfc": (np.vectorize(math.erfc), 1.1),
}
"""The function in double precision and the most ulps that ours may be off."""

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1e-39, -1e-39, 3e38, -3e38]
EDGES = [88.72283, 88.72284, -87.3365, -103.97, -104.0, -103.98, 128.0, -149.0, -150.0, 127.99999, 9.0, -9.0, 4.0, 1e6]


@cache
def samples():
    rng = np.random.default_rng(7)
    return {
        "bits": rng.integers(0, 2**32, N, dtype=np.uint32).view(np.float32),
        "moderate": (rng.normal(size=N) * 3).astype(np.float32),
        "small": (rng.normal(size=N) * 1e-2).astype(np.float32),
        "wide": rng.uniform(-110, 110, N).astype(np.float32),
        "near one": rng.uniform(0.5, 2, N).astype(np.float32),
        "periods": (np.arange(N) * np.float32(np.pi / 2)).astype(np.float32),
        "edges": np.resize(np.array(SPECIAL + EDGES, np.float32), N),
    }


DOUBLE = {
    "exp": (np.exp, 0.85),
    "exp2": (np.exp2, 0.85),
    "expm1": (np.expm1, 1.2),
    "log": (np.log, 0.9),
    "log2": (np.log2, 1.1),
    "log10": (np.log10, 1.0),
    "log1p": (np.log1p, 0.9),
    "sin": (np.sin, 1.0),
    "cos": (np.cos, 1.0),
    "tan": (np.tan, 1.2),
    "asin": (np.arcsin, 0.7),
    "acos": (np.arccos, 0.7),
    "atan": (np.arctan, 0.85),
    "sinh": (np.sinh, 1.0),
    "cosh": (np.cosh, 1.0),
    "tanh": (np.tanh, 1.2),
    "asinh": (np.arcsinh, 0.51),
    "acosh": (np.arccosh, 0.51),
    "atanh": (np.arctanh, 0.51),
}
"""The same in f64, measured against extended precision."""

DOUBLE_EDGES = [
    709.782712893384,
    709.7827128933841,
    -708.4,
    -745.13,
    -745.14,
    -746.0,
    1e-310,
    5e-324,
    1e308,
    1e9,
    1024.0,
]


@cache
def double_samples():
    rng = np.random.default_rng(8)
    return {
        "bits": rng.integers(0, 2**64, N, dtype=np.uint64).view(np.float64),
        "moderate": rng.normal(size=N) * 3,
        "small": rng.normal(size=N) * 1e-2,
        "wide": rng.uniform(-750, 720, N),
        "near one": rng.uniform(0.5, 2, N),
        "periods": np.arange(N) * (np.pi / 2),
        "edges": np.resize(np.array(SPECIAL + DOUBLE_EDGES), N),
    }


@pytest.fixture(scope="module", params=["cpu", "cpu:x86-64-v3", "cpu:x86-64"])
def functions(request):
    x, y, i = buffer("x", f32, (N,)), buffer("y", f32, (N,)), sym("i", N)
    kernels = [kernel(name, (x, y), (Store(iters((i, N)), y, (i,), op(name, load(x, i))),)) for name in REFERENCES]
    return compile_kernels(kernels, cpu_target(request.param))


def bound(allowed, request):
    """Without fused multiply-add each term of a polynomial is rounded once more."""
    return allowed * 1.2 if request.node.callspec.params["functions"] == "cpu:x86-64" else allowed


@cache
def wanted(name):
    """Of each sample the function's values, computed once for all targets."""
    with np.errstate(all="ignore"):
        return {where: REFERENCES[name][0](x.astype(np.float64)).astype(np.float64) for where, x in samples().items()}


@pytest.mark.parametrize("name", REFERENCES)
def test_ulps(functions, name, request):
    allowed = bound(REFERENCES[name][1], request)
    for where, x in samples().items():
        y = np.empty_like(x)
        functions.function(name)(x.ctypes.data, y.ctypes.data)
        exact = wanted(name)[where]
        with np.errstate(all="ignore"):
            rounded = exact.astype(np.float32)
        finite = np.isfinite(rounded)
        np.testing.assert_array_equal(y[~finite], rounded[~finite], err_msg=f"{name} on {where}")
        spacing = np.maximum(np.spacing(np.abs(rounded[finite])), np.float32(1e-45)).astype(np.float64)
        error = np.abs(y[finite].astype(np.float64) - exact[finite]) / spacing
        worst = int(error.argmax()) if error.size else 0
        assert error.size == 0 or error[worst] <= allowed, f"{name}({x[finite][worst]!r}) is off by {error[worst]} ulp"


@pytest.fixture(scope="module", params=["cpu", "cpu:x86-64-v3", "cpu:x86-64"])
def double_functions(request):
    x, y, i = buffer("x", f64, (N,)), buffer("y", f64, (N,)), sym("i", N)
    kernels = [kernel(name, (x, y), (Store(iters((i, N)), y, (i,), op(name, load(x, i))),)) for name in DOUBLE]
    return compile_kernels(kernels, cpu_target(request.param))


@cache
def doubles_wanted(name):
    with np.errstate(all="ignore"):
        return {where: DOUBLE[name][0](x.astype(np.longdouble)) for where, x in double_samples().items()}


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="needs extended precision as the reference")
@pytest.mark.parametrize("name", DOUBLE)
def test_double_ulps(double_functions, name):
    allowed = DOUBLE[name][1]
    for where, x in double_samples().items():
        y = np.empty_like(x)
        double_functions.function(name)(x.ctypes.data, y.ctypes.data)
        exact = doubles_wanted(name)[where]
        with np.errstate(all="ignore"):
            rounded = exact.astype(np.float64)
        finite = np.isfinite(rounded)
        np.testing.assert_array_equal(y[~finite], rounded[~finite], err_msg=f"{name} on {where}")
        spacing = np.maximum(np.spacing(np.abs(rounded[finite])), 5e-324).astype(np.longdouble)
        error = np.abs(y[finite] - exact[finite]) / spacing
        worst = int(error.argmax()) if error.size else 0
        assert error.size == 0 or error[worst] <= allowed, f"{name}({x[finite][worst]!r}) is off by {error[worst]} ulp"


ODD = ["sin", "tan", "asin", "atan", "sinh", "tanh", "asinh", "atanh", "erf", "expm1", "log1p"]


@pytest.mark.parametrize("name", ODD)
def test_odd_functions_keep_the_sign_of_zero(functions, name):
    x = np.resize(np.array([0.0, -0.0], np.float32), N)
    y = np.empty_like(x)
    functions.function(name)(x.ctypes.data, y.ctypes.data)
    np.testing.assert_array_equal(np.signbit(y), np.signbit(x))


@pytest.mark.parametrize("name", ["tanh", "erf"])
def test_curves_reach_one(functions, name):
    """Exactly, as ``x * (1 + tanh(x))`` of a large negative ``x`` is 0."""
    x = np.resize(np.array([-20.0, 20.0, -1e4, 1e30], np.float32), N)
    y = np.empty_like(x)
    functions.function(name)(x.ctypes.data, y.ctypes.data)
    np.testing.assert_array_equal(y, np.sign(x))


@pytest.mark.parametrize("target", ["cpu", "cpu:x86-64-v3", "cpu:x86-64"])
@pytest.mark.parametrize(("dtype", "least"), [(f32, -43.0), (f64, -354.0)], ids=str)
def test_tanh_plus_one_has_its_digits_where_tanh_is_near_minus_one(dtype, least, target):
    """Below ``least`` the result is subnormal, and may be 0."""
    x, y, i = buffer("x", dtype, (N,)), buffer("y", dtype, (N,)), sym("i", N)
    value = op("add", op("tanh", load(x, i)), const(1.0, dtype))
    function = compile_kernels([kernel("curve", (x, y), (Store(iters((i, N)), y, (i,), value),))], cpu_target(target))
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -1e3, 1e3], dtype.numpy)
    values = np.concatenate([special, np.random.default_rng(3).uniform(least, 30, N - 7).astype(dtype.numpy)])
    result = np.empty_like(values)
    function.function("curve")(values.ctypes.data, result.ctypes.data)
    np.testing.assert_array_equal(result[:7], [1, 1, 2, 0, np.nan, 0, 2])
    exact = 2 / (1 + np.exp(-2 * values[7:].astype(np.longdouble)))
    assert (np.abs(result[7:] - exact) / np.spacing(exact.astype(dtype.numpy))).max() < 2.5
