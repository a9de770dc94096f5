# SPDX-License-Identifier: Apache-2.0
"""Schedules of attention on Hopper's tensor cores, the usual best first."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import ClassVar

from fusec.passes.families.attention.schedule.size import (
    BETWEEN,
    BETWEEN_NARROW,
    BETWEEN_STANDING,
    BETWEEN_TOGETHER,
    READS_IN_FRAGMENTS,
    AttentionSize,
    overlapped,
    waves,
)
from fusec.passes.schedule.launch import Launch
from fusec.target.gpu import GpuTarget
from fusec.tile.kernel import Language
from fusec.tile.templates import Pipeline


@dataclass(frozen=True)
class HopperAttentionSchedule:
    """A block does ``queries`` rows, 64 a warpgroup, against ``keys`` at a time, ``stages`` of which are fetched ahead.

    ping_pong: warpgroups take turns at the tensor cores. heads: done side by side where some rows have more keys.
    persistent: a block does one block of queries after another, the next one's fetched while one ends.
    """

    language: ClassVar[Language] = "cuda"
    queries: int
    keys: int
    stages: int
    ping_pong: bool
    heads: int = 8
    persistent: bool = False
    seconds: float = field(default=0.0, compare=False)

    @property
    def launch(self) -> Launch:
        """The warpgroups that multiply, and one that fetches."""
        return Launch(4 * (self.queries // 64 + 1), self.stages)

    @property
    def pipeline(self) -> Pipeline:
        return Pipeline(1, 1, self.heads, self.ping_pong, self.persistent)

    def describe(self) -> tuple[tuple[str, int | str], ...]:
        return (
            ("queries", self.queries),
            ("keys", self.keys),
            ("consumers", "ping-pong" if self.ping_pong else "cooperative"),
            ("stages", self.stages),
            *((("blocks", "persistent"),) if self.persistent else ()),
        )


_ATTENTION = (
    (64, ((192, 128, 2), (128, 128, 2), (128, 192, 2))),
    (128, ((128, 128, 2), (128, 160, 2), (128, 96, 3))),
    (192, ((128, 96, 2), (128, 64, 2))),
    (256, ((128, 80, 2), (128, 64, 2))),
)
"""For heads of so many columns at most: queries, keys, stages, in the order of their rate on an H200 (heads of 128,
4096 keys: 706, 697 and 654 TFLOP/s)."""
_MOST_WALKED = 128
"""Columns of heads up to which there is room for the next queries beside the results."""
_LONG = 8192
"""Keys from which blocks have so much to do that persistent ones no longer pay."""


def hopper_attention_candidates(size: AttentionSize, target: GpuTarget) -> list[HopperAttentionSchedule]:
    """Schedules for attention in 16 bits, or with queries and keys in 8, the usual best first; none on other GPUs, or
    for too little work."""
    columns = max(size.depth, size.values)
    enough = size.rows >= 64 and size.heads * ceil(size.rows / 128) >= target.sms // 2
    if target.backend != "cuda" or target.arch != 90 or size.bits > 16 or size.whole or not enough:
        return []
    blocks = next((found for most, found in _ATTENTION if columns <= most), ())
    ways = _ways(columns, size.masked, size.keys > _LONG)
    if not blocks:
        return []
    seconds = _predict(size, blocks[0][0], blocks[0][1], ways[0], target)
    return [
        HopperAttentionSchedule(*block, ping_pong, persistent=persistent, seconds=seconds / _LATER ** (later + slower))
        for later, (ping_pong, persistent) in enumerate(ways)
        for slower, block in enumerate(blocks)
    ]


_WIDE = 0.85
"""What is left of the rate with heads of more than 128 columns, whose results leave few registers."""
_LATER = 0.98
"""What a block or a way is taken to keep of the rate of the one before it in the list: 1 to 6 % less were measured."""
_START = 1.5e-6
"""Seconds until the first keys have arrived, and after the last."""


def _predict(size: AttentionSize, queries: int, keys: int, way: tuple[bool, bool], target: GpuTarget) -> float:
    """Seconds of the usual best block and way."""
    deep, wide = (64 * ceil(n / 64) for n in (size.depth, size.values))
    share = _WIDE if max(deep, wide) > _MOST_WALKED else 1.0
    point = (
        overlapped(size.matmuls(deep, wide, target.rates.tensor), size.reading(*READS_IN_FRAGMENTS).softmax(target))
        / share
    )
    ping_pong, persistent = way
    beside = BETWEEN if max(deep, wide) > 64 else BETWEEN_NARROW if ping_pong else BETWEEN_TOGETHER
    between = beside if persistent else BETWEEN_STANDING
    points = waves(size, queries, between, keys, target)
    blocks = size.heads * ceil(size.rows / queries)
    return target.rates.launch + _START + max(points * target.sms * point, size.traffic(target, blocks))


def _ways(columns: int, masked: bool, long: bool) -> list[tuple[bool, bool]]:
    """Whether consumers ping-pong and blocks are persistent, the best first (measured on an H200).

    Heads of 64, TFLOP/s: 4096 keys full 468 against 449 by ping-pong, causal 394 by ping-pong against 382; 16384 keys
    full 527 by ping-pong, a block each, 513 otherwise, causal 493 with a block each and 467 persistent.
    """
    if columns > _MOST_WALKED:
        return [(True, False)]
    if columns > 64:
        return [(True, not (masked and long)), (True, masked and long)]
    if long:
        return [(True, False), (False, False)]
    return [(masked, True), (not masked, True), (masked, False)]
