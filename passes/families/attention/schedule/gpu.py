# SPDX-License-Identifier: Apache-2.0
"""Schedules of attention on GPUs, the usual best first."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil
from typing import ClassVar

from fusec.ir.indexing import pow2
from fusec.passes.families.attention.schedule.size import (
    BETWEEN_STANDING,
    FOUND_LATER,
    READS_IN_ROWS,
    AttentionSize,
    overlapped,
    waves,
)
from fusec.passes.schedule.launch import Launch
from fusec.target.gpu import GpuTarget
from fusec.tile.kernel import Language


@dataclass(frozen=True)
class GpuAttentionSchedule:
    """A block does ``queries`` rows against ``keys`` at a time, in one of ``split`` parts of the keys."""

    language: ClassVar[Language] = "triton"
    queries: int
    keys: int
    launch: Launch
    split: int = 1
    seconds: float = field(default=0.0, compare=False)

    def describe(self) -> tuple[tuple[str, int | str], ...]:
        return (
            ("queries", self.queries),
            ("keys", self.keys),
            ("split", self.split),
            ("warps", self.launch.warps),
            ("stages", self.launch.stages),
        )


_Blocks = tuple[tuple[int, int, int, int], ...]

_ATTENTION_BLOCKS: _Blocks = (
    (64, 64, 4, 3),
    (128, 64, 4, 2),
    (128, 128, 8, 3),
    (128, 64, 8, 3),
    (64, 128, 4, 2),
    (64, 32, 4, 2),
    (64, 64, 8, 2),
    (64, 32, 8, 2),
    (32, 32, 4, 2),
    (32, 32, 8, 2),
    (16, 16, 4, 2),
    (16, 64, 4, 2),
    (16, 32, 4, 2),
)
"""Queries, keys, warps, stages. On an H200 with heads of 128, TFLOP/s at N 4096: the first 493 causal and 534 full,
the second 464 and 538; two blocks of 4 warps an SM beat one of 8 (447 to 505), whose softmaxes come at one time. With
heads of 64 the fifth is best (482 full, 429 causal, where the first has 438 and 402), of 32 and of 256 the first."""
_UNMASKED_FIRST, _SMALL_HEADS_FIRST = _ATTENTION_BLOCKS[1], _ATTENTION_BLOCKS[4]

_SPLIT_BLOCKS: _Blocks = ((128, 64, 8, 2), (64, 64, 4, 2))
"""The best for f32 that is multiplied in parts: 0.83 and 0.89 ms for 64 heads of 64 and 2048 causal queries on an H100,
where the others took 0.90 to 1.5."""

_MAX_RESULTS = 128 * 32
"""Elements of the result that a warp keeps: more than 128 registers a thread for them, and the rest is spilled."""

_MAX_PLAIN = 64 * 32 * 64
"""Multiply-adds of a step in plain f32 arithmetic: all are written out, and take as long to compile."""

_FEW_ROWS = 64
_FEW_QUERIES_BLOCKS = ((16, 64, 4, 3), (16, 128, 4, 3), (16, 64, 4, 4), (32, 64, 4, 3), (64, 64, 4, 3))
"""Where keys and values are read by few queries, whose dots hide behind the loads. On an H200, 32 heads that share
8 of 128: 3.5 TB/s of keys and values for one query and 65536 keys, 4.36 for 16 times 16384; all within 4 %."""

_KEYS_TO_SPLIT, _KEYS_TO_SPLIT_MANY_QUERIES, _LEAST_PART, _MOST_PARTS = 768, 4096, 128, 64
"""Keys that are worth a second kernel, for one block of queries and for more; keys of the smallest part, and how many
parts one block combines."""
_LEAST_UNEVEN_PART, _UNEVEN_BLOCKS_AN_SM, _UNEVEN_KEYS = 1024, 24, 4096
"""The same where sequences have lengths of their own: a block that is given the longest late is waited for. With two
blocks an SM, and fewer keys than the last, that is less than the second kernel: 64 sequences of 2048 positions, a token
of 16 layers on an H200, 1.57 ms in one part, 1.69 in two."""
_BLOCKS_AN_SM = (1, 2, 4)
"""How many parts there are, best guess first."""


_SHARE, _SMALL_HEADS_SHARE = 0.73, 0.88
"""What the first blocks reach of the rate at which dots and softmax overlap, as Hopper's own kernels do; with heads
of up to 64."""
_ONE_AFTER_ANOTHER = 0.826
"""The same of the rate at which they take turns, with the instructions of warps: 322 of 390 TFLOP/s, 278 of 336."""
_LATER = 0.97
"""What a block is taken to keep of the rate of the one before it: the list is in the order of measurements."""
_START = 1.5e-6
"""Seconds until a block's first keys have arrived, and after its last."""
_COMBINE = 1.2e-6
"""Seconds until the kernel that combines parts has the first of them, and after the last."""


def attention_candidates(size: AttentionSize, target: GpuTarget) -> list[GpuAttentionSchedule]:
    """Schedules that fit shared memory and registers, the usual best first; none where heads are too wide."""
    size = replace(size, bits=max(size.bits, 16))
    item = size.bits // 8
    deep, wide = (max(16, pow2(n)) for n in (size.depth, size.values))
    found: list[GpuAttentionSchedule] = []
    shallow: list[GpuAttentionSchedule] = []
    blocks = _ATTENTION_BLOCKS
    if item == 4 and target.splits_f32:
        blocks = (*_SPLIT_BLOCKS, *blocks)
    elif 32 < max(size.depth, size.values) <= 64:
        blocks = (_SMALL_HEADS_FIRST, *blocks)
    elif not size.masked and max(size.depth, size.values) > 64:
        blocks = (_UNMASKED_FIRST, *blocks)
    if size.rows <= _FEW_ROWS:
        blocks = (*_FEW_QUERIES_BLOCKS, *blocks)
    for q, k, warps, stages in dict.fromkeys(blocks):
        if q > max(16, pow2(size.rows)) or k > max(16, pow2(size.keys)) or (size.whole and q < size.rows):
            continue
        plain = item == 4 and not target.splits_f32
        if (plain and q * k * deep > _MAX_PLAIN) or q * wide > _MAX_RESULTS * warps:
            continue
        fitting = (target.shared_memory // item - q * deep) // (k * (deep + wide))
        fitting_blocks = found if fitting >= stages else shallow
        for split in _splits(size, q, k, target) if fitting > 0 else ():
            fitting_blocks.append(GpuAttentionSchedule(q, k, Launch(warps, min(stages, fitting)), split))
    order = list(dict.fromkeys((*found, *shallow)))
    if not order:
        return []
    seconds = _predict(size, order[0], target)
    return [replace(s, seconds=seconds / _LATER**position) for position, s in enumerate(order)]


def _predict(size: AttentionSize, s: GpuAttentionSchedule, target: GpuTarget) -> float:
    """Seconds of the usual best block: what the others lose against it was measured, not found by a formula."""
    rates = target.rates
    deep, wide = (max(16, pow2(n)) for n in (size.depth, size.values))
    rate = rates.tensor if size.bits == 16 else target.block_flops
    matmuls, softmax = size.matmuls(deep, wide, rate), size.reading(*READS_IN_ROWS).softmax(target)
    if target.has_faster_matmuls:
        share = _SMALL_HEADS_SHARE if max(size.depth, size.values) <= 64 else _SHARE
        point = overlapped(matmuls, softmax) / share
    else:
        point = (matmuls + softmax) / _ONE_AFTER_ANOTHER
    blocks = size.heads * ceil(size.rows / s.queries) * s.split
    part = replace(size, heads=size.heads * s.split, keys=ceil(size.keys / s.split))
    points = waves(part, s.queries, BETWEEN_STANDING, s.keys, target)
    left = FOUND_LATER if size.bounded else 1.0
    work = left * points * target.sms * point
    seconds = rates.launch + _START + max(work, size.traffic(target, blocks))
    if s.split > 1:
        parts = 4.0 * size.heads * size.rows * (size.values + 2) * s.split
        seconds += rates.follow + _COMBINE + rates.moved(parts, parts)
    return seconds


def _splits(size: AttentionSize, queries: int, keys: int, target: GpuTarget) -> list[int]:
    """Parts of the keys: one where there are blocks enough, else as many as fill every SM once, twice, four times.
    Where sequences differ in length there are more."""
    blocks, steps = size.heads * ceil(size.rows / queries), ceil(size.keys / keys)
    least = _KEYS_TO_SPLIT if size.rows <= queries else _KEYS_TO_SPLIT_MANY_QUERIES
    if size.keys < least or blocks == 0:
        return [1]
    if 2 * blocks > target.sms:
        found = [1]
    else:
        most = min(_MOST_PARTS, steps, size.keys // _LEAST_PART)
        parts = [min(most, max(1, w * target.sms // blocks)) for w in _BLOCKS_AN_SM]
        found = [ceil(steps / ceil(steps / p)) for p in parts]
    if size.uneven and size.rows <= queries:
        least = _LEAST_UNEVEN_PART if blocks < 2 * target.sms or size.keys >= _UNEVEN_KEYS else size.keys
        most = min(_MOST_PARTS, size.keys // least)
        found.insert(0, max(found[0], min(most, ceil(_UNEVEN_BLOCKS_AN_SM * target.sms / blocks))))
    return list(dict.fromkeys(found))
