"""Transposed operands: square blocks transposed in registers, and everything around them."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tile_harness import buffer, compare, const, iters, kernel, load, op, sym, tile

from fusec.codegen.tvm.build import compile_kernels
from fusec.ir.types import bf16, bool_, f16, f32, f64, i8, i16, i32, i64, u8
from fusec.target.cpu import cpu_target
from fusec.tile.nodes import Alloc, Grid, Iter, Loop, Map, Store
from fusec.tile.scalar import IndexValue

V3 = cpu_target("cpu:x86-64-v3")


def transposed(n, m, dtype=f32, value=None, domain=None):
    """out[i, j] = f(x[j, i])."""
    x, out, i, j = buffer("x", dtype, (m, n)), buffer("out", dtype, (n, m)), sym("i", n), sym("j", m)
    make = value or (lambda e, i, j: e)
    body = Store((domain or iters)((i, n), (j, m)), out, (i, j), make(load(x, j, i), i, j))
    return kernel("turn", (x, out), (body,))


@pytest.mark.sweep
@pytest.mark.parametrize("target", [cpu_target(), V3], ids=["host", "avx2"])
@pytest.mark.parametrize("n", [16, 17, 64, 100])
@pytest.mark.parametrize("m", [16, 31, 64])
def test_sizes(n, m, target):
    compare(transposed(n, m), target=target)


@pytest.mark.parametrize("dtype", [f64, f16, bf16, i8, i64, bool_], ids=str)
def test_dtypes(dtype):
    compare(transposed(70, 37, dtype))


def test_a_computed_value_and_a_second_operand():
    n, m = 40, 50
    x, y, z = buffer("x", f32, (m, n)), buffer("y", f32, (n, m)), buffer("z", f32, (m,))
    out, i, j = buffer("out", f32, (n, m)), sym("i", n), sym("j", m)
    value = op("add", op("mul", op("exp", load(x, j, i)), load(y, i, j)), op("add", load(z, j), load(x, j, i)))
    compare(kernel("k", (x, y, z, out), (Store(iters((i, n), (j, m)), out, (i, j), value),)), rtol=1e-5)


def test_limits():
    n, m = 40, 50

    def limited(*pairs):
        (i, _), (j, _) = pairs
        return (Iter(i, n, 35), Iter(j, m, 47))

    compare(transposed(n, m, domain=limited))


def test_limits_of_scratch_in_a_loop():
    """Blocks of 24 by 40 of a larger matrix, the last ones smaller."""
    x, out = buffer("x", f32, (100, 90)), buffer("out", f32, (90, 100))
    b, c, i, j = sym("b", 4), sym("c", 3), sym("i", 24), sym("j", 40)
    rows, columns = Iter(i, 24, 90 - 24 * b), Iter(j, 40, 100 - 40 * c)
    scratch = tile("scratch", f32, (24, 40), (48, 1))
    body = (
        Alloc(scratch),
        Map((rows, columns), scratch, (i, j), load(x, 40 * c + j, 24 * b + i)),
        Store((rows, columns), out, (24 * b + i, 40 * c + j), op("neg", load(scratch, i, j))),
    )
    compare(kernel("blocks", (x, out), (Grid((Iter(b, 4),), (Loop(c, 0, 3, 1, body),)),)))


def test_a_limit_that_depends_on_the_transposed_iterator():
    n, m = 40, 50
    compare(transposed(n, m, domain=lambda *pairs: (Iter(pairs[0][0], n), Iter(pairs[1][0], m, pairs[0][0] + 3))))


def test_loads_that_a_select_guards():
    """Rows of x beyond the 20 that exist are not read."""
    n, m = 40, 48
    x, out, i, j = buffer("x", f32, (20, n)), buffer("out", f32, (n, m)), sym("i", n), sym("j", m)
    inside = op("lt", IndexValue(j), const(20, i64), dtype=bool_)
    value = op("select", inside, load(x, j, i), const(-1.0, f32))
    (result,) = compare(kernel("pad", (x, out), (Store(iters((i, n), (j, m)), out, (i, j), value),)))
    assert (result[:, 20:] == -1).all()


def test_lanes_follow_the_memory_of_the_target():
    """The domain's last iterator is the slow one of the output."""
    n, m = 40, 50
    x, out, i, j = buffer("x", f32, (m, n)), buffer("out", f32, (n, m)), sym("i", n), sym("j", m)
    compare(kernel("turn", (x, out), (Store(iters((j, m), (i, n)), out, (i, j), load(x, j, i)),)))


def test_packing_into_panels():
    """w[n, k] into panels[n // 32, k, n % 32]."""
    n, k = 96, 50
    w, panels = buffer("w", f32, (n, k)), buffer("panels", f32, (3, k, 32))
    p, s, j = sym("p", 3), sym("s", k), sym("j", 32)
    body = Grid((Iter(p, 3),), (Store(iters((s, k), (j, 32)), panels, (p, s, j), load(w, 32 * p + j, s)),))
    (result,) = compare(kernel("pack", (w, panels), (body,)))
    assert result.shape == (3, k, 32)


def test_three_axes_permuted():
    x, out = buffer("x", f32, (20, 30, 40)), buffer("out", f32, (40, 20, 30))
    a, b, c = sym("a", 20), sym("b", 30), sym("c", 40)
    body = (Store(iters((c, 40), (a, 20), (b, 30)), out, (c, a, b), load(x, a, b, c)),)
    values = np.arange(24000, dtype=np.float32).reshape(20, 30, 40)
    (result,) = compare(kernel("permute", (x, out), body), [values])
    np.testing.assert_array_equal(result, values.transpose(2, 0, 1))


NARROWED = [(i32, bf16), (i32, f16), (i32, i8), (i32, i16), (i32, u8), (i64, i32), (i64, i16), (i64, f32), (f64, f32)]


@pytest.mark.parametrize(("wide", "dtype"), NARROWED, ids=str)
def test_one_element_beyond_the_last_vector(wide, dtype):
    """LLVM 22 makes one store of all bits of a masked store of one narrowed lane, if it knows that it is one."""
    for n in (17, 33):
        x, out, i, p = buffer("x", wide, (n,)), buffer("out", dtype, (n,)), sym("i", 48), sym("p", 1)
        whole = Store(iters((i, n)), out, (i,), op("cast", load(x, i), dtype=dtype))
        limited = Store((Iter(i, 48, n - p),), out, (i,), op("cast", load(x, i), dtype=dtype))
        for store in (whole, limited):
            compare(kernel("narrow", (x, out), (Grid((Iter(p, 1),), (store,)),)))


def every_other(n, dtype=f32, first=0, rows=3):
    """out[i, j] = the largest of x[i, 2j + first] and of its neighbour, the last of which is the last of x."""
    x, out = buffer("x", dtype, (rows, 2 * n + first)), buffer("out", dtype, (rows, n))
    i, j = sym("i", rows), sym("j", n)
    value = op("maximum", load(x, i, 2 * j + first), load(x, i, 2 * j + first + 1 if first == 0 else 2 * j + 1))
    return kernel("every_other", (x, out), (Store(iters((i, rows), (j, n)), out, (i, j), value),))


@pytest.mark.parametrize("target", [cpu_target(), V3], ids=["host", "avx2"])
@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 100])
def test_every_other_element(n, target):
    compare(every_other(n), target=target)
    compare(every_other(n, first=3), target=target)


@pytest.mark.parametrize("dtype", [f64, f16, bf16, i8, i32, i64, u8], ids=str)
def test_every_other_element_of_other_dtypes(dtype):
    compare(every_other(37, dtype))


def side_by_side(n, dtype=f32, results=4, combine="add"):
    """out[i, 4 * k + r, j]: what five places of x along its second axis make together, four results at a time."""
    x, w = buffer("x", dtype, (2, 3 * results + 4, n)), buffer("w", f32, (5, n))
    out = buffer("out", dtype, (2, 3 * results, n))
    i, k, j = sym("i", 2), sym("k", 3), sym("j", n)
    stores = []
    for r in range(results):
        seen = [load(x, i, results * k + r + place, j) for place in range(5)]
        wide = [e if dtype in (f32, f64) else op("cast", e, dtype=f32) for e in seen]
        if combine == "add" and dtype is not f64:
            wide = [op("mul", e, load(w, place, j)) for place, e in enumerate(wide)]
        value = wide[0]
        for e in wide[1:]:
            value = op(combine, value, e)
        where = (i, results * k + r, j)
        stores.append(Store(iters((i, 2), (k, 3), (j, n)), out, where, value, beside=r > 0))
    return kernel("side_by_side", (x, w, out), tuple(stores))


@pytest.mark.parametrize("target", [cpu_target(), V3], ids=["host", "avx2"])
@pytest.mark.parametrize("n", [1, 7, 16, 33, 96])
def test_results_beside_each_other(n, target):
    compare(side_by_side(n), target=target)
    compare(side_by_side(n, combine="maximum"), target=target)


@pytest.mark.parametrize("dtype", [f64, f16, bf16], ids=str)
def test_results_beside_each_other_of_other_dtypes(dtype):
    compare(side_by_side(37, dtype), rtol=1e-5 if dtype is f64 else 1e-2, atol=1e-2 if dtype is not f64 else 1e-6)
    compare(side_by_side(37, dtype, combine="maximum"))


def test_what_results_beside_each_other_share_is_read_once():
    """Eight values of x and five of w for four results, which have twenty products; three times, as LLVM unrolls."""
    text = compile_kernels([side_by_side(16)], cpu_target("cpu:x86-64-v4")).assembly()
    assert 8 <= len(re.findall(r"vmovups\t[^%\n]*\(.*\), %zmm", text)) <= 3 * (8 + 5)
