"""Every schedule gives right results: those that the cost model proposes, and odder ones."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from fixed_schedule import Fixed
from programs import check

from fusec.passes.families.attention.schedule.cpu import AttentionSchedule, attention_candidates
from fusec.passes.families.gemm.schedule.cpu import GemmSchedule, Problem, gemm_candidates, register_tiles
from fusec.passes.families.map.schedule.cpu import MapSchedule, map_schedule
from fusec.passes.families.row.schedule.cpu import RowSchedule, row_schedule
from fusec.passes.schedule.base import CpuSchedule
from fusec.target.cpu import CpuTarget, cpu_target
from fusec.tile.nodes import RegisterTile

TARGET = cpu_target("cpu")


def with_schedule(text: str, schedule: CpuSchedule) -> None:
    kind = type(schedule).__name__.lower().removesuffix("schedule")
    check(text, selector=Fixed(TARGET, 2, {}, schedule, kind), slack=8, atol=1e-5)


def gemm(m: int, n: int, k: int, batch: int = 0) -> str:
    b = f"{batch}, " if batch else ""
    axes = "{contract=[2]x[1], batch=[0]x[0]}" if batch else "{contract=[1]x[0]}"
    return f"""graph @gemm(%x: f32[{b}{m}, {k}], %w: f32[{b}{k}, {n}], %c: f32[{n}], %r: f32[{b}{m}, {n}]) {{
        %h = dot(%x, %w) {axes} : f32[{b}{m}, {n}]
        %a = add(%h, %c) : f32[{b}{m}, {n}]
        %y = mul(%a, %r) : f32[{b}{m}, {n}]
        return %y, %h
    }}"""


GEMMS = [(1, 1, 1), (1, 40, 9), (37, 1, 5), (37, 50, 1), (5, 17, 33), (70, 65, 20), (13, 130, 40), (100, 7, 64)]


@pytest.mark.parametrize("size", GEMMS, ids=str)
def test_proposed_gemms(size: tuple[int, int, int]) -> None:
    m, n, k = size
    candidates = gemm_candidates(Problem(1, m, n, k), TARGET, 2)
    for schedule in [candidates[0], *Random(m * n * k).choices(candidates, k=2)]:
        with_schedule(gemm(m, n, k), schedule)


@pytest.mark.parametrize("seed", range(14))
def test_odd_gemms(seed: int) -> None:
    """Blocks that don't divide anything, K in several pieces, rows packed or not, with and without batches."""
    rng = Random(seed)
    m, n, k = rng.choice([1, 6, 23, 40]), rng.choice([1, 15, 33, 80]), rng.choice([1, 7, 20, 37])
    registers = RegisterTile(rng.randint(1, 6), TARGET.lanes(32) * rng.choice([1, 2]))
    columns = registers.columns
    schedule = GemmSchedule(
        tile_m=registers.rows * rng.randint(1, 3),
        block_n=columns * rng.randint(1, 3),
        tile_n=columns,
        tile_k=rng.choice([4, 8, 16, 64]),
        registers=registers,
        pack_left=rng.random() < 0.5,
    )
    if k > schedule.tile_k:
        schedule = replace(schedule, pack_left=True)
    with_schedule(gemm(m, n, k, rng.choice([0, 3])), schedule)


@pytest.mark.parametrize("name", ["cpu:znver5", "cpu:x86-64-v3", "cpu:sapphirerapids"])
@pytest.mark.parametrize("problem", [Problem(1, 512, 3072, 768), Problem(8, 77, 64, 9000), Problem(1, 1, 1, 1, 64)])
def test_gemm_candidates_fit_the_target(name: str, problem: Problem) -> None:
    target = cpu_target(name)
    candidates = gemm_candidates(problem, target, 4)
    assert candidates
    for s in candidates:
        accumulators = s.registers.rows * s.registers.columns // target.lanes(problem.bits)
        assert accumulators < target.vector_registers
        assert s.block_n % s.tile_n == 0
        assert s.tile_n % s.registers.columns == 0
        assert s.tile_m % s.registers.rows == 0
        assert s.tile_k * s.k_splits(problem.k) >= problem.k


FEW, FEW_WIDE = (replace(cpu_target(name), l2=4096) for name in ("cpu", "cpu:znver5"))


@pytest.mark.parametrize("size", [(1, 1024, 64), (8, 300, 200), (5, 1100, 37)], ids=str)
def test_few_rows_share_panels_that_pass_once(size: tuple[int, int, int]) -> None:
    """Every thread has a task, also where memory bounds the work, and reads its panels from end to end.

    Eight rows pass together where there are 32 registers.
    """
    m, n, k = size
    wide = gemm_candidates(Problem(1, m, n, k), FEW_WIDE, 2)[0]
    assert (wide.tile_m, wide.tile_k, wide.pack_left) == (m, k, False)
    assert wide.registers.prefetch_bytes > 0
    assert -(-n // wide.block_n) >= 2
    best = gemm_candidates(Problem(1, m, n, k), FEW, 2)[0]
    check(gemm(m, n, k), selector=Fixed(FEW, 2, {}, best), slack=8, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 2, 16])
def test_memory_bound_products_are_shared_among_all_threads(threads: int) -> None:
    for problem in (Problem(1, 1, 4096, 4096), Problem(1, 8, 4096, 4096), Problem(1, 3, 1024, 14336, 64)):
        best = gemm_candidates(problem, TARGET, threads)[0]
        assert -(-problem.n // best.block_n) >= threads
        assert best.registers.prefetch_bytes > 0 or threads == 1


def test_intels_servers_fetch_few_rows_panels_to_l2_from_farther_ahead() -> None:
    one = Problem(1, 8, 4096, 4096)
    near, far = (gemm_candidates(one, cpu_target(f"cpu:{name}"), 2)[0] for name in ("znver5", "sapphirerapids"))
    assert 0 < near.registers.prefetch_bytes < far.registers.prefetch_bytes


def test_a_right_operand_that_stays_in_cache_is_not_fetched_ahead() -> None:
    assert not any(s.registers.prefetch_bytes for s in gemm_candidates(Problem(1, 8, 64, 64), TARGET, 2))
    assert not any(s.registers.prefetch_bytes for s in gemm_candidates(Problem(3, 512, 4096, 4096), TARGET, 2))


@pytest.mark.parametrize(("depth", "block"), [(4096, 128), (150, 150)])
def test_many_rows_fetch_the_block_that_is_multiplied_next(depth: int, block: int) -> None:
    """In parts that are summed up apart, so what lies behind a block of the panel is used after it."""
    for s in gemm_candidates(Problem(1, 512, 4096, depth), TARGET, 2):
        assert s.registers.prefetch_bytes == (block * s.registers.columns * 4 if s.tile_m > s.registers.rows else 0)


@pytest.mark.parametrize(("k", "n"), [(768, 2304), (768, 768), (768, 3072), (3072, 768)])
def test_threads_share_out_rows_so_that_all_pass_the_same_panels(k: int, n: int) -> None:
    """Four products of BERT with 128 tokens on Emerald Rapids: shared out by rows 6.1 ms, by columns 7.1."""
    best = gemm_candidates(Problem(1, 128, n, k), cpu_target("cpu:sapphirerapids"), 2)[0]
    assert (best.tile_m, best.block_n) == (64, -(-n // best.registers.columns) * best.registers.columns)


def test_register_tiles_leave_room_for_operands() -> None:
    for tile in register_tiles(TARGET, 32):
        vectors = tile.columns // TARGET.lanes(32)
        assert tile.rows * vectors + vectors + 1 <= TARGET.vector_registers


def attention(queries: int, keys: int, depth: int, values: int) -> str:
    return f"""graph @a(%q: f32[2, {queries}, {depth}], %k: f32[2, {keys}, {depth}], %v: f32[2, {keys}, {values}]) {{
        %s = dot(%q, %k) {{contract=[2]x[2], batch=[0]x[0]}} : f32[2, {queries}, {keys}]
        %i = iota() {{axis=0}} : i64[{queries}, 1]
        %j = iota() {{axis=1}} : i64[1, {keys}]
        %c = le(%j, %i) : bool[{queries}, {keys}]
        %z = select(%c, %s, f32(-inf)) : f32[2, {queries}, {keys}]
        %p = softmax(%z) {{axis=2}} : f32[2, {queries}, {keys}]
        %o = dot(%p, %v) {{contract=[2]x[1], batch=[0]x[0]}} : f32[2, {queries}, {values}]
        return %o
    }}"""


@pytest.mark.parametrize("size", [(1, 2, 1, 1), (5, 70, 8, 3), (67, 5, 16, 7), (40, 41, 5, 33)], ids=str)
def test_proposed_attentions(size: tuple[int, int, int, int]) -> None:
    queries, keys, depth, values = size
    candidates = attention_candidates(queries, keys, depth, values, 32, TARGET)
    for schedule in [candidates[0], *Random(sum(size)).choices(candidates, k=2)]:
        with_schedule(attention(*size), schedule)


@pytest.mark.parametrize("seed", range(8))
def test_odd_attentions(seed: int) -> None:
    rng = Random(seed)
    size = rng.choice([3, 20, 50]), rng.choice([2, 30, 49]), rng.choice([1, 7, 12]), rng.choice([1, 5, 18])
    columns = TARGET.lanes(32) * rng.choice([1, 2])
    tiles = [RegisterTile(rng.randint(1, 5), columns) for _ in range(2)]
    with_schedule(attention(*size), AttentionSchedule(columns, rng.choice([1, 8, 13, 64]), *tiles))


ROWS = """graph @rows(%x: f32[23, 3, 19], %w: f32[19]) {
    %m = mul(%x, %w) : f32[23, 3, 19]
    %t = tanh(%m) : f32[23, 3, 19]
    %p = softmax(%t) {axis=AXIS} : f32[23, 3, 19]
    %y = add(%p, %x) : f32[23, 3, 19]
    return %y, %t
}"""


@pytest.mark.parametrize("axis", [0, 2])
@pytest.mark.parametrize(
    "schedule", [RowSchedule(1, 0, 8), RowSchedule(5, 1 << 20, 16), RowSchedule(100, 64, 7)], ids=str
)
def test_rows(schedule: RowSchedule, axis: int) -> None:
    with_schedule(ROWS.replace("AXIS", str(axis)), schedule)


@pytest.mark.parametrize("elements", [1, 7, 64, 1000])
def test_maps(elements: int) -> None:
    text = """graph @map(%x: f32[11, 3, 19], %y: f32[19, 11]) {
        %t = permute(%y) {permutation=[1, 0]} : f32[11, 19]
        %r = reshape(%t) : f32[11, 1, 19]
        %z = sub(%x, %r) : f32[11, 3, 19]
        %e = exp(%x) : f32[11, 3, 19]
        return %z, %e
    }"""
    with_schedule(text, MapSchedule(elements))


@pytest.mark.parametrize("threads", [1, 2, 64])
def test_tasks_are_enough_for_the_threads_and_not_too_small(threads: int) -> None:
    assert map_schedule(100, threads, TARGET).task_elements == 100
    for elements in (20_000, 10**6, 10**9):
        per_task = map_schedule(elements, threads, TARGET).task_elements
        assert per_task >= 8192
        assert -(-elements // per_task) >= min(threads, elements // 8192)
    assert row_schedule(10, 100, threads, TARGET).task_rows == 10
    for rows, length in ((4096, 4096), (10**6, 8), (64, 10**6)):
        per_task = row_schedule(rows, length, threads, TARGET).task_rows
        assert -(-rows // per_task) >= min(threads, rows)


def test_a_target_of_another_kind_has_its_own_lanes() -> None:
    narrow: CpuTarget = cpu_target("cpu:x86-64-v3")
    assert narrow.lanes(32) == 8
    assert {s.registers.columns % 8 for s in gemm_candidates(Problem(1, 64, 64, 64), narrow, 2)} == {0}
