"""Products whose right operand is read where it lies: nothing is packed, whatever its rows, columns and depth."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from fixed_schedule import Fixed
from programs import Run, check

from fusec.ir.parse import parse
from fusec.ir.types import bf16, i8
from fusec.passes.families.gemm.schedule.cpu import GemmSchedule
from fusec.passes.families.record import schedule_from_text, schedule_to_text
from fusec.passes.pipeline import lower
from fusec.passes.select import Selector
from fusec.target.cpu import cpu_target
from fusec.tile.nodes import Dot, Grid, RegisterTile, statements

HOST = cpu_target()
needs_groups = pytest.mark.skipif(not (HOST.multiplies(bf16) and HOST.multiplies(i8)), reason="no AVX512-BF16 here")


def linear(m: int, n: int, k: int, dtype: str = "f32") -> str:
    return f"""graph @g(%x: {dtype}[{m}, {k}], %w: {dtype}[{n}, {k}] parameter "w", %c: f32[{n}]) {{
        %h = dot(%x, %w) {{contract=[1]x[1], dtype=f32}} : f32[{m}, {n}]
        %y = add(%h, %c) : f32[{m}, {n}]
        return %y
    }}"""


def int8(m: int, n: int, k: int) -> str:
    return f"""graph @g(%x: i8[{m}, {k}], %w: i8[{n}, {k}] parameter "w", %s: f32[{n}]) {{
        %h = dot(%x, %w) {{contract=[1]x[1], dtype=i32}} : i32[{m}, {n}]
        %f = cast(%h) : f32[{m}, {n}]
        %y = mul(%f, %s) : f32[{m}, {n}]
        return %y, %h
    }}"""


def across(m: int, n: int, k: int) -> str:
    return f"""graph @g(%x: f32[{m}, {k}], %w: f32[{k}, {n}] parameter "w") {{
        %h = dot(%x, %w) {{contract=[1]x[0]}} : f32[{m}, {n}]
        %y = exp(%h) : f32[{m}, {n}]
        return %y
    }}"""


def dots(run: Run) -> list[Dot]:
    return [s for kernel in run.lowered.program.kernels for s in statements(kernel.body) if isinstance(s, Dot)]


def through(text: str, target: str = "cpu", **options: object) -> Run:
    machine = cpu_target(target)
    selector = options.pop("selector", Selector(machine, 2))
    return check(text, selector=selector, compiled=machine.runs_here, target=target, slack=2, atol=1e-5, **options)  # type: ignore[arg-type]


def in_place(run: Run) -> bool:
    """Whether all products read along K, and nothing is packed."""
    packs = any(kernel.kind == "pack" for kernel in run.lowered.program.kernels)
    return not packs and all(dot.registers.along for dot in dots(run))


SIZES = [(1, 40, 9), (2, 33, 17), (3, 5, 64), (7, 70, 100), (8, 32, 48), (13, 31, 130), (40, 65, 400)]


@pytest.mark.sweep(1)
@pytest.mark.parametrize("target", ["cpu", "cpu:x86-64-v3", "cpu:x86-64"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_f32(size: tuple[int, int, int], target: str) -> None:
    run = through(linear(*size), target)
    assert in_place(run) or (target == "cpu:x86-64" and size[0] > 30)


@pytest.mark.parametrize(("size", "parallel"), [((4, 64, 32), False), ((128, 768, 768), True)], ids=str)
def test_a_small_product_is_one_task(size: tuple[int, int, int], parallel: bool) -> None:
    """Starting two threads took ten times as long as multiplying did."""
    (kernel,) = lower(parse(linear(*size)), "cpu:x86-64-v3", threads=2).program.kernels
    (grid,) = [s for s in statements(kernel.body) if isinstance(s, Grid)]
    assert (prod(it.extent for it in grid.iters) > 1) is parallel


@needs_groups
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_narrow_types_are_multiplied_as_they_are(size: tuple[int, int, int]) -> None:
    for run in (through(linear(*size, "bf16"), "cpu"), through(int8(*size), "cpu:znver5")):
        assert all(dot.a.dtype in (bf16, i8) for dot in dots(run))
        assert in_place(run)


@needs_groups
def test_i8_of_the_largest_size_wraps_nowhere() -> None:
    x, w = np.full((3, 67), -128, np.int8), np.full((5, 67), -128, np.int8)
    x[1], w[2] = 127, 127
    run = through(int8(3, 5, 67), "cpu", inputs=[x, w, np.ones(5, np.float32)])
    np.testing.assert_array_equal(run.outputs[1], x.astype(np.int32) @ w.astype(np.int32).T)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("rows", [1, 2, 5, 6])
@pytest.mark.parametrize("columns", [1, 2, 4, 8])
@pytest.mark.parametrize("size", [(11, 37, 75), (6, 8, 5000)], ids=str)
def test_schedules(rows: int, columns: int, size: tuple[int, int, int]) -> None:
    """Blocks of rows and columns that end within the product, tasks of few columns, K in blocks."""
    m, _n, k = size
    tile_m = min(2 * rows, m)
    s = GemmSchedule(tile_m, 24, 8, k, RegisterTile(rows, columns, along=True, prefetch_bytes=columns * k * 4), False)
    assert in_place(through(linear(*size), selector=Fixed(HOST, 2, {}, s)))
    assert schedule_from_text(schedule_to_text(s)) == s


def test_what_makes_a_weight_is_computed_on_the_way() -> None:
    text = """graph @g(%x: f32[3, 70], %w: i8[50, 70] parameter "w", %s: f32[50, 1]) {
        %f = cast(%w) : f32[50, 70]
        %v = mul(%f, %s) : f32[50, 70]
        %h = dot(%x, %v) {contract=[1]x[1]} : f32[3, 50]
        return %h
    }"""
    assert in_place(through(text))


@needs_groups
@pytest.mark.parametrize("size", [(5, 8, 16), (5, 9, 7), (1, 32, 31), (7, 70, 100)], ids=str)
def test_narrow_operands_that_are_computed_are_read_no_further_than_they_go(size: tuple[int, int, int]) -> None:
    """Rounded on the way, so both lie in scratch memory, where what follows the last element may be anything."""
    m, n, k = size
    text = f"""graph @g(%x: f32[{m}, {k}], %w: f32[{n}, {k}] parameter "w") {{
        %a = cast(%x) : bf16[{m}, {k}]
        %b = cast(%w) : bf16[{n}, {k}]
        %h = dot(%a, %b) {{contract=[1]x[1], dtype=f32}} : f32[{m}, {n}]
        return %h
    }}"""
    assert in_place(through(text))


def test_what_makes_rows_is_computed_once_a_task() -> None:
    text = linear(5, 40, 33).replace("%h = dot(%x,", "%e = exp(%x) : f32[5, 33]\n%h = dot(%e,")
    assert in_place(through(text))


def test_products_of_one_left_operand_read_each_weight() -> None:
    weights = ", ".join(f'%w{i}: f32[33, 64] parameter "w{i}"' for i in range(3))
    text = "\n".join(f"%h{i} = dot(%x, %w{i}) {{contract=[1]x[1]}} : f32[5, 33]" for i in range(3))
    run = through(
        f"graph @g(%x: f32[5, 64], {weights}) {{\n{text}\n%y = mul(%h0, %h2) : f32[5, 33]\nreturn %y, %h1\n}}"
    )
    assert len(run.kernels) == 1
    assert len({dot.b.buffer for dot in dots(run)}) == 3


@pytest.mark.parametrize("size", [(1, 64, 40), (1, 70, 9), (8, 96, 130), (40, 33, 64), (200, 64, 300)], ids=str)
def test_columns_side_by_side_are_read_where_they_lie(size: tuple[int, int, int]) -> None:
    run = through(across(*size))
    assert [kernel.kind for kernel in run.lowered.program.kernels] == ["gemm"]


@pytest.mark.parametrize("prefetch_bytes", [0, 4096])
def test_rows_apart_are_fetched_by_themselves(prefetch_bytes: int) -> None:
    s = GemmSchedule(4, 64, 32, 16, RegisterTile(2, 32, prefetch_bytes=prefetch_bytes), False, staged=True)
    through(across(4, 64, 40), selector=Fixed(HOST, 2, {}, s))


def test_infinities_stay_in_their_rows_and_columns() -> None:
    x, w = np.ones((7, 33), np.float32), np.ones((20, 33), np.float32)
    x[3, 32], w[5, 0] = np.inf, np.nan
    (y,) = through(linear(7, 20, 33), inputs=[x, w, np.zeros(20, np.float32)]).outputs
    assert np.isnan(y[:, 5]).all()
    assert np.isinf(np.delete(y[3], 5)).all()
    assert (np.delete(np.delete(y, 3, 0), 5, 1) == 33).all()


def test_many_rows_are_worth_packing_at_each_call() -> None:
    kinds = {}
    for rows in (1, 8, 128, 8192):
        program = lower(parse(linear(rows, 768, 768)), "cpu", threads=2).program
        kinds[rows] = sorted(k.kind for k in program.kernels)
    assert kinds == {1: ["gemm"], 8: ["gemm"], 128: ["gemm"], 8192: ["gemm", "pack"]}


def test_tiles_multiply_many_rows_faster_than_vectors() -> None:
    machine = cpu_target("cpu:sapphirerapids")
    kinds = {}
    for rows in (1, 512):
        selector = Selector(machine, 2)
        program = lower(parse(linear(rows, 4096, 4096, "bf16")), machine.name, selector=selector).program
        kinds[rows] = sorted(k.kind for k in program.kernels)
    assert kinds == {1: ["gemm"], 512: ["gemm", "pack"]}
