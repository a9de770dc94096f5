"""``x * (1 / (1 + exp(-x)))``: one division, where nothing else needs the reciprocal."""

from __future__ import annotations

import numpy as np
import pytest
from tile_harness import buffer, const, iters, kernel, load, op, sym

from fusec.codegen.tvm.build import compile_kernels
from fusec.ir.types import f32, f64
from fusec.target.cpu import cpu_target
from fusec.tile.nodes import Store

N = 4096
AT = sym("i", N)
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 88.8, -88.8, 104.0, -104.0, 3e38, -3e38, 1e30, -1e30]


def built(dtype, *, reciprocal_too=False):
    x, y, one = buffer("x", dtype, (N,)), buffer("y", dtype, (N,)), const(1.0, dtype)
    reciprocal = op("div", one, op("add", one, op("exp", op("neg", load(x, AT)))))
    value = op("mul", reciprocal, load(x, AT))
    if reciprocal_too:
        value = op("add", value, reciprocal)
    return compile_kernels([kernel("k", (x, y), (Store(iters((AT, N)), y, (AT,), value),))], cpu_target())


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
def test_values(dtype):
    random = np.random.default_rng(2).normal(size=N - len(SPECIAL)) * 8
    x = np.concatenate([np.array(SPECIAL), random]).astype(dtype.numpy)
    y = np.empty_like(x)
    built(dtype).function("k")(x.ctypes.data, y.ctypes.data)
    with np.errstate(all="ignore"):
        expected = 1 / (1 + np.exp(-x)) * x
    np.testing.assert_array_equal(np.isnan(y), np.isnan(expected))
    np.testing.assert_array_equal(np.isinf(y), np.isinf(expected))
    numbers = np.isfinite(expected)
    np.testing.assert_array_equal(np.signbit(y[numbers]), np.signbit(expected[numbers]))
    np.testing.assert_allclose(y[numbers], expected[numbers], rtol=8 * np.finfo(dtype.numpy).eps)


@pytest.mark.parametrize("reciprocal_too", [False, True])
def test_divisions(reciprocal_too):
    """Were the quotient made by itself where the reciprocal is needed too, there would be two."""
    text = built(f32, reciprocal_too=reciprocal_too).llvm()
    divisions = [line for line in text.splitlines() if " fdiv " in line]
    assert divisions
    assert all(("1.000000e+00" in line) == reciprocal_too for line in divisions)
