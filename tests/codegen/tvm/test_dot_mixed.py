"""Products of narrow types: groups in vector registers on this machine, tiles by their code."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from amx import executed
from tile_harness import buffer, compare, kernel, load, sym, tile

import fusec
from fusec.codegen.tvm.build import compile_kernels
from fusec.errors import LoweringError, VerifyError
from fusec.ir.types import DType, bf16, f32, i8, i32
from fusec.target.cpu import cpu_target, host_cpu
from fusec.tile.kernel import Kernel
from fusec.tile.nodes import Alloc, Dot, Grid, Iter, Map, RegisterTile, Store
from fusec.tile.verify import verify

AMX = cpu_target("cpu:sapphirerapids")
HOST = cpu_target()


def product(m: int, n: int, k: int, dtype: DType, registers: RegisterTile, limit: bool = False) -> Kernel:
    """c = a @ b, b packed in panels of groups; ``limit`` says m as the limit of a larger extent."""
    group, width = 32 // dtype.bits, registers.columns
    total = f32 if dtype is bf16 else i32
    rows, panels = -(-(m + 9) // 32) * 32, -(-n // width)
    a, c = buffer("a", dtype, (m, k)), buffer("c", total, (m, n))
    b = buffer("b", dtype, (panels, k // group, width, group))
    i, j, s, p = sym("i", rows), sym("j", panels * width), sym("s", k), sym("p", 1)
    mi = Iter(i, rows, m + p) if limit else Iter(i, m)
    left, acc = tile("left", dtype, (rows, k)), tile("acc", total, (rows, panels * width))
    dot = Dot(
        mi,
        Iter(j, panels * width),
        Iter(s, k),
        load(acc, i, j),
        load(left, i, s),
        load(b, j // width, s // group, j % width, s % group),
        True,
        registers,
    )
    body = (
        Alloc(left),
        Map((mi, Iter(s, k)), left, (i, s), load(a, i, s)),
        Alloc(acc),
        dot,
        Store((mi, Iter(j, n)), c, (i, j), load(acc, i, j)),
    )
    return kernel("product", (a, b, c), (Grid((Iter(p, 1),), body),), kind="gemm")


@pytest.mark.skipif(not HOST.multiplies(bf16), reason="no AVX512-BF16 here")
@pytest.mark.parametrize(
    "registers", [RegisterTile(6, 64), RegisterTile(12, 32, 2, prefetch_bytes=4096), RegisterTile(1, 16)], ids=str
)
@pytest.mark.parametrize("m", [1, 6, 13])
def test_bf16_in_groups(m, registers):
    compare(product(m, 70, 36, bf16, registers), atol=1e-5)
    compare(product(m, 70, 36, bf16, registers, limit=True), atol=1e-5)


@pytest.mark.skipif(not HOST.multiplies(i8), reason="no AVX512-VNNI here")
@pytest.mark.parametrize("registers", [RegisterTile(5, 64), RegisterTile(11, 32, 2), RegisterTile(1, 16)], ids=str)
@pytest.mark.parametrize("m", [1, 6, 13])
def test_int8_in_groups(m, registers):
    compare(product(m, 70, 40, i8, registers))


@pytest.mark.skipif(not HOST.multiplies(i8), reason="no AVX512-VNNI here")
def test_int8_extremes():
    """-128 and 127 everywhere: the shifted operand and its correction wrap, the result is exact."""
    k = product(3, 16, 4096, i8, RegisterTile(4, 16))
    for low, high in ((-128, -128), (127, -128), (-128, 127)):
        inputs = [np.full(b.shape, v, np.int8) for b, v in zip(k.parameters, (low, high), strict=False)]
        (c,) = compare(k, inputs)
        assert c[0, 0] == low * high * 4096


@pytest.mark.parametrize(("dtype", "instruction"), [(bf16, "tdpbf16ps"), (i8, "tdpbssd")], ids=str)
@pytest.mark.parametrize("limit", [False, True])
def test_tiles(dtype, instruction, limit):
    k = product(40, 64, 128, dtype, RegisterTile(32, 32, tiles=True, prefetch_bytes=4096), limit)
    verify(k)
    text = compile_kernels([k], AMX).assembly()
    assert text.count("ldtilecfg") == text.count("tilerelease") == 1
    assert text.count(f"\t{instruction}\t") % 6 == 0 < text.count(f"\t{instruction}\t")  # 2x2 sums, then 1x2
    assert "prefetcht0" in text


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", [bf16, i8], ids=str)
@pytest.mark.parametrize(
    ("m", "rows", "columns"),
    [(1, 32, 16), (40, 32, 32), (64, 32, 32), (33, 32, 16), (1, 1, 32), (9, 9, 16), (20, 8, 32)],
)
@pytest.mark.parametrize("limit", [False, True])
def test_tiles_run(amx, dtype, m, rows, columns, limit):
    before = executed()
    compare(product(m, 64, 128, dtype, RegisterTile(rows, columns, tiles=True), limit), target=amx, atol=1e-4)
    assert executed() > before or amx.matmul_features == cpu_target().matmul_features


def test_tiles_of_int8_extremes(amx):
    k = product(3, 32, 256, i8, RegisterTile(16, 32, tiles=True))
    for low, high in ((-128, -128), (127, -128), (-128, 127)):
        inputs = [np.full(b.shape, v, np.int8) for b, v in zip(k.parameters, (low, high), strict=False)]
        (c,) = compare(k, inputs, target=amx)
        assert c[0, 0] == low * high * 256


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8], ids=str)
@pytest.mark.parametrize("shape", [(2, 64, 48), (17, 96, 40), (70, 100, 130), (5, 33, 7)], ids=str)
def test_functions_run_on_tiles(amx_everywhere, dtype, shape):
    m, k, n = shape
    rng = torch.Generator().manual_seed(3)
    x, w = (torch.randn(s, generator=rng) * 4 for s in ((m, k), (n, k)))
    x, w = x.to(dtype), w.to(dtype)

    @fusec.jit(fallback="error", static=("b",))
    def product(a, b):
        if a.dtype == torch.int8:
            return a.to(torch.int32) @ b.T.to(torch.int32)
        return torch.nn.functional.gelu(a @ b.T)

    before, expected = executed(), product.__wrapped__(x, w)
    actual = product(x, w)
    assert executed() > before or amx_everywhere is host_cpu()
    torch.testing.assert_close(actual, expected, rtol=1.6e-2, atol=1e-2)


def test_rows_of_any_number_run_on_tiles(amx_everywhere):
    """Up to 16 of them: where they end is not known, so they are copied before a tile takes 16."""
    rng = torch.Generator().manual_seed(4)
    x = torch.randn((16, 64), generator=rng).bfloat16()
    layer = torch.nn.Linear(64, 48, dtype=torch.bfloat16).requires_grad_(False)
    rows = fusec.TensorSpec(("B", 64), "bf16")
    product = fusec.compile(layer, rows, dims={"B": (1, 16)}, freeze=True, fallback="error", cache=False)
    before = executed()
    for count in (1, 5, 16):
        torch.testing.assert_close(product(x[:count]), layer(x[:count]), rtol=1.6e-2, atol=1e-2)
    assert executed() > before or amx_everywhere is host_cpu()


def test_tiles_of_two_heights_are_not_mixed():
    few, many = (product(m, 32, 64, bf16, RegisterTile(m, 32, tiles=True)) for m in (8, 16))
    body = tuple(replace(grid, body=(*grid.body, *many.body[0].body)) for grid in few.body)
    mixed = replace(few, parameters=(*few.parameters, *many.parameters), body=body)
    with pytest.raises(LoweringError, match="rows"):
        compile_kernels([mixed], AMX)


def test_the_depth_is_whole_groups():
    k = product(4, 32, 32, bf16, RegisterTile(4, 32))
    (grid,) = k.body
    *front, dot, store = grid.body
    odd = replace(dot, k=Iter(dot.k.var, 31))
    with pytest.raises(VerifyError, match="no multiple of 2"):
        verify(replace(k, body=(replace(grid, body=(*front, odd, store)),)))
