"""Which values need only bf16's digits, and that the short functions keep them."""

from __future__ import annotations

import numpy as np
import pytest
from tile_harness import buffer, const, iters, kernel, load, op, sym

from fusec.codegen.tvm.build import compile_kernels
from fusec.codegen.tvm.context import Numbers
from fusec.codegen.tvm.short import short_nodes
from fusec.ir.types import bf16, f32
from fusec.target.cpu import cpu_target
from fusec.tile.nodes import Store

N = 4096
I = sym("i", N)  # noqa: E741
X = buffer("x", f32, (N,))


def curve():
    return op("add", op("tanh", load(X, I)), const(1.0, f32))


def test_factors_are_short_and_terms_are_not():
    numbers = Numbers()
    factor, term = curve(), op("add", op("tanh", op("neg", load(X, I))), const(1.0, f32))
    value = op("mul", factor, op("add", term, load(X, I)))
    found = short_nodes(value, numbers)
    assert numbers.number(factor) in found
    assert numbers.number(term) not in found


def test_what_is_also_a_term_is_not_short():
    numbers = Numbers()
    assert numbers.number(curve()) not in short_nodes(op("mul", curve(), op("sub", curve(), load(X, I))), numbers)


def test_below_a_rounding_to_bf16_all_starts_anew():
    numbers = Numbers()
    value = op("add", op("cast", op("mul", curve(), load(X, I)), dtype=bf16), load(X, I))
    assert numbers.number(curve()) in short_nodes(value, numbers)


@pytest.mark.parametrize("factor", [None, 0.7978845608028654])
def test_the_short_curve(factor):
    """To 2**-13 before it is rounded to bf16, over all of its range; infinities and NaN as they are."""
    y = buffer("y", bf16, (N,))
    inner = load(X, I) if factor is None else op("mul", load(X, I), const(factor, f32))
    value = op("mul", op("add", op("tanh", inner), const(1.0, f32)), const(0.5, f32))
    module = compile_kernels([kernel("curve", (X, y), (Store(iters((I, N)), y, (I,), value),))], cpu_target())
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-40], np.float32)
    x = np.concatenate([special, np.random.default_rng(1).uniform(-42, 30, N - 8).astype(np.float32)])
    result = np.empty(N, bf16.numpy)
    module.function("curve")(x.ctypes.data, result.ctypes.data)
    got = result.astype(np.float64)
    np.testing.assert_array_equal(got[:8], [0.5, 0.5, 1, 0, np.nan, 1, 0, 0.5])
    exact = 1 / (1 + np.exp(-2 * (factor or 1.0) * x[8:].astype(np.float64)))
    assert (np.abs(got[8:] - exact) / exact).max() < 2**-8 + 2**-13
