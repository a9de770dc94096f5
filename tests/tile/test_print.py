"""The text of a kernel."""

from __future__ import annotations

from tile_harness import buffer, const, iters, kernel, load, op, sym, tile

from fusec.ir.index import minimum
from fusec.ir.types import bf16, bool_, f32, i32, i64
from fusec.tile.nodes import Alloc, Dot, Grid, If, Iter, Loop, Map, Reduce, RegisterTile, Store
from fusec.tile.print import print_kernel
from fusec.tile.scalar import IndexValue


def test_every_statement():
    mo, p, m, n, k = sym("mo", 4), sym("p", 2), sym("m", 64), sym("n", 96), sym("k", 256)
    a, b = buffer("a", f32, (250, 256)), buffer("b", f32, (2, 256, 96))
    bias, out = buffer("bias", bf16, (192,), (2,)), buffer("out", f32, (250, 192))
    acc, rows = tile("acc", f32, (64, 96)), tile("rows", f32, (64,))
    limit = 250 - 64 * mo
    added = op("add", load(acc, m, n), op("cast", load(bias, p * 96 + n), dtype=f32))
    first = op("eq", IndexValue(mo), const(0, i64), dtype=bool_)
    inner = (
        Alloc(acc),
        Dot(
            Iter(m, 64, limit),
            Iter(n, 96),
            Iter(k, 256),
            load(acc, m, n),
            load(a, 64 * mo + m, k),
            load(b, p, k, n),
            False,
            RegisterTile(6, 48, 2),
        ),
        Alloc(rows),
        Reduce(iters((m, 64), (n, 96)), rows, (m,), "max", load(acc, m, n)),
        If(
            first,
            (Map(iters((m, 64)), rows, (m,), op("exp", load(rows, m))),),
            (Map(iters((m, 64)), rows, (m,), const(1.5, f32)),),
        ),
        Store((Iter(m, 64, limit), Iter(n, 96)), out, (64 * mo + m, p * 96 + n), op("maximum", added, const(0.0, f32))),
    )
    body = Grid((Iter(mo, 4),), (Loop(p, 0, minimum(2, mo + 1), 1, inner),))
    text = print_kernel(kernel("linear", (a, b, bias, out), (body,), kind="gemm"))
    assert text == EXPECTED


EXPECTED = """\
kernel @linear gemm (a: f32[250, 256], b: f32[2, 256, 96], bias: bf16[192] strides(2)) -> (out: f32[250, 192]) {
  grid (mo:4) {
    for p in 0..min((mo + 1), 2) {
      alloc acc: f32[64, 96]
      dot acc[m, n] += a[m + 64*mo, k] * b[p, k, n] for m:min(64, -64*mo + 250), n:96, k:256 registers 6x48 unroll 2
      alloc rows: f32[64]
      reduce rows[m] = max(acc[m, n]) for m:64, n:96
      if (mo == 0) {
        map rows[m] = exp(rows[m]) for m:64
      } else {
        map rows[m] = 1.5 for m:64
      }
      store out[m + 64*mo, n + 96*p] = maximum((acc[m, n] + f32(bias[n + 96*p])), 0.0) for m:min(64, -64*mo + 250), n:96
    }
  }
}"""


def test_literals_and_steps():
    i = sym("i", 8)
    out = buffer("out", i32, (8,))
    body = Loop(i, 0, 8, 2, (Store((), out, (i,), const(3, i32)),))
    assert print_kernel(kernel("k", (out,), (body,))).splitlines()[1:3] == [
        "  for i in 0..8, step 2 {",
        "    store out[i] = i32(3)",
    ]
