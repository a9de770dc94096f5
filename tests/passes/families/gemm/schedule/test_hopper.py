"""Which schedules Hopper's products are given."""

from __future__ import annotations

from typing import Any

import pytest

from fusec.passes.families.attention.schedule.hopper import HopperAttentionSchedule, hopper_attention_candidates
from fusec.passes.families.attention.schedule.size import AttentionSize
from fusec.passes.families.gemm.schedule.hopper import HopperGemmSchedule, HopperProblem, hopper_candidates
from fusec.target.gpu import gpu_target

SM_90 = gpu_target("cuda:sm_90")


def found(m: int, n: int, k: int, **given: Any) -> list[HopperGemmSchedule]:
    return hopper_candidates(HopperProblem(given.pop("batches", 1), m, n, k, **given), SM_90)


def first(m: int, n: int, k: int, **given: Any) -> HopperGemmSchedule:
    return found(m, n, k, **given)[0]


@pytest.mark.parametrize(
    ("shape", "block"),
    [
        ((4096, 4096, 4096), "128x256x64"),
        ((16384, 4096, 1024), "128x128x64"),  # short tiles: their epilogues run under the next tile's products
        ((8192, 14336, 4096), "128x128x64"),
        ((512, 4096, 4096), "128x128x64"),  # wider tiles would leave half of the units idle
    ],
)
def test_best(shape: tuple[int, int, int], block: str) -> None:
    assert dict(first(*shape).describe())["block"] == block


@pytest.mark.parametrize(
    ("shape", "block"),
    [
        ((802816, 168, 32), "128x168x64"),
        ((200704, 448, 168), "128x224x64"),
        ((50176, 448, 448), "128x224x64"),
        ((12544, 896, 896), "128x224x64"),
        ((8192, 640, 5760), "128x160x64"),
    ],
)
def test_tiles_cut_columns_in_equal_parts(shape: tuple[int, int, int], block: str) -> None:
    assert dict(first(*shape, defers=True).describe())["block"] == block


def test_tiles_that_boxes_can_bring() -> None:
    """Of columns that lie side by side a copy brings 64; results leave in boxes that end with a tile, or the result."""
    for n in (168, 200, 448, 1000, 1032):
        for s in found(4096, n, 512):
            assert s.n % 64 == 0 or n % s.n == 0
            assert s.n // s.pipeline.cluster_m % 8 == 0
        assert all(s.n % 64 == 0 for s in found(4096, n, 512, transposed=True))


def test_results_and_residuals_take_time() -> None:
    plain, read = (first(200704, 448, 168, defers=True, written=n << 30, reads=0).seconds for n in (0, 1))
    assert read > max(plain, (1 << 30) / SM_90.rates.copy)
    assert first(4096, 4096, 512, defers=True, reads=1).seconds > first(4096, 4096, 512, defers=True).seconds


def test_a_single_tile_is_stored_by_both_consumers() -> None:
    assert dict(first(512, 3072, 768).describe())["consumers"] == "cooperative"


def test_epilogues_that_read_run_under_products() -> None:
    assert dict(first(4096, 4096, 4096, reads=1).describe())["consumers"] == "ping-pong"


@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (16384, 4096, 1024), (8192, 14336, 4096)])
def test_epilogues_under_the_next_tile_leave_wide_tiles_the_best(shape: tuple[int, int, int]) -> None:
    described = dict(first(*shape, defers=True, reads=1).describe())
    assert (described["block"], described["consumers"]) == ("128x256x64", "cooperative")


@pytest.mark.parametrize(("shape", "split"), [((128, 4096, 4096), 2), ((256, 4096, 4096), 1), ((512, 3072, 768), 1)])
def test_few_tiles_are_split_along_k(shape: tuple[int, int, int], split: int) -> None:
    schedule = first(*shape, defers=True)
    assert schedule.pipeline.split == split
    assert dict(schedule.describe()).get("split", 1) == split


def test_a_split_leaves_each_block_some_steps() -> None:
    assert all(s.pipeline.split == 1 for s in found(256, 1024, 512))
    assert any(s.pipeline.split > 1 for s in found(256, 1024, 4096))


def test_a_single_wave_shares_no_operands() -> None:
    assert dict(first(512, 3072, 768).describe())["cluster"] == "1x1"


def test_blocks_share_operands_where_tiles_pair_up() -> None:
    assert dict(first(4096, 4096, 4096).describe())["cluster"] == "2x1"
    assert dict(first(128 * 33, 4096, 512).describe())["cluster"] == "1x2"
    assert dict(first(128 * 33, 128 * 33, 512).describe())["cluster"] == "1x1"


def test_everything_fits_shared_memory_and_registers() -> None:
    for products in (1, 2):
        for s in found(4096, 4096, 4096, dots=products):
            assert (s.m + s.n * products) * 128 * s.stages + 4 * 8192 + 2048 <= SM_90.shared_memory
            rows = s.m if s.pipeline.ping_pong else s.m // 2
            assert rows * s.n * products <= 128 * 128


def test_left_to_others() -> None:
    assert not found(64, 4096, 4096)
    assert not found(4096, 4096, 4096, dots=3)
    assert not hopper_candidates(HopperProblem(1, 4096, 4096, 4096), gpu_target("cuda:sm_80"))
    assert not found(4096, 4096, 4096, batches=0)


def attention(heads: int, keys: int, columns: int, masked: bool, bits: int = 16) -> list[HopperAttentionSchedule]:
    size = AttentionSize(heads, keys, False, masked, keys, columns, columns, bits)
    return hopper_attention_candidates(size, SM_90)


@pytest.mark.parametrize(
    ("keys", "columns", "masked", "ping_pong", "persistent"),
    [
        (4096, 64, False, False, True),
        (4096, 64, True, True, True),
        (16384, 64, False, True, False),
        (16384, 64, True, True, False),
        (4096, 128, True, True, True),
        (16384, 128, False, True, True),
        (16384, 128, True, True, False),
        (4096, 256, False, True, False),
    ],
)
def test_attention_walks_where_rows_are_short_and_there_is_room(
    keys: int, columns: int, masked: bool, ping_pong: bool, persistent: bool
) -> None:
    found = attention(64, keys, columns, masked)
    assert (found[0].ping_pong, found[0].persistent) == (ping_pong, persistent)
    assert len(set(found)) == len(found)


def test_attention_of_other_sizes_has_no_such_schedule() -> None:
    assert not attention(64, 4096, 512, False)
    assert not attention(2, 128, 64, False)
    assert not attention(64, 4096, 64, False, bits=32)


def test_blocks_that_walk_fit_shared_memory() -> None:
    """Operands of the widest heads of each list, and the results, for persistent CTAs."""
    for columns in (64, 128, 192, 256):
        for s in attention(64, 4096, columns, False):
            rows = s.queries * (2 if s.persistent else 1) + 2 * s.stages * s.keys
            assert 1024 + rows * columns * 2 <= SM_90.shared_memory


@pytest.mark.parametrize("transposed", [False, True])
def test_blocks_share_whole_copies(transposed: bool) -> None:
    """Of columns that lie side by side a copy brings 64: half a tile of 64 is none."""
    halves = [
        s.n // s.pipeline.cluster_m for s in found(2048, 2048, 1024, transposed=transposed) if s.pipeline.cluster_m > 1
    ]
    assert halves
    assert (min(halves) >= 64) is transposed


def test_a_residual_under_few_steps_is_finished_by_ping_pong() -> None:
    """1×1 convolutions of a residual network: what is deferred has no products to hide under."""
    facts = {"reads": 1, "fetched": 1, "defers": True}
    assert first(3136, 2048, 512, **facts).pipeline.ping_pong
    assert first(12544, 1024, 256, **facts).pipeline.ping_pong
    assert not first(8192, 2048, 2048, **facts).pipeline.ping_pong


def test_a_residual_that_tma_fetches_costs_less() -> None:
    read, fetched = (first(8192, 2048, 2048, reads=1, fetched=n, defers=True).seconds for n in (0, 1))
    assert fetched < read


EIGHT = {"bits": 8, "defers": True}


def test_sums_of_8_bit_floats_are_promoted() -> None:
    schedules = found(8192, 14336, 4096, promotes=1, **EIGHT)
    assert {s.pipeline.promotes for s in schedules} == {1}
    assert {s.k for s in schedules} == {128}
    assert not any(s.pipeline.ping_pong for s in schedules)
    assert {192, 128} <= {s.n for s in schedules}
    assert max(s.n for s in schedules) == schedules[0].n == 192


def test_deep_sums_of_halves_are_promoted() -> None:
    schedules = found(8192, 14336, 8192, promotes=16)
    assert {s.pipeline.promotes for s in schedules} == {16}
    assert max(s.n for s in schedules) == 192


def test_two_products_share_the_columns() -> None:
    schedules = found(8192, 14336, 4096, promotes=1, dots=2, **EIGHT)
    assert {s.n for s in schedules} == {96, 64}


def test_wide_results_are_stored_by_both_consumers_together() -> None:
    assert not found(8192, 14336, 4096, results=0)[0].pipeline.ping_pong


def test_bytes_have_columns_in_sixteens_and_no_split() -> None:
    for n in (14336, 200, 4096):
        schedules = found(8192, n, 4096, integers=True, **EIGHT)
        assert schedules
        assert all(s.n % 16 == 0 and not s.pipeline.promotes for s in schedules)
    assert {s.pipeline.split for s in found(128, 4096, 4096, integers=True, **EIGHT)} <= {1}
    assert {s.pipeline.split for s in found(128, 4096, 4096, promotes=1, **EIGHT)} == {2, 3}
