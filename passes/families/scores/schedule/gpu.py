# SPDX-License-Identifier: Apache-2.0
"""Schedules of score spaces on GPUs, best predicted first."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import hypot
from typing import ClassVar

from fusec.ir.indexing import pow2
from fusec.passes.families.scores.schedule.size import ScoresSize, busiest, padded
from fusec.passes.schedule.base import by_seconds
from fusec.passes.schedule.launch import Launch
from fusec.target.gpu import GpuTarget
from fusec.tile.kernel import Language


@dataclass(frozen=True)
class GpuScoresSchedule:
    """A block does ``rows`` against ``columns`` at a time."""

    language: ClassVar[Language] = "triton"
    rows: int
    columns: int
    launch: Launch
    seconds: float = field(default=0.0, compare=False)

    def describe(self) -> tuple[tuple[str, int | str], ...]:
        return (
            ("rows", self.rows),
            ("columns", self.columns),
            ("warps", self.launch.warps),
            ("stages", self.launch.stages),
        )


_BLOCKS = (
    (64, 64, 4, 3, 1.0),
    (64, 64, 4, 2, 1.0),
    (128, 64, 8, 3, 1.15),
    (128, 64, 8, 2, 1.15),
    (64, 32, 4, 2, 1.15),
    (128, 128, 8, 2, 1.05),
    (128, 64, 4, 2, 1.2),
    (128, 32, 8, 2, 1.2),
    (128, 32, 4, 2, 1.15),
    (64, 128, 4, 2, 1.25),
    (64, 128, 8, 2, 1.65),
    (32, 64, 4, 2, 1.6),
    (32, 32, 4, 2, 1.9),
    (16, 32, 4, 2, 3.0),
    (16, 16, 4, 2, 4.0),
)
"""Rows, columns, warps, stages, and how long a point takes in units of the first, but for what the rest of the model
says: sigmoid, retention, ReLU², and both backward kernels on an H100 with heads of 128 and 64 (decision 34)."""

_REGISTERS, _MOST_REGISTERS = 208, 232
"""Numbers that a thread keeps of sums and values of the space: up to the first it has room for all else (some 40 more
registers), beyond the second the rest is spilled."""
_CUT = 3.5
"""Numbers at a point that are parts of operands, where f32 is multiplied in parts."""
_SPILLED = 8.0
"""How many times longer a kernel takes that has twice as many as it has room for."""

_MAX_PLAIN = 64 * 32 * 64
"""Multiply-adds of a step in plain f32 arithmetic: all are written out, and take as long to compile."""

_SHARE = 0.85
"""What the first block reaches of the rate at which products and maps overlap."""
_ALTERNATING = 0.826
"""The same of the rate at which they take turns, with the instructions of warps."""
_TWO_STAGES = 0.5
"""A loop of ``n`` dots takes so much / n longer with two stages of loads than with three. Two results leave too few
registers for the third, which then takes ``_THIRD`` times as long."""
_THIRD = 1.2
_ALONE = 1.6
"""How much longer four warps take that have an SM alone, as shared memory has no room for two blocks."""
_START, _BETWEEN = 1.5e-6, 2.4
"""Seconds until a block's first columns have arrived and after its last; blocks of columns that could be done in the
time between two blocks of rows."""


_SPLIT_BLOCKS = ((128, 32, 8, 2, 0.93), *_BLOCKS)
"""Of f32 that is multiplied in parts: the backward of 64 heads of 64 and 2048 queries under a causal mask takes 3.5 ms
on an H100, with the 64×32 of _BLOCKS 3.7."""


def scores_candidates(size: ScoresSize, target: GpuTarget) -> list[GpuScoresSchedule]:
    """Schedules that fit shared memory and registers; none where rows are too wide."""
    found: list[GpuScoresSchedule] = []
    for rows, columns, warps, stages, longer in _SPLIT_BLOCKS if size.bits > 16 and target.splits_f32 else _BLOCKS:
        if rows > max(16, pow2(size.rows)) or columns > max(16, pow2(size.columns)):
            continue
        plain = size.bits > 16 and not target.splits_f32
        if plain and rows * columns * max(padded(n) for n in (*size.depths, *size.values)) > _MAX_PLAIN:
            continue
        if _held(size, rows, columns, warps) > 2 * _MOST_REGISTERS:
            continue
        item = size.bits // 8
        left = target.shared_memory // item - rows * sum(padded(n) for n in size.depths) - rows * columns
        fitting = left // (columns * padded_reads(size))
        if fitting < 1:
            continue
        s = GpuScoresSchedule(rows, columns, Launch(warps, min(stages, fitting)))
        found.append(replace(s, seconds=_predict(size, s, longer, target)))
    return sorted(dict.fromkeys(found), key=by_seconds)


def padded_reads(size: ScoresSize) -> int:
    """Elements of all that is read of a column, as blocks hold them."""
    return max(size.reads, padded(max((*size.depths, *size.values))))


def _held(size: ScoresSize, rows: int, columns: int, warps: int) -> float:
    """Numbers that a thread keeps: the sums of results, and the values of the products at the points of a block."""
    parts = _CUT if size.bits > 16 else 0.0
    values = sum(padded(n) for n in size.values) + columns * (len(size.depths) + 0.5 + parts)
    return rows * values / (32 * warps)


def _shared(size: ScoresSize, s: GpuScoresSchedule) -> int:
    """Bytes of shared memory: the rows of operands, and the stages' columns."""
    rows = s.rows * sum(padded(n) for n in size.depths)
    return size.bits // 8 * (rows + s.launch.stages * s.columns * padded_reads(size))


def _predict(size: ScoresSize, s: GpuScoresSchedule, longer: float, target: GpuTarget) -> float:
    rates = target.rates
    products, maps = size.products(rates.tensor if size.bits == 16 else target.block_flops), size.maps(target)
    if target.has_faster_matmuls:
        point = hypot(products, maps) / _SHARE
    else:
        point = (products + maps) / _ALTERNATING
    held = _held(size, s.rows, s.columns, s.launch.warps)
    point *= longer
    if s.launch.stages < 3:
        point *= 1 + _TWO_STAGES / (len(size.depths) + len(size.values))
    elif len(size.values) > 1:
        point *= _THIRD
    if s.launch.warps == 4 and 2 * _shared(size, s) > target.shared_memory:
        point *= _ALONE
    point *= 1 + max(0.0, _SPILLED * (held - _REGISTERS) / _MOST_REGISTERS)
    work = busiest(size, s.rows, s.columns, _BETWEEN, target) * target.sms * point
    return rates.launch + _START + max(work, size.fetched(s.rows, target), size.traffic(target))
