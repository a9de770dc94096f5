"""Reductions: along the lanes, across them, over several iterators, with every tail."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tile_harness import buffer, compare, const, kernel, load, op, random_values, sym, tile

from fusec.ir.types import bf16, bool_, f16, f32, f64, i8, i32, i64
from fusec.target.cpu import cpu_target
from fusec.tile.nodes import Alloc, Iter, Reduce, Store

V3 = cpu_target("cpu:x86-64-v3")


def reduction(shape, axes, reduce_op, dtype=f32, fresh=True, target_dtype=None, limit=None):
    """out[kept] = reduce over axes of x."""
    x = buffer("x", dtype, shape)
    symbols = [sym(f"i{n}", extent) for n, extent in enumerate(shape)]
    kept = [n for n in range(len(shape)) if n not in axes]
    out = buffer("out", target_dtype or dtype, tuple(shape[n] for n in kept))
    domain = tuple(Iter(s, n, limit if axis in axes else None) for axis, (s, n) in enumerate(zip(symbols, shape)))
    place = tuple(symbols[n] for n in kept)
    statements = (Reduce(domain, out, place, reduce_op, load(x, *symbols), fresh),)
    if not fresh:
        first = Store(tuple(Iter(symbols[n], shape[n]) for n in kept), out, place, const(3, out.dtype))
        statements = (first, *statements)
    return kernel("reduce", (x, out), statements)


SHAPES = [
    ((7, 33), (1,)),
    ((7, 33), (0,)),
    ((7, 130), (0,)),
    ((5, 4, 37), (0, 2)),
    ((5, 4, 37), (1,)),
    ((3, 300), (1,)),
    ((300, 19), (0,)),
    ((70,), (0,)),
    ((4, 1), (1,)),
    ((1, 4), (0,)),
    ((3, 0), (1,)),
    ((0, 3), (0,)),
]


@pytest.mark.sweep(1)
@pytest.mark.parametrize("reduce_op", ["sum", "max"])
@pytest.mark.parametrize(("shape", "axes"), SHAPES)
def test_shapes(shape, axes, reduce_op):
    compare(reduction(shape, axes, reduce_op), atol=1e-5)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("dtype", [f64, f16, bf16, i8, i32, i64], ids=str)
@pytest.mark.parametrize("reduce_op", ["sum", "prod", "max", "min"])
def test_dtypes(dtype, reduce_op):
    tolerance = {"f16": 2e-3, "bf16": 2e-2}.get(dtype.name, 1e-12)
    compare(reduction((3, 37), (1,), reduce_op, dtype), rtol=tolerance, atol=tolerance)
    compare(reduction((37, 19), (0,), reduce_op, dtype), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("axes", [(0,), (1,)])
@pytest.mark.parametrize("reduce_op", ["any", "all"])
def test_bool(reduce_op, axes):
    compare(reduction((21, 35), axes, reduce_op, bool_))
    compare(reduction((21, 35), axes, reduce_op, bool_, fresh=False))


@pytest.mark.parametrize("axes", [(0,), (1,)])
def test_joins_what_the_target_held(axes):
    compare(reduction((21, 35), axes, "sum", fresh=False), atol=1e-5)
    compare(reduction((21, 35), axes, "max", fresh=False))


@pytest.mark.parametrize("axes", [(0,), (1,)])
def test_narrow_vectors(axes):
    compare(reduction((21, 35), axes, "min"), target=V3)


@pytest.mark.parametrize("axes", [(0,), (1,)])
@pytest.mark.parametrize("reduce_op", ["max", "min", "sum"])
def test_nan_and_infinity_propagate(reduce_op, axes):
    values = random_values(buffer("x", f32, (20, 50)), 0)
    values[3, 4] = np.nan
    values[5, 6] = np.inf
    values[7, 49] = np.nan
    (out,) = compare(reduction((20, 50), axes, reduce_op), [values], atol=1e-5)
    assert np.isnan(out).sum() == 2


@pytest.mark.sweep(1)
@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("dtype", [f32, bf16, f64, i32], ids=str)
@pytest.mark.parametrize(
    ("shape", "axes", "by"),
    [
        ((7, 33), (1,), (0,)),
        ((7, 64), (1,), (0,)),
        ((7, 33), (0,), (0,)),
        ((70, 64), (0,), (0,)),
        ((300, 19), (0,), (0,)),
        ((5, 4, 37), (0, 2), (1,)),
        ((5, 4, 37), (0, 2), (0, 1)),
        ((5, 4, 37), (1, 2), (0,)),
        ((5, 9, 37), (1,), (0, 1)),
        ((5, 9, 37), (0, 1), (1,)),
        ((3, 300), (1,), (0,)),
        ((3, 0), (1,), (0,)),
        ((0, 3), (0,), (0,)),
    ],
)
def test_a_branch_around_what_is_hidden(shape, axes, by, dtype, fresh):
    """NaN that is hidden is not seen, in whatever order the iterators are reduced."""
    whole = reduction(shape, axes, "sum", dtype, fresh)
    *before, total = whole.body
    symbols = [it.var for it in total.domain]
    mask = buffer("mask", bool_, tuple(shape[axis] for axis in by))
    seen = load(mask, *(symbols[axis] for axis in by))
    value = op("select", seen, total.value, const(0, dtype), dtype=dtype)
    branching = replace(total, value=value, branches=True)
    k = kernel("seen", (mask, *whole.parameters), (*before, branching))
    shown = random_values(mask, 1)
    values = random_values(whole.parameters[0], 0)
    if dtype.is_float:
        hidden = ~shown.reshape([n if axis in by else 1 for axis, n in enumerate(shape)])
        values[np.broadcast_to(hidden, shape)] = np.nan
    tolerance = 2e-2 if dtype is bf16 else 1e-5
    (out,) = compare(k, [shown, values], rtol=tolerance, atol=tolerance)
    assert not np.isnan(out.astype(np.float64)).any()


def test_a_limit_that_depends_on_a_kept_iterator():
    x, out = buffer("x", f32, (19, 40)), buffer("out", f32, (19,))
    i, j = sym("i", 19), sym("j", 40)
    compare(kernel("tri", (x, out), (Reduce((Iter(i, 19), Iter(j, 40, 2 * i - 1)), out, (i,), "sum", load(x, i, j)),)))


def test_a_limit_on_the_kept_iterator_that_depends_on_a_reduced_one():
    x, out = buffer("x", f32, (19, 40)), tile("acc", f32, (40,))
    result = buffer("result", f32, (40,))
    i, j = sym("i", 19), sym("j", 40)
    body = (
        Alloc(out),
        Reduce((Iter(i, 19), Iter(j, 40, 2 * i + 1)), out, (j,), "max", load(x, i, j)),
        Store((Iter(j, 40),), result, (j,), load(out, j)),
    )
    compare(kernel("tri", (x, result), body))


def test_a_mapped_value_is_reduced():
    x, y, out = buffer("x", f32, (6, 100)), buffer("y", f32, (6,)), buffer("out", f32, (6,))
    i, j = sym("i", 6), sym("j", 100)
    value = op("exp", op("sub", load(x, i, j), load(y, i)))
    compare(kernel("expsum", (x, y, out), (Reduce((Iter(i, 6), Iter(j, 100)), out, (i,), "sum", value),)), rtol=1e-5)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_long_sum_keeps_its_accuracy(axis):
    n = 1 << 20
    shape = (1, n) if axis == 1 else (n, 1)
    x, out = buffer("x", f32, shape), buffer("out", f32, (1,))
    i, j = sym("i", shape[0]), sym("j", shape[1])
    k = kernel(
        "sum",
        (x, out),
        (Reduce((Iter(i, shape[0]), Iter(j, shape[1])), out, (j if axis == 0 else i,), "sum", load(x, i, j)),),
    )
    from fusec.codegen.tvm.build import compile_kernels

    values = np.random.default_rng(0).random(shape, np.float32)
    result = np.zeros(1, np.float32)
    compile_kernels([k], cpu_target()).function("sum")(values.ctypes.data, result.ctypes.data)
    exact = values.astype(np.float64).sum()
    assert abs(result[0] - exact) / exact < 2e-6
