"""The error functions in f64, against 30 digits."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from tile_harness import buffer, iters, kernel, load, op, sym

from fusec.codegen.tvm.build import compile_kernels
from fusec.ir.types import f64
from fusec.target.cpu import cpu_target
from fusec.tile.nodes import Store

N = 1200


def samples():
    rng = np.random.default_rng(5)
    special = [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        5e-324,
        -1e-310,
        0.5,
        -0.5,
        1.0,
        -1.0,
        6.0,
        26.5,
        26.55,
        27.3,
        -30.0,
        1e300,
    ]
    return np.concatenate([special, rng.normal(size=500), rng.uniform(-7, 27, N - 500 - len(special))])


@pytest.mark.parametrize("target", ["cpu", "cpu:x86-64-v3", "cpu:x86-64"])
@pytest.mark.parametrize(("name", "allowed"), [("erf", 1.1), ("erfc", 1.1)])
def test_ulps(name, allowed, target):
    a, out, i = buffer("a", f64, (N,)), buffer("out", f64, (N,)), sym("i", N)
    k = kernel("k", (a, out), (Store(iters((i, N)), out, (i,), op(name, load(a, i))),))
    x, y = samples(), np.empty(N)
    compile_kernels([k], cpu_target(target)).function("k")(x.ctypes.data, y.ctypes.data)
    reference = getattr(mpmath, name)
    with mpmath.workdps(30):
        for at, got in zip(x.tolist(), y.tolist(), strict=True):
            exact = reference(mpmath.mpf(at if not abs(at) > 40 else np.copysign(40.0, at)))
            if mpmath.isnan(exact):
                assert np.isnan(got)
                continue
            unit = max(float(np.spacing(abs(float(exact)))), 5e-324)
            assert abs(exact - mpmath.mpf(got)) / mpmath.mpf(unit) <= allowed, f"{name}({at!r}) is {got!r}"
    np.testing.assert_array_equal(np.signbit(y[:2]), [False, name == "erf"])
