"""Which schedules Hopper's products are given."""

from __future__ import annotations

import pytest

from fusec.passes.schedule.hopper import HopperGemmSchedule, hopper_candidates
from fusec.target.gpu import gpu_target

SM_90 = gpu_target("cuda:sm_90")


def first(m: int, n: int, k: int, products: int = 1, batches: int = 1) -> HopperGemmSchedule:
    return hopper_candidates(batches, m, n, k, SM_90, products)[0]


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


def test_a_single_tile_is_stored_by_both_consumers() -> None:
    assert dict(first(512, 3072, 768).describe())["consumers"] == "together"


def test_epilogues_that_read_run_under_products() -> None:
    found = hopper_candidates(1, 4096, 4096, 4096, SM_90, reads=1)
    assert dict(found[0].describe())["consumers"] == "in turns"


def test_blocks_share_operands_where_tiles_pair_up() -> None:
    assert dict(first(4096, 4096, 4096).describe())["cluster"] == "2x1"
    assert dict(first(128 * 33, 4096, 512).describe())["cluster"] == "1x2"
    assert dict(first(128 * 33, 128 * 33, 512).describe())["cluster"] == "1x1"


def test_everything_fits_shared_memory_and_registers() -> None:
    for products in (1, 2):
        for s in hopper_candidates(1, 4096, 4096, 4096, SM_90, products):
            assert (s.m + s.n * products) * 128 * s.stages + 4 * 8192 + 2048 <= SM_90.shared_memory
            rows = s.m if s.pipeline.turns else s.m // 2
            assert rows * s.n * products <= 128 * 128


def test_left_to_others() -> None:
    assert not hopper_candidates(1, 16, 4096, 4096, SM_90)
    assert not hopper_candidates(1, 4096, 4096, 4096, SM_90, products=3)
    assert not hopper_candidates(1, 4096, 4096, 4096, gpu_target("cuda:sm_80"))
    assert not hopper_candidates(0, 4096, 4096, 4096, SM_90)
