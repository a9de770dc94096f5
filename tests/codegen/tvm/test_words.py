"""Copies of narrow elements into groups of 32 bits."""

from __future__ import annotations

import pytest
from tile_harness import buffer, compare, iters, kernel, load, sym, tile

from fusec.codegen.tvm.build import compile_kernels
from fusec.ir.types import DType, bf16, f16, i8, u8
from fusec.target.cpu import cpu_target
from fusec.tile.kernel import Kernel
from fusec.tile.nodes import Alloc, Grid, Iter, Map, Store

V3 = cpu_target("cpu:x86-64-v3")


def packing(k: int, n: int, width: int, dtype: DType, by_rows: bool) -> Kernel:
    """Panels of ``width`` columns of x, which is [k, n] or, by rows, [n, k]."""
    group, panels = 32 // dtype.bits, -(-n // width)
    x = buffer("x", dtype, (n, k) if by_rows else (k, n))
    out = buffer("out", dtype, (panels, k // group, width, group))
    p, q, c, r = sym("p", panels), sym("q", k // group), sym("c", width), sym("r", group)
    limit = None if n % width == 0 else n - width * p
    at = (width * p + c, group * q + r) if by_rows else (group * q + r, width * p + c)
    domain = (Iter(q, k // group), Iter(c, width, limit), Iter(r, group))
    return kernel("pack", (x, out), (Grid((Iter(p, panels),), (Store(domain, out, (p, q, c, r), load(x, *at)),)),))


@pytest.mark.sweep(1)
@pytest.mark.parametrize("target", [cpu_target(), V3], ids=["host", "avx2"])
@pytest.mark.parametrize("dtype", [bf16, f16, i8, u8], ids=str)
@pytest.mark.parametrize("by_rows", [False, True], ids=["columns", "rows"])
def test_panels(by_rows, dtype, target):
    for k, n, width in ((64, 64, 32), (72, 100, 32), (4, 7, 16), (132, 48, 48), (36, 33, 8)):
        compare(packing(k, n, width, dtype, by_rows), target=target)


@pytest.mark.parametrize("by_rows", [False, True], ids=["columns", "rows"])
def test_a_panel_in_scratch(by_rows):
    """Of a source whose rows are not a whole number of groups long: read element by element where groups are split."""
    k, n, dtype = 24, 32, bf16
    x = buffer("x", dtype, (n, 27) if by_rows else (k, 35))
    out, panel = buffer("out", dtype, (k // 2, n, 2)), tile("panel", dtype, (k // 2, n, 2))
    b, q, c, r = sym("b", 1), sym("q", k // 2), sym("c", n), sym("r", 2)
    value = load(x, c, 2 * q + r) if by_rows else load(x, 2 * q + r, c)
    domain = iters((q, k // 2), (c, n), (r, 2))
    body = (Alloc(panel), Map(domain, panel, (q, c, r), value), Store(domain, out, (q, c, r), load(panel, q, c, r)))
    compare(kernel("stage", (x, out), (Grid((Iter(b, 1),), body),)))


def test_groups_move_whole():
    """No element by itself: neither as a word of two, nor interleaved."""
    for by_rows in (False, True):
        text = compile_kernels([packing(64, 64, 32, bf16, by_rows)], cpu_target("cpu:skylake-avx512")).assembly()
        code, found, _ = text.partition("__truncsfhf2:")  # what TVM brings follows
        assert found
        assert "zmm" in code
        assert "movzwl" not in code
        assert "pinsrw" not in code
