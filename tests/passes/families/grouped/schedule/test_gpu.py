"""Schedules of grouped products: which tiles come first, measured on an H200."""

from __future__ import annotations

import pytest

from fusec.passes.families.grouped.schedule.gpu import GroupedProblem, grouped_candidates
from fusec.target.gpu import gpu_target

H200 = gpu_target("cuda:H200")


def first(rows: int, groups: int, n: int, k: int, dots: int = 1) -> tuple[int, int, int]:
    """The rows, columns and warps of the tile that is taken."""
    found = grouped_candidates(GroupedProblem(rows, groups, (), n, k, 16, dots, False), H200)[0]
    return found.m, found.n, found.launch.warps


@pytest.mark.parametrize(
    ("problem", "tile"),
    [
        ((8192, 8, 2048, 5632), (128, 256, 8)),
        ((32768, 64, 2048, 1024), (128, 256, 8)),
        ((16384, 32, 2048, 4096), (128, 256, 8)),
        ((8192, 8, 5632, 2048, 2), (128, 128, 8)),
        ((32768, 64, 1024, 2048, 2), (128, 128, 8)),
        ((128, 64, 1024, 2048, 2), (16, 64, 4)),
        ((128, 64, 2048, 1024), (16, 64, 4)),
    ],
)
def test_the_fastest_tile_is_taken(problem: tuple[int, ...], tile: tuple[int, int, int]) -> None:
    assert first(*problem) == tile


def test_few_rows_take_as_long_as_their_matrices_need_to_arrive() -> None:
    few = GroupedProblem(128, 64, (), 1024, 2048, 16, 2, False)
    fewer = GroupedProblem(8, 64, (), 1024, 2048, 16, 2, False)
    assert few.arrival(H200) > 64 * 1024 * 2048 * 2 * 2 / H200.rates.read
    assert grouped_candidates(fewer, H200)[0].seconds < grouped_candidates(few, H200)[0].seconds / 4
