"""The interpreter is strict: each way of breaking a kernel's contract raises or shows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tile_harness import buffer, const, iters, kernel, load, op, sym, tile

from fusec.errors import VerifyError
from fusec.ir.index import Index, minimum
from fusec.ir.types import bf16, bool_, f32, i32, i64
from fusec.tile.interpret import run
from fusec.tile.kernel import Kernel
from fusec.tile.nodes import Alloc, Dot, Grid, If, Iter, Loop, Map, Reduce, RegisterTile, Store
from fusec.tile.scalar import IndexValue

i, j, s, b = sym("i", 4), sym("j", 6), sym("s", 3), sym("b", 2)


def test_map_through_scratch():
    x, out, t = buffer("x", f32, (4, 6)), buffer("out", f32, (6, 4)), tile("t", f32, (4, 6))
    body = (
        Alloc(t),
        Map(iters((i, 4), (j, 6)), t, (i, j), op("mul", load(x, i, j), const(2.0, f32))),
        Store(iters((j, 6), (i, 4)), out, (j, i), load(t, i, j)),
    )
    values, result = np.arange(24, dtype=np.float32).reshape(4, 6), np.zeros((6, 4), np.float32)
    run(kernel("t", (x, out), body), [values, result])
    np.testing.assert_array_equal(result, 2 * values.T)


def test_reduce_and_limits():
    x, out = buffer("x", f32, (4, 6)), buffer("out", f32, (4,))
    values, result = np.ones((4, 6), np.float32), np.zeros(4, np.float32)
    body = (Reduce((Iter(i, 4), Iter(j, 6, 2 * i)), out, (i,), "sum", load(x, i, j)),)
    run(kernel("r", (x, out), body), [values, result])
    np.testing.assert_array_equal(result, [0, 2, 4, 6])


def test_dot_leaves_rubbish_beyond_its_limits():
    a, bb, out = buffer("a", f32, (3, 3)), buffer("b", f32, (3, 6)), buffer("out", f32, (4, 6))
    acc = tile("acc", f32, (4, 8))
    n = sym("n", 6)
    dot = Dot(
        Iter(i, 4, 3), Iter(n, 6), Iter(s, 3), load(acc, i, n), load(a, i, s), load(bb, s, n), True, RegisterTile(2, 8)
    )
    body = (Alloc(acc), dot, Store(iters((i, 4), (j, 6)), out, (i, j), load(acc, i, j)))
    x, y, result = (
        np.eye(3, dtype=np.float32),
        np.arange(18, dtype=np.float32).reshape(3, 6),
        np.zeros((4, 6), np.float32),
    )
    run(kernel("d", (a, bb, out), body), [x, y, result])
    np.testing.assert_array_equal(result[:3], y)
    assert np.isnan(result[3]).all()


def test_loop_and_if():
    out = buffer("out", i32, (4,))
    even = op("eq", IndexValue(i % 2), const(0, i64), dtype=bool_)
    body = Loop(
        i,
        0,
        4,
        1,
        (
            If(
                even,
                (Store((), out, (i,), const(1, i32)),),
                (Store((), out, (i,), op("cast", IndexValue(i), dtype=i32)),),
            ),
        ),
    )
    result = np.zeros(4, np.int32)
    run(kernel("l", (out,), (body,)), [result])
    np.testing.assert_array_equal(result, [1, 1, 1, 3])


def test_half_types_round_once_at_the_store():
    x, out = buffer("x", bf16, (4,)), buffer("out", bf16, (4,))
    value = op("sub", op("add", load(x, i), const(0.001, bf16)), load(x, i))
    values = np.ones(4, bf16.numpy)
    result = np.zeros(4, bf16.numpy)
    run(kernel("h", (x, out), (Store(iters((i, 4)), out, (i,), value),)), [values, result])
    assert (abs(result.astype(np.float32) - 0.001) < 1e-5).all()


def test_scratch_starts_undefined():
    out, t = buffer("out", f32, (4,)), tile("t", f32, (4,))
    count, u = buffer("count", i32, (4,)), tile("u", i32, (4,))
    body = (
        Alloc(t),
        Alloc(u),
        Store(iters((i, 4)), out, (i,), load(t, i)),
        Store(iters((i, 4)), count, (i,), load(u, i)),
    )
    floats, integers = np.zeros(4, np.float32), np.zeros(4, np.int32)
    run(kernel("u", (out, count), body, outputs=2), [floats, integers])
    assert np.isnan(floats).all()
    assert (integers == 0x5A5A5A5A).all()


def test_out_of_bounds_raises_but_not_on_the_side_of_a_select_that_is_not_taken():
    x, out = buffer("x", f32, (3,)), buffer("out", f32, (4,))
    bad = kernel("bad", (x, out), (Store(iters((i, 4)), out, (i,), load(x, i)),))
    arrays = [np.ones(3, np.float32), np.zeros(4, np.float32)]
    with pytest.raises(VerifyError, match=r"bad: subscript \(3,\) is outside x \[3\]"):
        run(bad, arrays)
    inside = op("lt", IndexValue(i), const(3, i64), dtype=bool_)
    value = op("select", inside, load(x, i), const(5.0, f32))
    run(kernel("good", (x, out), (Store(iters((i, 4)), out, (i,), value),)), arrays)
    np.testing.assert_array_equal(arrays[1], [1, 1, 1, 5])


def test_two_grid_points_that_write_one_element():
    out = buffer("out", f32, (4,))
    body = Grid((Iter(b, 2),), (Store(iters((i, 4)), out, (i,), const(1.0, f32)),))
    with pytest.raises(VerifyError, match="two grid points use the same element of out"):
        run(kernel("race", (out,), (body,)), [np.zeros(4, np.float32)])


def test_a_grid_point_that_reads_what_another_writes():
    x = buffer("x", f32, (2,))
    body = Grid((Iter(b, 2),), (Store((), x, (b,), load(x, 1 - b)),))
    with pytest.raises(VerifyError, match=r"another wrote to x|the same element of x"):
        run(kernel("race", (x,), (body,)), [np.zeros(2, np.float32)])


def test_arguments_are_checked():
    out = buffer("out", f32, (4,))
    k = kernel("k", (out,), (Store(iters((i, 4)), out, (i,), const(1.0, f32)),))
    with pytest.raises(VerifyError, match="not float64"):
        run(k, [np.zeros(4)])


def posting(at: Index, waits: int) -> Kernel:
    """Three points that post numbers at ``at``; each adds up those of the first ``waits``."""
    out, words, t = buffer("out", f32, (3,)), buffer("words", f32, (3, 2)), tile("t", f32, (1,))
    one = iters((sym("one", 1), 1))
    body = (
        Store(one, words, (at, 0), op("cast", IndexValue(s, i64), dtype=f32), posts=True),
        Alloc(t),
        Reduce((Iter(j, 6, waits),), t, (0,), "sum", load(words, j, 0), awaits=True),
        Store(one, out, (s,), load(t, 0)),
    )
    return replace(kernel("p", (words, out), (Grid(iters((s, 3)), body),)), language="triton")


def test_what_earlier_points_post_may_be_read():
    words, result = np.zeros((3, 2), np.float32), np.zeros(3, np.float32)
    run(posting(s, s + 1), [words, result])
    np.testing.assert_array_equal(result, [0, 1, 3])
    np.testing.assert_array_equal(words[:, 1], 1)


@pytest.mark.parametrize(("at", "waits"), [(s, s + 2), (2 - s, s + 1)], ids=["of a later point", "in another order"])
def test_waiting_for_what_no_earlier_point_posts(at, waits):
    with pytest.raises(VerifyError, match="waits for what none before it posts"):
        run(posting(at, minimum(waits, 3)), [np.zeros((3, 2), np.float32), np.zeros(3, np.float32)])
