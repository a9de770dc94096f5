"""Which schedules products by mma.sync are given."""

from __future__ import annotations

import pytest

from fusec.passes.families.gemm.schedule.mma import MmaGemmSchedule, mma_candidates
from fusec.target.gpu import gpu_target


def first(target: str, m: int, n: int, k: int, products: int = 1, bits: int = 16) -> MmaGemmSchedule:
    return mma_candidates(1, m, n, k, gpu_target(target), products, bits)[0]


@pytest.mark.parametrize(
    ("target", "shape", "block"),
    [
        ("cuda:h200", (4096, 4096, 4096), "128x256x64"),
        ("cuda:a100", (4096, 4096, 4096), "128x256x64"),
        ("cuda:a10", (4096, 4096, 4096), "128x256x32"),  # 99 KiB of shared memory
        ("cuda:a100", (512, 512, 512), "64x64x64"),  # wider tiles would leave most units idle
        ("cuda:a100", (16, 4096, 4096), "32x64x128"),
    ],
)
def test_best(target: str, shape: tuple[int, int, int], block: str) -> None:
    assert dict(first(target, *shape).describe())["block"] == block


@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_86", "cuda:sm_89", "cuda:sm_90", "cuda:sm_100"])
@pytest.mark.parametrize(("products", "bits"), [(1, 16), (2, 16), (1, 32)])
def test_everything_fits_shared_memory_and_registers(target: str, products: int, bits: int) -> None:
    card = gpu_target(target)
    found = mma_candidates(1, 4096, 4096, 4096, card, products, bits)
    assert found
    for s in found:
        assert (s.m + s.n * products) * s.k * bits // 8 * s.stages <= card.shared_memory
        assert s.warp_m * s.warp_n * products <= 64 * 64
        assert s.stages >= 2


def test_left_to_others() -> None:
    assert not mma_candidates(1, 4096, 4096, 4096, gpu_target("hip:gfx942"))
    assert not mma_candidates(1, 4096, 4096, 4096, gpu_target("cuda:sm_80"), bits=64)
    assert not mma_candidates(1, 4096, 4096, 4096, gpu_target("cuda:sm_80"), dots=9)
    assert not mma_candidates(0, 4096, 4096, 4096, gpu_target("cuda:sm_80"))


def test_a_few_rows_take_as_long_as_their_matrix_is_read() -> None:
    card = gpu_target("cuda:a100")
    (best, *_) = mma_candidates(1, 1, 8192, 8192, card)
    assert best.seconds > 2 * 8192 * 8192 / card.bandwidth
