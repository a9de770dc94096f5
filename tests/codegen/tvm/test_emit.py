"""Compiled kernels against the interpreter: domains, tails, strides, loops, grids."""

from __future__ import annotations

import numpy as np
import pytest
from tile_harness import buffer, compare, const, iters, kernel, load, op, sym, tile

from fusec.codegen.tvm.build import compile_kernels
from fusec.ir.index import maximum, minimum
from fusec.ir.types import bf16, bool_, f16, f32, f64, i8, i32, i64, u8
from fusec.target.cpu import cpu_target
from fusec.tile.nodes import Alloc, Dot, Grid, If, Iter, Loop, Map, Reduce, RegisterTile, Store
from fusec.tile.scalar import IndexValue

V3 = cpu_target("cpu:x86-64-v3")
HOST = cpu_target()


@pytest.mark.parametrize("target", [HOST, V3], ids=["host", "avx2"])
@pytest.mark.parametrize("n", [0, 1, 3, 8, 15, 16, 17, 31, 67])
def test_elementwise_sizes(n, target):
    x, y, out = (buffer(name, f32, (n,)) for name in ("x", "y", "out"))
    i = sym("i", n)
    value = op("add", op("mul", load(x, i), load(y, i)), op("exp", load(x, i)))
    compare(kernel("axpy", (x, y, out), (Store(iters((i, n)), out, (i,), value),)), target=target)


@pytest.mark.parametrize("strides", [(40, 1), (1, 5), (80, 2), (-40, 1), (40, -1), (-40, -3), (0, 1), (1, 0), (0, 0)])
def test_input_strides(strides):
    x, out = buffer("x", f32, (5, 19), strides), buffer("out", f32, (5, 19))
    i, j = sym("i", 5), sym("j", 19)
    values = np.random.default_rng(0).normal(size=(5, 19)).astype(np.float32)
    values[1:, :] = values[:1, :] if strides[0] == 0 else values[1:, :]
    values[:, 1:] = values[:, :1] if strides[1] == 0 else values[:, 1:]
    body = (Store(iters((i, 5), (j, 19)), out, (i, j), op("neg", load(x, i, j))),)
    (result,) = compare(kernel("strided", (x, out), body), [values])
    np.testing.assert_array_equal(result, -values)


@pytest.mark.parametrize("strides", [(40, 1), (1, 5), (-40, 2), (40, -1)])
def test_output_strides(strides):
    x, out = buffer("x", f32, (5, 19)), buffer("out", f32, (5, 19), strides)
    i, j = sym("i", 5), sym("j", 19)
    compare(kernel("scatter", (x, out), (Store(iters((i, 5), (j, 19)), out, (i, j), load(x, i, j)),)))


def test_subscripts_with_division_and_remainder():
    x, out = buffer("x", f32, (6, 7)), buffer("out", f32, (42,))
    i = sym("i", 42)
    (result,) = compare(
        kernel("reshape", (x, out), (Store(iters((i, 42)), out, (i,), load(x, (41 - i) // 7, (41 - i) % 7)),)),
        [np.arange(42, dtype=np.float32).reshape(6, 7)],
    )
    np.testing.assert_array_equal(result, np.arange(42)[::-1])


def test_index_arithmetic_on_negative_numbers():
    out = buffer("out", i64, (23,))
    i = sym("i", 23)
    value = op("add", op("mul", IndexValue((i - 11) // 4), const(100, i64)), IndexValue((i - 11) % 4))
    (result,) = compare(kernel("floor", (out,), (Store(iters((i, 23)), out, (i,), value),)))
    numbers = np.arange(23) - 11
    np.testing.assert_array_equal(result, numbers // 4 * 100 + numbers % 4)


@pytest.mark.parametrize("n", [5, 16, 37])
@pytest.mark.parametrize("kind", [i32, i64])
def test_gather(n, kind):
    table, which, out = buffer("table", f32, (10, 4)), buffer("which", kind, (n,)), buffer("out", f32, (n, 4))
    i, j = sym("i", n), sym("j", 4)
    picks = np.random.default_rng(1).integers(0, 10, n).astype(kind.numpy)
    body = (Store(iters((j, 4), (i, n)), out, (i, j), load(table, load(which, i), j)),)
    compare(kernel("gather", (table, which, out), body), [np.arange(40, dtype=np.float32).reshape(10, 4), picks])


@pytest.mark.parametrize("width", [3, 16, 53])
def test_rows_picked_by_a_number_are_read_as_vectors(width):
    table, which, out = buffer("table", f32, (10, 60)), buffer("which", i64, (7,)), buffer("out", f32, (7, width))
    i, j = sym("i", 7), sym("j", width)
    picks = np.array([3, 9, 0, 9, 1, 2, 8])
    body = (
        Store(iters((i, 7), (j, width)), out, (i, j), op("mul", load(table, load(which, i), j + 2), const(2.0, f32))),
    )
    picking = kernel("rows", (table, which, out), body)
    compare(picking, [np.arange(600, dtype=np.float32).reshape(10, 60), picks])


def test_select_guards_loads_outside_the_buffer():
    x, out = buffer("x", f32, (5,)), buffer("out", f32, (40,))
    i = sym("i", 40)
    inside = op(
        "logical_and",
        op("ge", IndexValue(i - 3), const(0, i64), dtype=bool_),
        op("lt", IndexValue(i - 3), const(5, i64), dtype=bool_),
        dtype=bool_,
    )
    value = op("select", inside, load(x, i - 3), const(7.0, f32))
    (result,) = compare(kernel("pad", (x, out), (Store(iters((i, 40)), out, (i,), value),)))
    assert (result[8:] == 7).all()
    assert (result[3:8] != 7).all()


@pytest.mark.parametrize("width", [64, 21])
def test_lanes_stay_neighbours_where_another_subscript_is_guarded(width):
    """A row that a pooling window has outside of the image, in blocks of rows of which the last is shorter."""
    x, out = buffer("x", f32, (10, width)), buffer("out", f32, (10, width))
    b, r, j = sym("b", 3), sym("r", 4), sym("j", width)
    row = 4 * b + r
    inside = op("ge", IndexValue(row - 1), const(0, i64), dtype=bool_)
    value = op("select", inside, load(x, row - 1, j), const(-1.0, f32))
    body = (Store((Iter(r, 4, 10 - 4 * b), Iter(j, width)), out, (row, j), value),)
    shifted = kernel("shift", (x, out), (Grid((Iter(b, 3),), body),))
    (result,) = compare(shifted)
    assert (result[0] == -1).all()
    text = compile_kernels([shifted], HOST).source("shift")
    assert "vp.mul" not in text
    assert "T.max(" in text  # row -1 lies before the buffer, and is not read


def test_limits_that_depend_on_outer_iterators():
    x, out = buffer("x", f32, (9, 20)), buffer("out", f32, (9, 20))
    i, j = sym("i", 9), sym("j", 20)
    body = (Store((Iter(i, 9), Iter(j, 20, 3 * i - 2)), out, (i, j), load(x, i, j)),)
    compare(kernel("triangle", (x, out), body))


def test_grid_loop_if_and_scratch():
    x, out = buffer("x", f32, (50, 33)), buffer("out", f32, (50, 33))
    b, i, j, step = sym("b", 7), sym("i", 8), sym("j", 33), sym("step", 3)
    scratch = tile("scratch", f32, (8, 33), (48, 1))
    rows = Iter(i, 8, 50 - 8 * b)
    whole = op("lt", IndexValue(b), const(6, i64), dtype=bool_)
    body = (
        Alloc(scratch),
        Map((rows, Iter(j, 33)), scratch, (i, j), load(x, 8 * b + i, j)),
        Loop(
            step,
            b,
            minimum(b + 3, 7),
            2,
            (
                Map(
                    (rows, Iter(j, 33)),
                    scratch,
                    (i, j),
                    op("add", load(scratch, i, j), op("cast", IndexValue(step), dtype=f32)),
                ),
            ),
        ),
        If(
            whole,
            (Store((rows, Iter(j, 33)), out, (8 * b + i, j), load(scratch, i, j)),),
            (Store((rows, Iter(j, 33)), out, (8 * b + i, j), op("neg", load(scratch, i, j))),),
        ),
    )
    compare(kernel("blocks", (x, out), (Grid((Iter(b, 7),), body),)))


def test_two_dimensional_grid_with_limit():
    out = buffer("out", i32, (6, 5))
    a, b, k = sym("a", 3), sym("b", 5), sym("k", 2)
    value = op("cast", IndexValue(10 * a + b), dtype=i32)
    body = Grid((Iter(a, 3, 2), Iter(b, 5)), (Store(iters((k, 2)), out, (2 * a + k, b), value),))
    compare(kernel("grid", (out,), (body,)))


def test_large_scratch_comes_from_the_heap():
    x, out = buffer("x", f32, (2, 100_000)), buffer("out", f32, (2, 100_000))
    b, i = sym("b", 2), sym("i", 100_000)
    scratch = tile("scratch", f32, (100_000,))
    body = (
        Alloc(scratch),
        Map(iters((i, 100_000)), scratch, (i,), op("mul", load(x, b, i), const(2.0, f32))),
        Store(iters((i, 100_000)), out, (b, i), load(scratch, 99_999 - i)),
    )
    compare(kernel("heap", (x, out), (Grid((Iter(b, 2),), body),)))


def test_a_scalar_kernel_without_iterators():
    x, out = buffer("x", f64, ()), buffer("out", f64, ())
    compare(kernel("scalar", (x, out), (Store((), out, (), op("sqrt", op("abs", load(x)))),)))


def test_in_place_update():
    x = buffer("x", f32, (37,))
    i = sym("i", 37)
    k = kernel("double", (x,), (Store(iters((i, 37)), x, (i,), op("add", load(x, i), load(x, i))),))
    values = np.arange(37, dtype=np.float32)
    compile_kernels([k], HOST).function("double")(values.ctypes.data)
    np.testing.assert_array_equal(values, 2.0 * np.arange(37))


@pytest.mark.parametrize("dtype", [f16, bf16, f32, f64])
def test_pointers_need_only_the_alignment_of_an_element(dtype):
    n = 45
    x, out = buffer("x", dtype, (n,)), buffer("out", dtype, (n,))
    i = sym("i", n)
    compare(kernel("copy", (x, out), (Store(iters((i, n)), out, (i,), load(x, i)),)))


def test_several_outputs_and_mixed_types():
    n = 29
    x, y = buffer("x", bf16, (n,)), buffer("y", u8, (n,))
    total, flag, count = buffer("total", f32, (n,)), buffer("flag", bool_, (n,)), buffer("count", i8, (n,))
    i = sym("i", n)
    added = op("add", op("cast", load(x, i), dtype=f32), op("cast", load(y, i), dtype=f32))
    body = (
        Store(iters((i, n)), total, (i,), added),
        Store(iters((i, n)), flag, (i,), op("gt", added, const(50.0, f32), dtype=bool_)),
        Store(iters((i, n)), count, (i,), op("cast", added, dtype=i8)),
    )
    compare(kernel("mixed", (x, y, total, flag, count), body, outputs=3))


def test_uniform_values_are_computed_before_the_lanes():
    x, s, out = buffer("x", f32, (6, 35)), buffer("s", f32, (6,)), buffer("out", f32, (6, 35))
    i, j = sym("i", 6), sym("j", 35)
    value = op("mul", load(x, i, j), op("exp", load(s, i)))
    compare(kernel("rows", (x, s, out), (Store((Iter(i, 6), Iter(j, 35, maximum(i, 0) + 20)), out, (i, j), value),)))


def test_offsets_beyond_two_to_the_31():
    """Rows 2**31 elements apart; only the pages that are touched exist."""
    apart, n = 2**31, 37
    x, out = buffer("x", u8, (2, n), (apart, 1)), buffer("out", u8, (2, n))
    i, j = sym("i", 2), sym("j", n)
    k = kernel("far", (x, out), (Store(iters((i, 2), (j, n)), out, (i, j), load(x, i, j)),))
    memory, result = np.zeros(apart + n, np.uint8), np.zeros((2, n), np.uint8)
    memory[:n], memory[apart:] = 1, np.arange(n)
    compile_kernels([k], HOST).function("far")(memory.ctypes.data, result.ctypes.data)
    assert (result[0] == 1).all()
    np.testing.assert_array_equal(result[1], np.arange(n))


def test_index_values_beyond_two_to_the_31():
    out = buffer("out", i64, (20,))
    i = sym("i", 20)
    (result,) = compare(kernel("big", (out,), (Store(iters((i, 20)), out, (i,), IndexValue(i * 2**32 - 5)),)))
    np.testing.assert_array_equal(result, np.arange(20) * 2**32 - 5)


@pytest.mark.parametrize("reduce_op", ["sum", "max"])
def test_wide_indices_in_every_statement(reduce_op):
    far = buffer("far", f32, (2, 40), (2**31, 1))
    out, total, product = buffer("out", f32, (40,)), buffer("total", f32, (2,)), buffer("product", f32, (2, 40))
    i, j, s = sym("i", 2), sym("j", 40), sym("s", 2)
    registers = RegisterTile(2, 32)
    dot = Dot(
        Iter(i, 2), Iter(j, 40), Iter(s, 2), load(product, i, j), load(far, i, s), load(far, s, j), True, registers
    )
    body = (
        Reduce(iters((i, 2), (j, 40)), out, (j,), reduce_op, load(far, i, j)),
        Reduce(iters((i, 2), (j, 40)), total, (i,), reduce_op, load(far, i, j)),
        Loop(sym("u", 1), 0, 1, 1, (dot,)),
    )
    memory = np.zeros(2**31 + 40, np.float32)
    memory[:40], memory[2**31 :] = np.arange(40), np.arange(40)[::-1]
    x = np.stack([memory[:40], memory[2**31 :]])
    results = [np.zeros(40, np.float32), np.zeros(2, np.float32), np.zeros((2, 40), np.float32)]
    k = kernel("far", (far, out, total, product), body, outputs=3)
    compile_kernels([k], HOST).function("far")(memory.ctypes.data, *(r.ctypes.data for r in results))
    ufunc = np.add if reduce_op == "sum" else np.maximum
    np.testing.assert_array_equal(results[0], ufunc.reduce(x, axis=0))
    np.testing.assert_array_equal(results[1], ufunc.reduce(x, axis=1))
    np.testing.assert_array_equal(results[2], x[:, :2] @ x)
