"""The loop over lanes: whole vectors, alternating where they are computed long, then the rest."""

from __future__ import annotations

import pytest
from tile_harness import buffer, compare, iters, kernel, load, op, sym

from fusec.codegen.tvm.emit import emit_kernel
from fusec.ir.types import f32
from fusec.target.cpu import cpu_target
from fusec.tile.kernel import Kernel
from fusec.tile.nodes import Grid, Iter, Store

WIDE = cpu_target("cpu:x86-64-v4")
SCALE = "llvm.x86.avx512.mask.scalef.ps.512"


def mapped(n: int, *names: str) -> Kernel:
    """y = f(g(x)) in three rows."""
    x, y = buffer("x", f32, (3, n)), buffer("y", f32, (3, n))
    r, i = sym("r", 3), sym("i", n)
    value = load(x, r, i)
    for name in names:
        value = op(name, value)
    return kernel("long", (x, y), (Grid(iters((r, 3)), (Store((Iter(i, n),), y, (r, i), value),)),))


@pytest.mark.parametrize("vectors", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("rest", [0, 3])
def test_long_blocks_alternate_in_pairs(vectors: int, rest: int) -> None:
    long = mapped(16 * vectors + rest, "sin", "exp")
    compare(long)
    assert str(emit_kernel(long, WIDE)).count(SCALE) == (2 if vectors % 2 == 0 else 1) + (rest > 0)


def test_what_one_block_waits_for_the_other_fills() -> None:
    lines = str(emit_kernel(mapped(64, "sin", "exp"), WIDE)).splitlines()
    first, second = (i for i, line in enumerate(lines) if SCALE in line)
    assert second - first < 4


def test_short_blocks_follow_each_other() -> None:
    assert str(emit_kernel(mapped(64, "exp"), WIDE)).count(SCALE) == 1
