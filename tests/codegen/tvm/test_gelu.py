"""gelu from one table, against double precision, and where it must not be taken for one.

A CPU without AVX-512 has no table: there erf may err twice as far as the formula does with each step rounded to f32.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from tile_harness import buffer, const, iters, kernel, load, op, sym

from fusec.codegen.tvm.build import compile_kernels
from fusec.codegen.tvm.context import Numbers
from fusec.codegen.tvm.gelu import gelu_operand
from fusec.ir.types import f32, f64
from fusec.target.cpu import cpu_target
from fusec.tile.nodes import Store

N = 1 << 14
HOST = cpu_target()
AT = sym("i", N)
X, Y = buffer("x", f32, (N,)), buffer("y", f32, (N,))
HALF, ONE = const(0.5, f32), const(1.0, f32)


def curve(argument):
    return op("add", op("erf", argument), ONE)


def scaled(x, factor=0.5**0.5):
    return op("mul", x, const(factor, f32))


def forms():
    x = load(X, AT)
    half = op("mul", x, HALF)
    return {
        "half first": op("mul", half, curve(scaled(x))),
        "half last": op("mul", HALF, op("mul", x, curve(scaled(x)))),
        "curve first": op("mul", curve(scaled(x)), half),
        "divided": op("mul", half, op("add", ONE, op("erf", op("div", x, const(math.sqrt(2.0), f32))))),
    }


def run(value, x, target=HOST):
    y = np.empty_like(x)
    function = compile_kernels([kernel("k", (X, Y), (Store(iters((AT, N)), Y, (AT,), value),))], target).function("k")
    function(x.ctypes.data, y.ctypes.data)
    return y


def exact(x):
    wide = x.astype(np.float64)
    return wide * 0.5 * (1 + np.vectorize(math.erf)(wide / math.sqrt(2)))


def stepwise(x):
    """The formula in float32, each step rounded."""
    erf = np.vectorize(math.erf)((x * np.float32(0.5**0.5)).astype(np.float64)).astype(np.float32)
    return np.float32(0.5) * x * (erf + np.float32(1))


@pytest.mark.parametrize("form", forms())
def test_forms(form):
    assert gelu_operand(forms()[form], Numbers()) == load(X, AT)
    x = np.random.default_rng(1).normal(size=N).astype(np.float32) * 3
    right = exact(x)

    def digits(y):
        return (np.abs(y - right) / np.maximum(np.spacing(right.astype(np.float32)), 2.0**-24 * np.abs(x))).max()

    y = run(forms()[form], x)
    assert np.abs(y - right).max() < 1e-6
    assert digits(y) < (1.25 if HOST.has_avx512 else 2 * digits(stepwise(x)))


@pytest.mark.parametrize("target", ["cpu", "cpu:x86-64-v3"])
def test_special_values(target):
    x = np.resize(
        np.float32([0.0, 1e-45, -1e-40, 1e-30, np.inf, -np.inf, np.nan, 6.0, -6.0, 7.5, -7.5, 3e38, -3e38]), N
    )
    with np.errstate(invalid="ignore", over="ignore"):
        right = exact(x).astype(np.float32)
    np.testing.assert_allclose(run(forms()["half first"], x, cpu_target(target)), right, rtol=1e-6, atol=2e-8)


@pytest.mark.parametrize("target", ["cpu", "cpu:x86-64-v3"])
def test_results_have_the_sign_of_their_argument(target):
    x = np.resize(np.float32([0.0, -0.0, -1e-45, -1e-40, 1e-40, -3.0, -5.9, -6.0, -8.0, -100.0, -3e38, 8.0]), N)
    y = run(forms()["half first"], x, cpu_target(target))
    np.testing.assert_array_equal(np.signbit(y), np.signbit(x))


def test_every_piece():
    """The table's pieces meet without a step that shows."""
    x = np.linspace(-6.5, 6.5, N, dtype=np.float32)
    error = np.abs(run(forms()["half first"], x) - exact(x))
    below, above = error[x < 0].max(), (error / np.spacing(np.abs(x)))[x >= 0].max()
    if HOST.has_avx512:
        assert below < 1.3e-7
        assert above < 1
    else:
        usual = np.abs(stepwise(x) - exact(x))
        assert below < 2 * usual[x < 0].max()
        assert above < 2 * (usual / np.spacing(np.abs(x)))[x >= 0].max()


def test_what_is_no_gelu():
    x, other = load(X, AT), load(buffer("z", f32, (N,)), AT)
    half = op("mul", x, HALF)
    wide = load(buffer("w", f64, (N,)), AT)
    double = op(
        "mul",
        op("mul", wide, const(0.5, f64)),
        op("add", op("erf", op("mul", wide, const(0.5**0.5, f64))), const(1.0, f64)),
    )
    for value in (
        op("mul", half, curve(scaled(other))),
        op("mul", half, curve(scaled(x, 0.7))),
        op("mul", x, curve(scaled(x))),
        op("mul", half, op("add", op("erf", scaled(x)), const(2.0, f32))),
        op("mul", half, op("sub", op("erf", scaled(x)), ONE)),
        op("mul", op("mul", half, other), curve(scaled(x))),
        op("add", half, curve(scaled(x))),
        double,
    ):
        assert gelu_operand(value, Numbers()) is None
