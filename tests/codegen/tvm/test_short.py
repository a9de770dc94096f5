"""Which values need only bf16's digits, and that the short functions keep them."""

from __future__ import annotations

from math import erfc

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


def half_of(function, factor, low, high):
    """``(f(factor * x) + 1) / 2`` in bf16 at special and random x, and the random ones."""
    y = buffer("y", bf16, (N,))
    inner = load(X, I) if factor is None else op("mul", load(X, I), const(factor, f32))
    value = op("mul", op("add", op(function, inner), const(1.0, f32)), const(0.5, f32))
    module = compile_kernels([kernel("curve", (X, y), (Store(iters((I, N)), y, (I,), value),))], cpu_target())
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-40], np.float32)
    x = np.concatenate([special, np.random.default_rng(1).uniform(low, high, N - 8).astype(np.float32)])
    result = np.empty(N, bf16.numpy)
    module.function("curve")(x.ctypes.data, result.ctypes.data)
    got = result.astype(np.float64)
    sides = [1, 0, np.nan, 1, 0] if (factor or 1) > 0 else [0, 1, np.nan, 0, 1]
    np.testing.assert_array_equal(got[:8], [0.5, 0.5, *sides, 0.5])
    return x[8:].astype(np.float64), got[8:]


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
    x, got = half_of("tanh", factor, -42, 30)
    exact = 1 / (1 + np.exp(-2 * (factor or 1.0) * x))
    assert (np.abs(got - exact) / exact).max() < 2**-8 + 2**-13


@pytest.mark.skipif(not cpu_target().has_avx512, reason="else it is erf and 1")
@pytest.mark.parametrize("factor", [None, 0.7071067811865476, -3.0, 0.02])
def test_the_short_error_function(factor):
    """To 2**-13 before it is rounded to bf16; where f32's own sum has fewer digits, to its last one."""
    scale = factor or 1.0
    x, got = half_of("erf", factor, -6 / abs(scale), 6 / abs(scale))
    exact = np.array([erfc(-scale * v) / 2 for v in x])
    error = np.abs(got - exact)
    assert (error / np.maximum(exact, 2**-13)).max() < 2**-8 + 2**-13
    inside = np.abs(scale * x) < 3.6
    assert (error / exact)[inside].max() < 2**-8 + 2**-13
    assert error[~inside].max() < 2**-9
    assert error[(~inside) & (exact < 0.5)].max() < 2**-23
