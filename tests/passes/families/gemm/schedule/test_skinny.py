"""Which schedules matmuls of few vectors with a computed operand are given."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fusec.passes.families.gemm.schedule.skinny import MOST_VECTORS, SkinnyProblem, skinny_candidates
from fusec.target.gpu import gpu_target

INT4 = SkinnyProblem(batches=1, vectors=16, lines=4096, k=14336, dots=1, bytes=0.52, instructions=2.7)


@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_86", "cuda:sm_90", "cuda:sm_100"])
@pytest.mark.parametrize("vectors", [1, 8, 9, 16, 40, 64, 256])
@pytest.mark.parametrize("dots", [1, 2])
def test_everything_fits(target: str, vectors: int, dots: int) -> None:
    gpu = gpu_target(target)
    found = skinny_candidates(replace(INT4, vectors=vectors, dots=dots), gpu)
    assert found
    assert found == sorted(found, key=lambda s: s.seconds)
    for s in found:
        shares = s.shares
        assert INT4.k % shares.lane == 0
        assert shares.lines * shares.vectors * dots <= 128 * 32
        assert shares.vectors % 8 == 0
        assert s.launch.warps == shares.warps <= 16
        assert shares.split == 1 or gpu.has_tma
        assert s.seconds > 0


def test_few_vectors_take_as_long_as_their_lines_are_read() -> None:
    gpu = gpu_target("cuda:h200")
    (best, *_) = skinny_candidates(replace(INT4, vectors=1), gpu)
    assert best.seconds > INT4.lines * INT4.k * INT4.bytes / gpu.rates.read + gpu.rates.launch


def test_more_vectors_take_longer() -> None:
    gpu = gpu_target("cuda:h200")
    times = [skinny_candidates(replace(INT4, vectors=n), gpu)[0].seconds for n in (1, 16, 64, 128, 256)]
    assert times == sorted(times)


@pytest.mark.parametrize(("k", "lanes"), [(14336, {64, 32}), (4080, {16}), (1000, {8})])
def test_a_lane_reads_what_divides_the_depth(k: int, lanes: set[int]) -> None:
    found = skinny_candidates(replace(INT4, k=k), gpu_target("cuda:h200"))
    assert {s.shares.lane for s in found} <= lanes


def test_left_to_others() -> None:
    h200 = gpu_target("cuda:h200")
    assert not skinny_candidates(INT4, gpu_target("hip:gfx942"))
    assert not skinny_candidates(replace(INT4, k=1001), h200)
    assert not skinny_candidates(replace(INT4, vectors=MOST_VECTORS + 1), h200)
    assert not skinny_candidates(replace(INT4, batches=0), h200)
    assert not skinny_candidates(replace(INT4, dots=9, vectors=64), h200)
