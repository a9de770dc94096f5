# SPDX-License-Identifier: Apache-2.0
"""Schedules of attention by mma.sync (sm_80 and later), best first."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil
from typing import ClassVar

from fusec.passes.families.attention.schedule.size import READS_IN_FRAGMENTS, AttentionSize, waves
from fusec.passes.schedule.launch import Launch
from fusec.target.gpu import GpuTarget
from fusec.tile.kernel import Language


@dataclass(frozen=True)
class MmaAttentionSchedule:
    """A block's ``warps`` do ``queries`` rows against ``keys`` at a time, with ``stages`` buffers (1 or 2) of those."""

    language: ClassVar[Language] = "cuda"
    queries: int
    keys: int
    warps: int
    stages: int
    seconds: float = field(default=0.0, compare=False)

    @property
    def launch(self) -> Launch:
        return Launch(self.warps, self.stages)

    def describe(self) -> tuple[tuple[str, int | str], ...]:
        return (
            ("queries", self.queries),
            ("keys", self.keys),
            ("warps", self.warps),
            ("stages", self.stages),
        )


_ATTENTION = (
    (64, ((128, 128, 4, 1), (128, 64, 4, 2), (64, 64, 4, 1))),
    (128, ((128, 64, 4, 2), (128, 64, 4, 1), (128, 32, 4, 1), (64, 64, 4, 1))),
    (256, ((64, 64, 4, 1), (128, 64, 8, 1), (64, 32, 4, 1))),
)
"""For heads of so many columns at most: queries, keys, warps, buffers; in the order of their rate on an H200 (heads of
64: 341, 339 and 317 TFLOP/s; of 128: 386, 381, 362 and 313; of 256: 337, 336 and 294), whose SMs hold two of each."""


def mma_attention_candidates(size: AttentionSize, target: GpuTarget) -> list[MmaAttentionSchedule]:
    """Schedules for attention in 16 bits, best first: two blocks an SM before one. None for too little work."""
    if target.backend != "cuda" or not isinstance(target.arch, int) or target.arch < 80 or size.bits != 16:
        return []
    enough = size.rows >= 64 and size.heads * ceil(size.rows / 128) >= target.sms // 2
    columns = max(size.depth, size.values)
    if size.whole or not enough or min(size.depth, size.values) < 16:
        return []
    blocks = next((list(found) for most, found in _ATTENTION if columns <= most), [])
    found = {MmaAttentionSchedule(*block): _attention_shared(*block, size) for block in blocks}
    fitting = [s for s, shared in found.items() if shared <= target.shared_memory]
    ordered = sorted(fitting, key=lambda s: 2 * found[s] > target.shared_memory)
    if not ordered:
        return []
    seconds = _predict(size, ordered[0], target)
    return [replace(s, seconds=seconds / _LATER**position) for position, s in enumerate(ordered)]


_SHARE, _WIDE_SHARE = 1.0, 0.74
"""What is reached of the rate at which dots and softmax take turns: with heads of up to 128 columns, and of more,
whose registers don't hold two blocks an SM."""
_LATER = 0.97
"""What a block is taken to keep of the rate of the one before it."""
_START = 1.5e-6
"""Seconds until the first keys have arrived, and after the last."""


def _predict(size: AttentionSize, s: MmaAttentionSchedule, target: GpuTarget) -> float:
    """Seconds of the usual best block."""
    deep, wide = (16 * ceil(n / 16) for n in (size.depth, size.values))
    share = _SHARE if max(deep, wide) <= 128 else _WIDE_SHARE
    point = (
        size.matmuls(deep, wide, target.rates.warp_tensor) + size.reading(*READS_IN_FRAGMENTS).softmax(target)
    ) / share
    blocks = size.heads * ceil(size.rows / s.queries)
    work = waves(size, s.queries, 1.0, s.keys, target) * target.sms * point
    return target.rates.launch + _START + max(work, size.traffic(target, blocks))


def _attention_shared(queries: int, keys: int, warps: int, stages: int, size: AttentionSize) -> int:
    """Bytes of shared memory, for rows that are padded to 128 bytes."""
    deep, wide = (ceil(n / 64) * 128 for n in (size.depth, size.values))
    return queries * deep + stages * keys * (deep + wide)
