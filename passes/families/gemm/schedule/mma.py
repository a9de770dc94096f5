# SPDX-License-Identifier: Apache-2.0
"""Schedules of matmuls by mma.sync (sm_80 and later), best predicted first."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil
from typing import ClassVar

from fusec.passes.families.gemm.schedule.gpu import Computed, made_by_element
from fusec.passes.schedule.base import by_seconds
from fusec.passes.schedule.launch import Launch
from fusec.target.gpu import GpuTarget
from fusec.tile.kernel import Language


@dataclass(frozen=True)
class MmaGemmSchedule:
    """A block computes ``m`` by ``n`` of the result in steps of ``k``, ``stages`` of them in shared memory.

    A warp has ``warp_m`` by ``warp_n`` of the result. seconds: what the cost model says of a matmul.
    """

    language: ClassVar[Language] = "cuda"
    m: int
    n: int
    k: int
    stages: int
    warp_m: int
    warp_n: int
    seconds: float = field(default=0.0, compare=False)

    @property
    def launch(self) -> Launch:
        return Launch(self.m * self.n // (self.warp_m * self.warp_n), self.stages)

    def describe(self) -> tuple[tuple[str, int | str], ...]:
        return (
            ("block", f"{self.m}x{self.n}x{self.k}"),
            ("warp", f"{self.warp_m}x{self.warp_n}"),
            ("stages", self.stages),
        )


_TILES = (
    (128, 256, 128, 3, 64, 64, 0.97),
    (256, 128, 128, 3, 64, 64, 0.96),
    (128, 256, 64, 4, 64, 64, 0.94),
    (128, 128, 128, 3, 64, 64, 0.92),
    (128, 128, 64, 4, 64, 64, 0.88),
    (128, 64, 128, 4, 64, 32, 0.74),
    (64, 128, 128, 4, 32, 64, 0.74),
    (64, 64, 128, 5, 32, 32, 0.60),
    (32, 64, 256, 4, 16, 32, 0.40),
)
"""Rows, columns, bytes of a step, stages, a warp's rows and columns; the share of the instructions' rate reached
with many tiles. On an H200, 4096³ in bf16: 512, 499, 492, 488, 475, 394, 396 TFLOP/s. Small tiles are used where there
are few, which wait for memory: 128x4096x4096 has 168 TFLOP/s with five stages, 116 with three.
Wider ones share an SM by twos."""

_MOST_RESULTS = 64 * 64
"""Elements of the results that a warp keeps in registers."""
_TILE = 1.2e-6
"""Seconds of a tile until its first MMAs and after its last, where others came before it."""
_AWAY = 0.9e-6
"""Seconds until a copy from device memory has arrived."""
_SOLO = 0.8
"""The share of its rate that one block of four warps reaches alone on an SM."""
_SHALLOW = 0.93
"""What is kept of the rate where fewer stages fit shared memory."""
_OF_TF32 = 0.85
"""What matmuls of 32 bits keep of the half of the rate that they have."""
_COPIES = {16: 1.0, 8: 0.62, 4: 0.44, 2: 0.31, 1: 0.2}
"""What is left of the rate with narrower copies: 512, 319, 224 and 159 TFLOP/s (decision 15)."""
_WARPS = 8
"""Warps of an SM whose registers hold results of that size."""


def mma_candidates(
    batches: int,
    m: int,
    n: int,
    k: int,
    target: GpuTarget,
    dots: int = 1,
    bits: int = 16,
    computed: Computed = (),
    copy: int = 16,
) -> list[MmaGemmSchedule]:
    """Schedules for matmuls of operands of 16 bits, or of 32 that may be rounded to TF32, best predicted first.

    computed: what it takes to have the elements of the left and of the right operands, where that is more than reading.
    copy: bytes that a thread can copy at once.
    None for GPUs before sm_80 and others than NVIDIA's.
    """
    if target.backend != "cuda" or not isinstance(target.arch, int) or target.arch < 80 or bits > 32:
        return []
    if not batches * m * n * k:
        return []
    found: list[MmaGemmSchedule] = []
    for rows, columns, step, stages, warp_m, warp_n, share in _TILES:
        if warp_m * warp_n * dots > _MOST_RESULTS or (rows > 32 and rows >= 2 * max(m, 32)):
            continue
        item = bits // 8
        step_bytes = (rows + dots * columns) * step
        fitting = min(stages, target.shared_memory // step_bytes)
        if fitting < 2:
            continue
        share *= (1.0 if fitting == stages else _SHALLOW) * _COPIES[copy]
        s = MmaGemmSchedule(rows, columns, step // item, fitting, warp_m, warp_n)
        seconds = _predict(batches, m, n, k, s, dots, item, share, target)
        tiles = batches * ceil(m / rows) * ceil(n / columns)
        seconds += tiles * k * made_by_element(rows, dots * columns, computed) / target.rates.issue
        found.append(replace(s, seconds=seconds))
    return sorted(found, key=by_seconds)


def _predict(
    batches: int, m: int, n: int, k: int, s: MmaGemmSchedule, dots: int, item: int, share: float, target: GpuTarget
) -> float:
    """Seconds: each SM works through its tiles, as many at a time as its registers and shared memory hold."""
    tiles = batches * ceil(m / s.m) * ceil(n / s.n)
    shared = s.stages * (s.m + dots * s.n) * s.k * item
    resident = max(1, min(target.shared_memory // shared, _WARPS // s.launch.warps))
    each = ceil(tiles / target.sms)
    beside = min(each, resident)
    rate = target.rates.warp_tensor * share / target.sms
    if item == 4:
        rate *= _OF_TF32 / 2
    if beside == 1 and s.launch.warps < _WARPS:
        rate *= _SOLO
    rounds, steps = ceil(each / resident), ceil(k / s.k)
    multiply = each * 2.0 * s.m * s.n * dots * steps * s.k / rate
    arrive = rounds * steps * _AWAY / (s.stages - 1)
    near, far = tiles * (s.m + dots * s.n) * k, batches * ((m + dots * n) * k + m * n)
    traffic = max(arrive, item * near / target.rates.l2, item * far / target.rates.read)
    return target.rates.launch + (rounds - 1) * _TILE + max(multiply, traffic) + 0.1 * min(multiply, traffic)
