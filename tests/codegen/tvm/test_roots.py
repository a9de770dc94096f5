"""Square roots of whole vectors that are made of an estimate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tile_harness import buffer, iters, kernel, load, op, sym

from fusec.codegen.tvm.build import compile_kernels
from fusec.ir.types import f32
from fusec.target.cpu import cpu_target
from fusec.tile.nodes import Store

HOST = cpu_target()
REFINED = replace(HOST, mcpu="skylake-avx512")


@pytest.fixture(scope="module")
def roots():
    if not HOST.has_avx512:
        pytest.skip("needs AVX-512")
    return lambda x: run(x, REFINED)


def run(x, target):
    source, result, i = buffer("x", f32, x.shape), buffer("y", f32, x.shape), sym("i", x.size)
    store = Store(iters((i, x.size)), result, (i,), op("sqrt", load(source, i)))
    y = np.empty_like(x)
    compile_kernels([kernel("roots", (source, result), (store,))], target).function("roots")(
        x.ctypes.data, y.ctypes.data
    )
    return y


def test_every_magnitude(roots):
    """Every 4099th of the numbers above 0, subnormal ones too."""
    x = np.arange(1, 0x7F800000, 4099, dtype=np.uint32).view(np.float32)
    x = x[: x.size // 16 * 16]
    exact = np.sqrt(x.astype(np.float64))
    assert (np.abs(roots(x) - exact) / np.spacing(exact.astype(np.float32))).max() < 0.85


def test_special_values(roots):
    x = np.resize(np.float32([0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, -1e-45, 3.4028235e38]), 64)
    with np.errstate(invalid="ignore"):
        expected = np.sqrt(x)
    y = roots(x)
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(np.signbit(y[:2]), [False, True])


def test_squares(roots):
    whole = np.arange(1, 4097, dtype=np.float32)
    np.testing.assert_array_equal(roots(whole * whole), whole)
    powers = np.float32(2.0) ** np.arange(-74, 54, dtype=np.float32)
    np.testing.assert_array_equal(roots(powers * powers), powers)


def test_other_processors_take_their_own_instruction():
    x = np.random.default_rng(0).uniform(0, 100, 4096).astype(np.float32)
    np.testing.assert_array_equal(
        run(x, HOST if not HOST.roots_slowly else replace(HOST, mcpu="x86-64-v4")), np.sqrt(x)
    )
