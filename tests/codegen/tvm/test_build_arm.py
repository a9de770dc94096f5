"""Arm CPUs: the code of each kind of kernel compiles for NEON and SVE."""

from __future__ import annotations

import pytest
from tile_harness import buffer, iters, kernel, load, op, sym, tile

from fusec.codegen.tvm.build import compile_kernels
from fusec.ir.types import bf16, f32
from fusec.target.cpu import cpu_target
from fusec.tile.nodes import Alloc, Dot, Iter, Map, Reduce, RegisterTile, Store


@pytest.mark.parametrize("name", ["cpu:neoverse-n1", "cpu:neoverse-v1"])
def test_kernels_compile(name):
    target = cpu_target(name)
    assert not target.multiplies(bf16)
    x, y, i, j, k = buffer("x", f32, (9, 21)), buffer("y", bf16, (9, 21)), sym("i", 9), sym("j", 21), sym("k", 21)
    curve = kernel("curve", (x, y), (Store(iters((i, 9), (j, 21)), y, (i, j), op("tanh", op("exp", load(x, i, j)))),))
    total, out = tile("total", f32, ()), buffer("out", f32, ())
    row = Reduce(iters((i, 9), (j, 21)), total, (), "max", load(x, i, j))
    greatest = kernel("greatest", (x, out), (Alloc(total), row, Store((), out, (), load(total))))
    b, c, n = buffer("b", f32, (21, 32)), buffer("c", f32, (9, 32)), sym("n", 32)
    acc = tile("acc", f32, (9, 32))
    dot = Dot(
        Iter(i, 9), Iter(n, 32), Iter(k, 21), load(acc, i, n), load(x, i, k), load(b, k, n), True, RegisterTile(4, 16)
    )
    store = Store(iters((i, 9), (n, 32)), c, (i, n), load(acc, i, n))
    product = kernel(
        "product", (x, b, c), (Alloc(acc), Map(iters((i, 9), (n, 32)), acc, (i, n), load(b, 0, n)), dot, store)
    )
    text = compile_kernels([curve, greatest, product], target).assembly()
    assert "fmla\tv" in text
    assert "zmm" not in text


def test_a_cpu_of_another_kind_does_not_run_here():
    target = cpu_target("cpu:neoverse-n1")
    assert target.architecture == "aarch64"
    assert not target.runs_here
