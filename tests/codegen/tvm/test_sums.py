"""Sums of floats: as exact as their terms allow, whatever their length, and exact where all terms are equal."""

from __future__ import annotations

import numpy as np
import pytest
from tile_harness import buffer, compare, kernel, load, op, sym

from fusec.codegen.tvm.build import compile_kernels
from fusec.ir.types import bf16, f32, f64
from fusec.target.cpu import cpu_target
from fusec.tile.nodes import Iter, Reduce

LENGTHS = [1, 3, 16, 31, 100, 511, 512, 513, 1000, 10_000]


def summed(values, axis, target=f32, term=lambda x: x):
    """The sum of an array along an axis, by a compiled kernel."""
    rows, columns = values.shape
    x, out = buffer("x", f32, values.shape), buffer("out", target, (columns if axis == 0 else rows,))
    i, j = sym("i", rows), sym("j", columns)
    domain = (Iter(i, rows), Iter(j, columns))
    reduce = Reduce(domain, out, (j if axis == 0 else i,), "sum", term(load(x, i, j)))
    result = np.full(out.shape, np.nan, target.numpy)
    compile_kernels([kernel("sum", (x, out), (reduce,))], cpu_target()).function("sum")(
        values.ctypes.data, result.ctypes.data
    )
    return result


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("length", LENGTHS)
def test_equal_terms_have_an_exact_sum_in_f64(axis, length):
    column = np.array([0.1, 1000.1, 3.3333, 1e30, -7e-12], np.float32)
    values = np.repeat(column[:, None], length, axis=1)
    result = summed(values if axis == 1 else np.ascontiguousarray(values.T), axis, f64)
    np.testing.assert_array_equal(result, column.astype(np.float64) * length)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dear", [False, True])
def test_the_error_does_not_grow_with_the_length(axis, length, dear):
    rng = np.random.default_rng(length)
    shape = (21, length) if axis == 1 else (length, 21)
    values = (0.5 + rng.random(shape)).astype(np.float32)
    term = (lambda x: op("exp", op("exp", op("neg", op("mul", x, x))))) if dear else (lambda x: x)
    wide = values.astype(np.float64)
    exact = np.exp(np.exp(-wide * wide)).sum(axis) if dear else wide.sum(axis)
    error = np.abs(summed(values, axis, term=term) - exact) / exact
    assert np.sqrt(np.mean(error**2)) < (0.6 if dear else 0.45) * np.finfo(np.float32).eps


@pytest.mark.parametrize("axis", [0, 1])
def test_blocks_that_overflow_together_are_added_in_f64(axis):
    values = np.repeat(np.array([[3e38], [3e38], [-3e38], [-3e38]], np.float32), 16, 0)[:, :1]
    values = np.repeat(np.ascontiguousarray(values.T), 2, axis=0)
    assert summed(values[:, ::16].copy(), 1)[0] == 0


def test_an_overflow_is_infinite():
    assert np.isposinf(summed(np.full((2, 40), 3e38, np.float32), 1)).all()


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", [f32, bf16])
@pytest.mark.parametrize(("shape", "axes"), [((5, 7, 70), (1, 2)), ((40, 3, 19), (0, 1)), ((3, 45, 20), (1,))])
@pytest.mark.parametrize("fresh", [True, False])
def test_into_f64(dtype, shape, axes, fresh):
    symbols = [sym(f"i{n}", extent) for n, extent in enumerate(shape)]
    kept = [n for n in range(len(shape)) if n not in axes]
    x, out = buffer("x", dtype, shape), buffer("out", f64, tuple(shape[n] for n in kept))
    domain = tuple(Iter(s, n) for s, n in zip(symbols, shape, strict=True))
    reduce = Reduce(domain, out, tuple(symbols[n] for n in kept), "sum", load(x, *symbols), fresh)
    compare(kernel("sum", (x, out), (reduce,)), rtol=1e-6, atol=1e-5)
