"""Each broken kernel is named by the verifier's message."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tile_harness import buffer, const, iters, kernel, load, op, sym, tile

from fusec.errors import VerifyError
from fusec.ir.types import bf16, bool_, f32, i64
from fusec.tile.nodes import Alloc, Dot, Grid, If, Iter, Loop, Map, Reduce, RegisterTile, Store
from fusec.tile.scalar import IndexValue
from fusec.tile.verify import verify

i, j, s = sym("i", 4), sym("j", 32), sym("s", 3)
X, OUT, T = buffer("x", f32, (4, 32)), buffer("out", f32, (4, 32)), tile("t", f32, (4, 32))
DOMAIN = iters((i, 4), (j, 32))
COPY = Store(DOMAIN, OUT, (i, j), load(X, i, j))


def dot(**changes):
    a, b = buffer("a", changes.pop("a", f32), (4, 3)), buffer("b", f32, (3, 32))
    parts = {"accumulator": load(T, i, j), "a": load(a, i, s), "b": load(b, s, j)} | changes
    d = Dot(Iter(i, 4), Iter(j, 32), Iter(s, 3), fresh=True, registers=RegisterTile(4, 32), **parts)
    return kernel("bad", (a, b, OUT), (Alloc(T), d))


def branching(seen, reduce_op="sum", other=0.0):
    value = op("select", seen, load(X, i, j), const(other, f32))
    return Reduce(DOMAIN, OUT, (i, 0), reduce_op, value, branches=True)


ODD = op("gt", IndexValue(i), const(1, i64), dtype=bool_)


def test_good_kernels_pass():
    verify(kernel("copy", (X, OUT), (COPY,)))
    verify(kernel("seen", (X, OUT), (branching(ODD),)))
    verify(dot())
    inside = op("lt", IndexValue(j), const(30, i64), dtype=bool_)
    padded = op("select", inside, load(X, i, j + 2), const(0.0, f32))
    verify(kernel("pad", (X, OUT), (Store(DOMAIN, OUT, (i, j), padded),)))


BROKEN = [
    ((Loop(s, 0, 3, 1, (Grid((Iter(i, 4),), ()),)),), "a grid must be the kernel's only outermost statement"),
    ((Map(DOMAIN, T, (i, j), load(X, i, j)),), "t is neither a parameter nor allocated here"),
    ((Loop(s, 0, 3, 1, (Alloc(T),)), Map(DOMAIN, T, (i, j), load(X, i, j))), "t is neither a parameter nor allocated"),
    ((Store(DOMAIN, T, (i, j), load(X, i, j)),), "t is a tile, not a parameter"),
    ((Map(DOMAIN, OUT, (i, j), load(X, i, j)),), "out is a parameter, not a tile"),
    ((Store(DOMAIN, OUT, (i, j), load(X, i, s)),), "s of s is not bound"),
    ((Store(DOMAIN, OUT, (i,), load(X, i, j)),), "out of rank 2 has 1 subscripts"),
    ((Store(DOMAIN, OUT, (i, j), load(X, i + 1, j)),), r"subscript .* of x reaches \[1, 4\], its extent is 4"),
    ((Store(DOMAIN, OUT, (i, j), load(X, i, j - 40)),), "of x is in"),
    ((Store((Iter(i, 4), Iter(i, 4)), OUT, (i, i), const(0.0, f32)),), "i is bound twice"),
    ((Loop(s, 0, 3, 0, ()),), "the step is 0"),
    ((Loop(s, 0, i, 1, ()),), "i of i is not bound"),
    ((If(IndexValue(1), ()),), "the condition 1 is i64"),
    ((If(op("gt", load(X, 0, 0), const(0.0, f32), dtype=bool_), ()),), "x is neither a parameter nor allocated"),
    ((Reduce((), OUT, (0, 0), "sum", const(1.0, f32)),), "a reduction needs an iterator"),
    ((Reduce(DOMAIN, OUT, (0, 0), "any", const(True, bool_)),), "any into f32"),
    ((Reduce(DOMAIN, OUT, (0, 0), "sum", load(X, i, j), branches=True),), "what branches is no select"),
    ((branching(op("lt", IndexValue(j), const(3, i64), dtype=bool_)),), "the branch differs along j"),
    ((Store((), OUT, (0, 0), const(1.0, f32), posts=True),), "no pairs of a number of 32 bits and a mark"),
    ((Reduce(DOMAIN, OUT, (0, 0), "sum", const(1.0, f32), awaits=True),), "what is awaited is no load of a parameter"),
    ((Reduce(DOMAIN, OUT, (0, 0), "sum", load(X, i, j), awaits=True),), "no pairs of a number of 32 bits and a mark"),
    ((branching(ODD, "max"),), "a branch that is not taken adds 0 to a sum"),
    ((branching(ODD, other=1.0),), "a branch that is not taken adds 0 to a sum"),
]


@pytest.mark.parametrize(("body", "message"), BROKEN)
def test_broken_kernels(body, message):
    with pytest.raises(VerifyError, match=message):
        verify(kernel("bad", (X, OUT), body))


def test_broken_dots():
    with pytest.raises(VerifyError, match="operand a is bf16, the accumulator f32"):
        verify(dot(a=bf16))
    with pytest.raises(VerifyError, match="the index of t uses s"):
        verify(dot(accumulator=load(T, i, s)))
    transposed = buffer("bt", f32, (32, 3))
    with pytest.raises(VerifyError, match="bt is neither"):
        verify(dot(b=load(transposed, j, s)))
    flipped = tile("t", f32, (4, 32), (1, 4))
    good = dot(accumulator=load(flipped, i, j))
    bad = kernel("bad", good.parameters, (Alloc(flipped), good.body[1]))
    with pytest.raises(VerifyError, match="t does not have stride 1 along j"):
        verify(bad)


def on_gpu(rows, columns, warps):
    """bf16 multiplied into f32 by so many warps, whose register tiles a GPU's compiler, a warp or a thread has."""
    d = dot(a=bf16)
    product = replace(d.body[1], registers=RegisterTile(rows, columns))
    return replace(d, body=(d.body[0], product), warps=warps)


@pytest.mark.parametrize(("rows", "columns", "warps"), [(0, 0, 4), (4, 8, 4), (1, 4, 1)])
def test_register_tiles_of_a_gpu(rows, columns, warps):
    verify(on_gpu(rows, columns, warps))


@pytest.mark.parametrize(("rows", "columns", "warps"), [(3, 8, 4), (4, 8, 2), (4, 5, 4), (1, 4, 2)])
def test_broken_register_tiles_of_a_gpu(rows, columns, warps):
    with pytest.raises(VerifyError, match=f"{warps} warps with {rows}x{columns} in registers share 4x32"):
        verify(on_gpu(rows, columns, warps))


def test_parameters():
    with pytest.raises(VerifyError, match="two parameters have one name"):
        verify(kernel("bad", (X, X), (COPY,)))
    with pytest.raises(VerifyError, match="3 outputs of 2"):
        verify(kernel("bad", (X, OUT), (COPY,), outputs=3))
    with pytest.raises(VerifyError, match="t is a tile, not a parameter"):
        verify(kernel("bad", (X, T), (COPY,)))
