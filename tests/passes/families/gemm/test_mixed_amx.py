"""Products in AMX tiles as machine code, on the machine's own tiles or emulated ones."""

from __future__ import annotations

import pytest
from amx import executed
from fixed_schedule import Fixed
from products import int8_product
from programs import check

from fusec.ir.types import DType, bf16, i8
from fusec.passes.families.gemm.schedule.mixed import MixedGemmSchedule, depth_step
from fusec.passes.select import Selector
from fusec.target.cpu import CpuTarget
from fusec.tile.nodes import Dot, RegisterTile, statements


def layer(m: int, n: int, k: int) -> str:
    """bf16, with bias and gelu; the weight is kept packed."""
    return f"""graph @g(%x: bf16[{m}, {k}], %w: bf16[{n}, {k}] static "w", %c: bf16[{n}]) {{
        %h = dot(%x, %w) {{contract=[1]x[1], dtype=f32}} : f32[{m}, {n}]
        %cc = cast(%c) : f32[{n}]
        %a = add(%h, %cc) : f32[{m}, {n}]
        %g = gelu(%a) {{approximate=tanh}} : f32[{m}, {n}]
        %y = cast(%g) : bf16[{m}, {n}]
        return %y
    }}"""


def through(text: str, dtype: DType, k: int, amx: CpuTarget, columns: int = 3, parts: int = 1) -> None:
    """In one pass over all columns of each block of rows, each block's results stored beside the next product."""
    step = depth_step(dtype, tiles=True)
    depth = -(-k // step) * step
    schedule = MixedGemmSchedule(64, 32 * columns, depth // parts, RegisterTile(32, 32, tiles=True), True, k != depth)
    before = executed()
    run = check(text, selector=Fixed(amx, 2, {}, schedule), slack=2, atol=1e-5)
    assert executed() > before or "amx_bf16" in amx.matmul_features
    dots = [s for kernel in run.lowered.program.kernels for s in statements(kernel.body) if isinstance(s, Dot)]
    assert any(dot.beside for dot in dots)


@pytest.mark.parametrize("size", [(64, 96, 32), (64, 96, 96), (40, 70, 64), (17, 96, 50), (33, 250, 1100)], ids=str)
def test_a_block_is_stored_beside_the_next(size: tuple[int, int, int], amx_everywhere: CpuTarget) -> None:
    m, n, k = size
    through(layer(m, n, k), bf16, k, amx_everywhere)
    through(int8_product(m, n, k), i8, k, amx_everywhere)


@pytest.mark.parametrize("size", [(1, 64, 64), (5, 33, 128), (15, 70, 192), (8, 40, 100)], ids=str)
def test_few_rows_have_tiles_of_as_many(size: tuple[int, int, int], amx_everywhere: CpuTarget) -> None:
    """They are read where they lie, if the depth fills tiles."""
    m, n, k = size
    for text, dtype in ((layer(m, n, k), bf16), (int8_product(m, n, k), i8)):
        before = executed()
        run = check(text, selector=Selector(amx_everywhere, 2), slack=2, atol=1e-5)
        assert executed() > before or "amx_bf16" in amx_everywhere.matmul_features
        dots = [s for kernel in run.lowered.program.kernels for s in statements(kernel.body) if isinstance(s, Dot)]
        assert [dot.registers.rows for dot in dots] == [m]
        assert (dots[0].a.buffer.space == "tile") == (k % depth_step(dtype, tiles=True) != 0)


def test_depth_in_parts(amx_everywhere: CpuTarget) -> None:
    through(layer(40, 100, 256), bf16, 256, amx_everywhere, columns=2, parts=2)
