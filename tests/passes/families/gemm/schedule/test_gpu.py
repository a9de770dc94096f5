"""Candidates for products on GPUs: they fit, and the cost model prefers what suits the shape."""

from __future__ import annotations

from math import ceil

import pytest

from fusec.passes.families.gemm.schedule.gpu import (
    MAX_ACCUMULATORS,
    GpuGemmSchedule,
    GpuGemvSchedule,
    Making,
    Problem,
    gemm_candidates,
    predict,
)
from fusec.target.gpu import gpu_target

TARGET = gpu_target("cuda:sm_90")
TARGETS = ["cuda:sm_80", "cuda:sm_86", "cuda:sm_90", "cuda:sm_100", "hip:gfx942"]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("products", [1, 2, 3])
@pytest.mark.parametrize("bits", [16, 32])
def test_candidates_fit(target: str, products: int, bits: int) -> None:
    gpu = gpu_target(target)
    shapes = ((8192, 4096, 4096), (16, 4096, 4096), (1, 100, 100), (300, 7, 3), (8, 8, 64), (3, 3, 3), (16, 16, 9000))
    for shape in shapes:
        found = gemm_candidates(Problem(1, *shape, bits, products), gpu)
        assert found
        for s in found:
            if isinstance(s, GpuGemmSchedule):
                assert (s.m + s.n * products) * s.k * bits // 8 * s.launch.stages <= gpu.shared_memory
                assert s.m * s.n * products <= MAX_ACCUMULATORS * s.launch.warps // 8


def test_no_product_is_too_small_or_too_deep() -> None:
    for shape in ((1, 1, 1, 1), (5, 3, 2, 1), (1, 2, 2, 10**6), (70000, 1, 1, 64)):
        for exact, bits in ((False, 16), (False, 32), (True, 32)):
            assert gemm_candidates(Problem(*shape, bits, exact=exact), TARGET)


def test_blocks_walk_where_there_are_more_tiles_than_blocks() -> None:
    (large, small) = (Problem(1, n, n, 4096, 16) for n in (4096, 512))
    assert any(isinstance(s, GpuGemmSchedule) and s.persistent for s in gemm_candidates(large, TARGET))
    for s in gemm_candidates(large, TARGET):
        if isinstance(s, GpuGemmSchedule) and s.persistent:
            assert s.persistent < ceil(large.m / s.m) * ceil(large.n / s.n)
    assert not any(isinstance(s, GpuGemmSchedule) and s.persistent for s in gemm_candidates(small, TARGET))


def test_few_vectors_are_read_along_with_the_matrix_and_more_go_to_the_matrix_units() -> None:
    for vectors, kind in ((1, GpuGemvSchedule), (2, GpuGemvSchedule), (16, GpuGemmSchedule), (64, GpuGemmSchedule)):
        assert isinstance(gemm_candidates(Problem(1, vectors, 8192, 4096, 16), TARGET)[0], kind)
        assert isinstance(gemm_candidates(Problem(1, 8192, vectors, 4096, 16), TARGET)[0], kind)


def test_few_tiles_of_a_long_sum_are_split() -> None:
    assert gemm_candidates(Problem(1, 128, 128, 16384, 16), TARGET)[0].split > 1
    assert gemm_candidates(Problem(1, 1, 16, 65536, 16), TARGET)[0].split > 1
    assert gemm_candidates(Problem(1, 8192, 8192, 16384, 16), TARGET)[0].split == 1


def test_longer_sums_are_predicted_to_take_longer() -> None:
    for m in (1, 16, 128, 4096):
        times = [
            min(predict(p, s, TARGET) for s in gemm_candidates(p, TARGET))
            for p in (Problem(1, m, 4096, k, 16) for k in (512, 2048, 8192))
        ]
        assert times == sorted(times)


def test_no_computed_operand_goes_into_hoppers_matrix_units_from_registers() -> None:
    made = Making(1.0, 2)
    for shape in ((16, 4096, 4096), (64, 4096, 4096), (300, 512, 1024)):
        for left, right in ((made, None), (None, made), (made, made)):
            found = gemm_candidates(Problem(1, *shape, 16, left=left, right=right), TARGET)
            blocks = [s for s in found if isinstance(s, GpuGemmSchedule)]
            assert blocks
            for s in blocks:
                first, rows = (right, s.n) if s.transposed else (left, s.m)
                assert first is None or rows < 64
                assert not s.persistent


def test_computed_operands_are_read_as_they_lie() -> None:
    """Weights of 8 bits are half as much to read; computing them keeps the units busier in more blocks."""
    plain, coded = Problem(1, 1, 14336, 4096, 16), Problem(1, 1, 14336, 4096, 16, right=Making(1.0, 2))
    assert predict(coded, gemm_candidates(coded, TARGET)[0], TARGET) < predict(
        plain, gemm_candidates(plain, TARGET)[0], TARGET
    )
    few = Problem(1, 16, 14336, 4096, 16, right=Making(1.0, 2))
    assert gemm_candidates(few, TARGET)[0].split > 1


@pytest.mark.parametrize("target", TARGETS)
def test_candidates_that_compute_operands_fit(target: str) -> None:
    gpu = gpu_target(target)
    for m in (1, 16, 64, 300):
        p = Problem(1, m, 4096, 4096, 16, left=Making(4.0, 3), right=Making(1.0, 2))
        for s in gemm_candidates(p, gpu):
            if isinstance(s, GpuGemmSchedule):
                read = (4 * s.m + s.n) * s.k * s.launch.stages
                assert read + (s.m + s.n) * s.k * 2 <= gpu.shared_memory


@pytest.mark.parametrize("target", TARGETS)
def test_operands_that_are_computed_and_not_read(target: str) -> None:
    made = Making(0.0, 4)
    found = gemm_candidates(Problem(1, 64, 64, 64, 32, left=made, right=made, exact=True), gpu_target(target))
    assert found
    assert all(0 < predict(Problem(1, 64, 64, 64, 32, left=made, right=made), s, gpu_target(target)) < 1 for s in found)
