"""The register-blocked contraction: all tails, packed panels, scratch and parameters, types."""

from __future__ import annotations

import pytest
from tile_harness import buffer, compare, kernel, load, op, sym, tile

from fusec.codegen.tvm.build import compile_kernels
from fusec.errors import LoweringError
from fusec.ir.types import f16, f32, f64, i32
from fusec.target.cpu import cpu_target
from fusec.tile.kernel import Kernel
from fusec.tile.nodes import Alloc, Dot, Grid, Iter, Loop, Map, RegisterTile, Store

V3 = cpu_target("cpu:x86-64-v3")


def up(n, step):
    return -(-n // step) * step


def gemm(m, n, k, registers, dtype=f32, packed=True, limits=False, direct=False, copy_a=True):
    """c = a @ b. ``limits`` says m, n, k as limits of larger extents; ``direct`` accumulates into c itself."""
    rows, columns = registers.rows, registers.columns
    mm, nn, kk = (m + 5, up(n + 7, columns), k + 3) if limits else (m, n, k)
    a, c = buffer("a", dtype, (m, k)), buffer("c", dtype, (m, n))
    panels = up(nn, columns) // columns
    b = buffer("b", dtype, (panels, k, columns)) if packed else buffer("b", dtype, (k, n))
    i, j, s = sym("i", mm), sym("j", up(nn, columns)), sym("s", kk)
    bound = (lambda x: x) if limits else (lambda x: None)
    mi, ni, ki = Iter(i, mm, bound(m)), Iter(j, nn, bound(n)), Iter(s, kk, bound(k))
    at = tile("at", dtype, (up(mm, rows), kk + 16))
    acc = tile("acc", dtype, (up(mm, rows), up(nn, columns)))
    b_load = load(b, j // columns, s, j % columns) if packed else load(b, s, j)
    a_load = load(at, i, s) if copy_a else load(a, i, s)
    target = load(c, i, j) if direct else load(acc, i, j)
    body = [Dot(mi, ni, ki, target, a_load, b_load, True, registers)]
    if copy_a:
        body = [Alloc(at), Map((mi, ki), at, (i, s), load(a, i, s)), *body]
    if not direct:
        body = [Alloc(acc), *body, Store((mi, ni), c, (i, j), load(acc, i, j))]
    return kernel("gemm", (a, b, c), tuple(body), kind="gemm")


@pytest.mark.sweep(1)
@pytest.mark.parametrize(
    "registers", [RegisterTile(6, 64), RegisterTile(8, 48, 2), RegisterTile(14, 32), RegisterTile(4, 16, 4)], ids=str
)
@pytest.mark.parametrize("m", [1, 6, 13, 28])
def test_row_tails(m, registers):
    compare(gemm(m, 96, 17, registers), atol=1e-5)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "plain"])
@pytest.mark.parametrize("limits", [False, True], ids=["static", "limits"])
@pytest.mark.parametrize("n", [1, 15, 32, 33, 70])
def test_column_tails(n, limits, packed):
    compare(gemm(9, n, 21, RegisterTile(4, 32, 2), limits=limits, packed=packed), atol=1e-5)


@pytest.mark.parametrize("n", [5, 32, 50])
@pytest.mark.parametrize("m", [4, 7])
def test_operands_and_result_without_scratch(m, n):
    compare(gemm(m, n, 13, RegisterTile(4, 32), packed=False, direct=True, copy_a=False), atol=1e-5)
    limited = gemm(m, n, 13, RegisterTile(4, 32), packed=False, direct=True, copy_a=False, limits=True)
    compare(limited, atol=1e-5)


@pytest.mark.parametrize(("m", "n", "k"), [(0, 5, 5), (5, 0, 5), (5, 5, 0)])
def test_empty(m, n, k):
    compare(gemm(m, n, k, RegisterTile(4, 32), packed=False, copy_a=False))


@pytest.mark.parametrize("dtype", [f64, i32], ids=str)
@pytest.mark.parametrize("target", [cpu_target(), V3], ids=["host", "avx2"])
def test_types(dtype, target):
    compare(gemm(9, 40, 21, RegisterTile(4, 16, 2), dtype), target=target, atol=1e-12)


def test_avx2():
    compare(gemm(13, 40, 21, RegisterTile(6, 16)), target=V3, atol=1e-5)


def test_register_tile_narrower_than_a_vector():
    compare(gemm(5, 20, 21, RegisterTile(4, 20)), atol=1e-5)


def test_rows_whose_number_is_not_known_modulo_the_block():
    """The limit is a loop variable: the last block repeats the last row."""
    a, b, c = buffer("a", f32, (10, 12)), buffer("b", f32, (12, 32)), buffer("c", f32, (10, 10, 32))
    i, j, s, count = sym("i", 10), sym("j", 32), sym("s", 12), sym("count", 10)
    acc = tile("acc", f32, (12, 32))
    rows = Iter(i, 10, count + 1)
    body = Loop(
        count,
        0,
        10,
        1,
        (
            Alloc(acc),
            Dot(
                rows, Iter(j, 32), Iter(s, 12), load(acc, i, j), load(a, i, s), load(b, s, j), True, RegisterTile(4, 32)
            ),
            Store((rows, Iter(j, 32)), c, (count, i, j), load(acc, i, j)),
        ),
    )
    compare(kernel("rows", (a, b, c), (body,)), atol=1e-5)


@pytest.mark.parametrize(("name", "instruction"), [("znver5", "prefetcht0"), ("sapphirerapids", "prefetcht1")])
@pytest.mark.parametrize("n", [64, 70])
def test_panels_fetched_ahead(n, name, instruction):
    """Also beyond the end of the operand, where there may be no memory."""
    k = gemm(6, n, 50, RegisterTile(6, 32, prefetch_bytes=1 << 30))
    compare(k, atol=1e-5)
    text = compile_kernels([k], cpu_target(f"cpu:{name}")).assembly()
    assert text.count("prefetch") == text.count(instruction) >= 2
    plain = gemm(6, n, 50, RegisterTile(6, 32))
    assert "prefetch" not in compile_kernels([plain], cpu_target()).assembly()


@pytest.mark.parametrize("limits", [False, True], ids=["static", "limits"])
@pytest.mark.parametrize("m", [12, 18, 31])
def test_blocks_of_rows_share_what_is_fetched_ahead(m, limits):
    """Three vectors a step of k: two for each block where there are two of them, else one."""
    compare(gemm(m, 96, 50, RegisterTile(6, 48, prefetch_bytes=1 << 30), limits=limits), atol=1e-5)
    text = compile_kernels([gemm(m, 96, 50, RegisterTile(6, 48, prefetch_bytes=1 << 30))], cpu_target()).assembly()
    assert "prefetcht0" not in text
    assert text.count("prefetcht1") % (2 if m == 12 else 1) == 0 < text.count("prefetcht1")


def test_the_accumulator_is_added_to():
    k = gemm(7, 40, 20, RegisterTile(4, 32, 2))
    *front, alloc_a, fill, dot, store = k.body
    i, j = dot.accumulator.index
    start = Map((dot.m, dot.n), dot.accumulator.buffer, (i, j), op("neg", load(k.parameters[0], i, 0)))
    s, half = sym("half", 2), 10
    kk = dot.k.var
    split = Dot(
        dot.m,
        dot.n,
        Iter(kk, half),
        dot.accumulator,
        load(dot.a.buffer, i, s * half + kk),
        load(dot.b.buffer, j // 32, s * half + kk, j % 32),
        False,
        dot.registers,
    )
    body = (*front, alloc_a, fill, start, Loop(s, 0, 2, 1, (split,)), store)
    compare(Kernel("gemm", "gemm", k.parameters, 1, body), atol=1e-5)


def test_transposed_operand():
    """``a`` is read down its columns."""
    a, b, c = buffer("a", f32, (12, 10)), buffer("b", f32, (12, 32)), buffer("c", f32, (10, 32))
    i, j, s = sym("i", 10), sym("j", 32), sym("s", 12)
    acc = tile("acc", f32, (12, 32))
    body = (
        Alloc(acc),
        Dot(
            Iter(i, 10),
            Iter(j, 32),
            Iter(s, 12),
            load(acc, i, j),
            load(a, s, i),
            load(b, s, j),
            True,
            RegisterTile(4, 32),
        ),
        Store((Iter(i, 10), Iter(j, 32)), c, (i, j), load(acc, i, j)),
    )
    compare(kernel("atb", (a, b, c), body), atol=1e-5)


def test_gemm_over_a_parallel_grid_with_row_blocks():
    """Blocks of 28 rows, the last one smaller; halves of the panels on the grid."""
    m, n, k, block, columns = 65, 128, 40, 28, 32
    a, b, bias, c = (
        buffer("a", f32, (m, k)),
        buffer("b", f32, (4, k, columns)),
        buffer("bias", f32, (n,)),
        buffer("c", f32, (m, n)),
    )
    mo, half, p = sym("mo", 3), sym("half", 2), sym("p", 2)
    i, j, s = sym("i", block), sym("j", columns), sym("s", k)
    rows = Iter(i, block, m - block * mo)
    at, acc = tile("at", f32, (block, k), (k + 16, 1)), tile("acc", f32, (block, columns))
    panel = 2 * half + p
    added = op("add", load(acc, i, j), load(bias, panel * columns + j))
    inner = (
        Alloc(acc),
        Dot(
            rows,
            Iter(j, columns),
            Iter(s, k),
            load(acc, i, j),
            load(at, i, s),
            load(b, panel, s, j),
            True,
            RegisterTile(14, 32),
        ),
        Store(
            (rows, Iter(j, columns)), c, (mo * block + i, panel * columns + j), op("maximum", added, op("neg", added))
        ),
    )
    body = (Alloc(at), Map((rows, Iter(s, k)), at, (i, s), load(a, mo * block + i, s)), Loop(p, 0, 2, 1, inner))
    compare(kernel("gemm", (a, b, bias, c), (Grid((Iter(half, 2), Iter(mo, 3)), body),)), atol=1e-5)


def test_packing_kernel():
    """b[k, n] into panels of 32 columns, the last one padded with zeros."""
    from fusec.ir.types import bool_, i64
    from fusec.tile.scalar import Const, IndexValue

    n, k = 70, 11
    b, packed = buffer("b", f32, (k, n)), buffer("packed", f32, (3, k, 32))
    p, s, j = sym("p", 3), sym("s", k), sym("j", 32)
    inside = op("lt", IndexValue(p * 32 + j), Const(n, i64), dtype=bool_)
    value = op("select", inside, load(b, s, p * 32 + j), Const(0.0, f32))
    (result,) = compare(
        kernel(
            "pack", (b, packed), (Grid((Iter(p, 3),), (Store((Iter(s, k), Iter(j, 32)), packed, (p, s, j), value),)),)
        )
    )
    assert (result[2, :, 6:] == 0).all()


def test_half_operands_are_refused():
    with pytest.raises(LoweringError, match="does not multiply f16 in groups"):
        compare(_mixed())


def _mixed():
    a, b, c = buffer("a", f16, (4, 4)), buffer("b", f16, (4, 32)), buffer("c", f32, (4, 32))
    i, j, s = sym("i", 4), sym("j", 32), sym("s", 4)
    dot = Dot(
        Iter(i, 4), Iter(j, 32), Iter(s, 4), load(c, i, j), load(a, i, s), load(b, s, j), True, RegisterTile(4, 32)
    )
    return kernel("mixed", (a, b, c), (dot,))
