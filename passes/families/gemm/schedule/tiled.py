# SPDX-License-Identifier: Apache-2.0
"""Schedules of matmuls in SIMT arithmetic: tiles in shared memory, accumulators in the threads' registers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil
from typing import ClassVar

from fusec.passes.families.gemm.schedule.gpu import Computed, made_by_element
from fusec.passes.schedule.base import by_seconds
from fusec.passes.schedule.launch import Launch
from fusec.target.gpu import GpuTarget
from fusec.tile.kernel import Language
from fusec.tile.nodes import RegisterTile


@dataclass(frozen=True)
class TiledGemmSchedule:
    """A block computes ``m`` by ``n`` of the result in steps of ``k``, ``stages`` of them in shared memory.

    A thread has ``registers.rows`` by ``registers.columns`` of the result.
    """

    language: ClassVar[Language] = "cuda"
    m: int
    n: int
    k: int
    stages: int
    registers: RegisterTile
    seconds: float = field(default=0.0, compare=False)

    @property
    def launch(self) -> Launch:
        return Launch(self.m * self.n // (32 * self.registers.rows * self.registers.columns), self.stages)

    def describe(self) -> tuple[tuple[str, int | str], ...]:
        return (
            ("block", f"{self.m}x{self.n}x{self.k}"),
            ("thread", f"{self.registers.rows}x{self.registers.columns}"),
            ("stages", self.stages),
        )

    def shared(self, item: int) -> int:
        """Bytes of shared memory, for elements of so many bytes."""
        return self.stages * self.k * (self.m + self.n + 32 // item) * item


_BLOCKS = (
    (128, 128, 16, 3, 8, 8),
    (64, 128, 16, 3, 8, 8),
    (64, 64, 16, 4, 8, 4),
    (32, 64, 16, 4, 4, 4),
)
"""Rows, columns, depth, stages; a thread's rows and columns. On an H200, 4096³ in f32: the first 49.1 TFLOP/s, 128x256
and 256x128 47.9, 128x128 in steps of 8 46.4, cuBLAS 51.3."""


def tiled_gemm_candidates(
    batches: int, m: int, n: int, k: int, bits: int, target: GpuTarget, computed: Computed = ()
) -> list[TiledGemmSchedule]:
    """Schedules that fit shared memory and registers, best predicted first; ``computed`` as in ``mma_candidates``."""
    found: list[TiledGemmSchedule] = []
    for bm, bn, bk, stages, rows, columns in _BLOCKS:
        schedule = TiledGemmSchedule(bm, bn, bk, stages, RegisterTile(rows, columns))
        if schedule.shared(bits // 8) <= target.shared_memory:
            seconds = _predict(batches, m, n, k, bits // 8, schedule, target)
            made = batches * ceil(m / bm) * ceil(n / bn) * k * made_by_element(bm, bn, computed)
            found.append(replace(schedule, seconds=seconds + made / target.rates.issue))
    return sorted(found, key=by_seconds)


_START = 1.5e-6
"""Seconds until a block's first operands have arrived, and after its last multiplication."""


def _predict(batches: int, m: int, n: int, k: int, item: int, s: TiledGemmSchedule, target: GpuTarget) -> float:
    """Seconds: waves of blocks, at a rate that grows with the work a thread does for each element it reads."""
    tiles = batches * ceil(m / s.m) * ceil(n / s.n)
    work = s.registers.rows * s.registers.columns
    reuse = work / (s.registers.rows + s.registers.columns)
    rate = target.rates.simt * 4 / item / target.sms * reuse / (reuse + 1.46)
    waves = ceil(tiles / (2 * target.sms)) if tiles > target.sms else 0.6  # a block alone is not slowed by another
    compute = waves * 2 * 2.0 * s.m * s.n * k / rate
    moved = target.rates.moved(item * batches * (m + n) * k, item * batches * m * n)
    return target.rates.launch + _START + max(compute, moved)
