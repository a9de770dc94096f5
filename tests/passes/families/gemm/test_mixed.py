"""Products of bf16 and i8 by the units for them: AMX programs in the tile IR's interpreter, vector ones compiled."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from fixed_schedule import Fixed
from products import int8_product
from programs import Run, check

from fusec.ir.types import DType, bf16, f32, i8
from fusec.passes.families.gemm.schedule.mixed import (
    MixedGemmSchedule,
    MixedProblem,
    depth_step,
    mixed_candidates,
)
from fusec.passes.families.record import schedule_from_text, schedule_to_text
from fusec.passes.select import Selector
from fusec.target.cpu import CpuTarget, cpu_target
from fusec.tile.nodes import Dot, Grid, RegisterTile, statements

AMX = cpu_target("cpu:sapphirerapids")
HOST = cpu_target()
OF_TILES, OF_GROUPS = "cpu:sapphirerapids", "cpu:znver5"
runs_groups = HOST.multiplies(bf16) and HOST.multiplies(i8)
needs_groups = pytest.mark.skipif(not runs_groups, reason="no AVX512-BF16 here")


def linear(m: int, n: int, k: int, batch: int = 0) -> str:
    b = f"{batch}, " if batch else ""
    axes = "{contract=[2]x[2], batch=[0]x[0], dtype=f32}" if batch else "{contract=[1]x[1], dtype=f32}"
    w = f"{b}{n}, {k}"
    return f"""graph @g(%x: bf16[{b}{m}, {k}], %w: bf16[{w}] static "w", %c: bf16[{n}], %r: bf16[{b}{m}, {n}]) {{
        %h = dot(%x, %w) {axes} : f32[{b}{m}, {n}]
        %cc = cast(%c) : f32[{n}]
        %a = add(%h, %cc) : f32[{b}{m}, {n}]
        %z = cast(%a) : bf16[{b}{m}, {n}]
        %y = mul(%z, %r) : bf16[{b}{m}, {n}]
        return %y
    }}"""


def three(m: int, n: int, k: int, dtype: DType) -> str:
    """Products of the same rows, of which a result needs two."""
    weights = ", ".join(f'%w{i}: {dtype}[{n}, {k}] static "w{i}"' for i in range(3))
    dots = "\n".join(f"%h{i} = dot(%x, %w{i}) {{contract=[1]x[1], dtype=f32}} : f32[{m}, {n}]" for i in range(3))
    return f"""graph @g(%x: {dtype}[{m}, {k}], {weights}) {{
        {dots}
        %y = mul(%h0, %h2) : f32[{m}, {n}]
        return %y, %h1
    }}"""


def through(
    text: str, schedule: MixedGemmSchedule | None, target: str, inputs: object = None, kind: str = "gemm"
) -> Run:
    machine = cpu_target(target)
    selector = Selector(machine, 2) if schedule is None else Fixed(machine, 2, {}, schedule)
    compiled = machine.runs_here
    run = check(text, inputs, selector=selector, slack=2, atol=1e-5, compiled=compiled, target=target)  # type: ignore[arg-type]
    assert run.kernels[-1] == kind
    if kind == "gemm":
        assert ("in tiles" in run.lowered.stages["tile"]) == machine.multiplies_in_tiles(bf16)
    return run


SIZES = [(1, 1, 1), (1, 40, 9), (37, 1, 5), (16, 32, 32), (32, 64, 64), (33, 65, 20), (13, 130, 70), (48, 70, 64)]


@pytest.mark.parametrize("target", [OF_TILES, pytest.param(OF_GROUPS, marks=needs_groups)])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_proposed(size: tuple[int, int, int], target: str) -> None:
    through(linear(*size), None, target, kind="row" if size[1] == 1 else "gemm")  # one column is a sum
    through(int8_product(*size), None, target)


def odd_schedule(rng: Random, dtype: DType, k: int, tiles: bool) -> MixedGemmSchedule:
    """Blocks that divide nothing, K in several parts, rows packed."""
    registers = (
        RegisterTile(rng.choice([5, 16, 32]), rng.choice([16, 32]), tiles=True)
        if tiles
        else RegisterTile(rng.randint(1, 6), 16 * rng.choice([1, 2]), rng.choice([1, 2]))
    )
    step = depth_step(dtype, tiles)
    depth = -(-k // step)
    parts = rng.choice([p for p in range(1, depth + 1) if depth % p == 0])
    return MixedGemmSchedule(
        registers.rows * rng.randint(1, 2),
        registers.columns * rng.randint(1, 3),
        depth // parts * step,
        registers,
        rng.random() < 0.5,
        True,
    )


@pytest.mark.parametrize("target", [OF_TILES, pytest.param(OF_GROUPS, marks=needs_groups)])
@pytest.mark.parametrize("seed", range(10))
def test_odd_schedules(seed: int, target: str) -> None:
    rng = Random(seed)
    m, n, k = rng.choice([1, 23, 40]), rng.choice([1, 33, 80]), rng.choice([7, 64, 100, 192])
    tiles = target == OF_TILES
    batch = rng.choice([0, 2]) if min(m, n) > 1 else 0  # else no product is made
    through(linear(m, n, k, batch), odd_schedule(rng, bf16, k, tiles), target, kind="row" if n == 1 else "gemm")
    through(int8_product(m, n, k), odd_schedule(rng, i8, k, tiles), target)


@needs_groups
def test_what_lies_beyond_the_depth_counts_as_zero() -> None:
    """Infinities and NaN reach their own rows and columns alone."""
    x, w = np.ones((18, 33), np.float32), np.ones((20, 33), np.float32)
    x[3, 32], w[5, 0] = np.inf, np.nan
    inputs = [a.astype(bf16.numpy) for a in (x, w, np.zeros(20, np.float32), np.ones((18, 20), np.float32))]
    for target in (OF_TILES, OF_GROUPS):
        (y,) = through(linear(18, 20, 33), None, target, inputs).outputs
        y = y.astype(np.float32)
        assert np.isnan(y[:, 5]).all()
        assert np.isinf(np.delete(y[3], 5)).all()
        assert (np.delete(np.delete(y, 3, 0), 5, 1) == 33).all()


@pytest.mark.parametrize("name", ["cpu:znver5", "cpu:sapphirerapids"])
@pytest.mark.parametrize("dtype", [bf16, i8], ids=str)
@pytest.mark.parametrize("size", [(512, 3072, 768), (1, 4096, 4096), (77, 64, 9000), (1, 1, 1)], ids=str)
def test_candidates_fit_the_target(name: str, dtype: DType, size: tuple[int, int, int]) -> None:
    target: CpuTarget = cpu_target(name)
    candidates = mixed_candidates(MixedProblem(1, *size, dtype, True), target, 4)
    assert candidates
    for s in candidates:
        step = depth_step(dtype, s.registers.tiles)
        assert s.tile_k % step == 0
        assert -(-size[2] // step) * step % s.tile_k == 0
        assert s.tile_m % s.registers.rows == s.block_n % s.registers.columns == 0
        assert s.registers.tiles or s.registers.rows * s.registers.columns // 16 < target.vector_registers
        assert s.registers.tiles == target.multiplies_in_tiles(dtype)
    assert schedule_from_text(schedule_to_text(candidates[0])) == candidates[0]


def test_without_the_instructions_products_are_of_f32() -> None:
    run = check(linear(9, 40, 20), selector=Selector(cpu_target("cpu:x86-64-v3"), 2), slack=2, atol=1e-5)
    assert "acc: f32" in run.lowered.stages["tile"]
    assert "w_packed: f32" in run.lowered.stages["tile"]


@pytest.mark.parametrize(("k", "n", "width"), [(768, 2304, 384), (3072, 768, 192)])
def test_columns_of_a_task_leave_room_in_l2_for_rows_that_pass(k: int, n: int, width: int) -> None:
    """Products of BERT with 512 tokens on Emerald Rapids: 192 columns 1.34 ms, 128 1.47; 384 0.94, 256 1.00."""
    best = mixed_candidates(MixedProblem(1, 512, n, k, bf16, True), AMX, 2)[0]
    assert best.block_n == width


@pytest.mark.parametrize("m", [1, 5, 8, 13])
@pytest.mark.parametrize("target", [OF_TILES, OF_GROUPS])
def test_few_rows_read_panels_from_end_to_end(m: int, target: str) -> None:
    best = mixed_candidates(MixedProblem(1, m, 4096, 4096, bf16, True), cpu_target(target), 2)[0]
    assert best.registers.prefetch_bytes > 0
    assert best.tile_k == 4096
    assert 4096 // best.block_n >= 2
    usual = mixed_candidates(MixedProblem(1, 512, 4096, 4096, bf16, True), cpu_target(target), 2)
    assert not any(s.registers.prefetch_bytes for s in usual)


@pytest.mark.parametrize(("m", "dtype"), [(1, bf16), (5, bf16), (1, f32)], ids=str)
def test_few_rows_pass_one_weight_at_a_time(m: int, dtype: DType) -> None:
    """Two that a result needs together pass together; more rows meet each block of all weights at once."""
    target = replace(cpu_target(OF_GROUPS), l2=4096)

    def loops(rows: int) -> list[int]:
        selector = Selector(target, 2)
        run = check(three(rows, 96, 64, dtype), selector=selector, slack=2, atol=1e-5, compiled=runs_groups)
        kernel = next(k for k in run.lowered.program.kernels if k.kind == "gemm")
        (grid,) = kernel.body
        assert isinstance(grid, Grid)
        found = [len({s.accumulator.buffer for s in statements((part,)) if isinstance(s, Dot)}) for part in grid.body]
        return [count for count in found if count]

    assert sorted(loops(m)) == [1, 2]
    assert loops(64) == [3]


@pytest.mark.parametrize("target", [OF_TILES, pytest.param(OF_GROUPS, marks=needs_groups)])
@pytest.mark.parametrize("size", [(1, 64, 64), (8, 70, 100)], ids=str)
def test_schedules_of_few_rows(target: str, size: tuple[int, int, int]) -> None:
    machine = replace(cpu_target(target), l2=4096)
    m, n, k = size
    found = mixed_candidates(MixedProblem(1, m, n, k, bf16), machine, 2)
    through(linear(*size), next(s for s in found if s.registers.prefetch_bytes), target)
