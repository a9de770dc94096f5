"""Schedules of score spaces on GPUs, best predicted first."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import hypot, log2
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
    (128, 128, 8, 2),
    (128, 64, 8, 3),
    (128, 64, 8, 2),
    (128, 64, 4, 2),
    (64, 128, 8, 2),
    (64, 128, 4, 2),
    (64, 64, 4, 3),
    (64, 64, 4, 2),
    (128, 32, 8, 2),
    (128, 32, 4, 2),
    (64, 32, 4, 2),
    (32, 64, 4, 2),
    (32, 32, 4, 2),
    (16, 32, 4, 2),
    (16, 16, 4, 2),
)
"""Rows, columns, warps, stages."""

_REGISTERS, _MOST_REGISTERS = 208, 232
"""Numbers that a thread keeps of sums and values of the space: up to the first it has room for all else (some 40 more
registers), beyond the second the rest is spilled."""
_SPILLED = 8.0
"""How many times longer a kernel takes that has twice as many as it has room for."""

_MAX_PLAIN = 64 * 32 * 64
"""Multiply-adds of a step in plain f32 arithmetic: all are written out, and take as long to compile."""

_SHARE = 0.73
"""Of the rate at which products and maps overlap, as attention's blocks have it."""
_ALTERNATING = 0.826
"""The same of the rate at which they take turns, with the instructions of warps."""
_HALF_BLOCK, _SMALL_BLOCK = 0.93, 0.75
"""What a block of half as many rows or columns keeps of a rate, down to 64 rows and 32 columns, and below: it reads
operands from shared memory more often."""
_START, _BETWEEN = 1.5e-6, 2.4
"""Seconds until a block's first columns have arrived and after its last; blocks of columns that could be done in the
time between two blocks of rows."""


def scores_candidates(size: ScoresSize, target: GpuTarget) -> list[GpuScoresSchedule]:
    """Schedules that fit shared memory and registers; none where rows are too wide."""
    found: list[GpuScoresSchedule] = []
    for rows, columns, warps, stages in _BLOCKS:
        if rows > max(16, pow2(size.rows)) or columns > max(16, pow2(size.columns)):
            continue
        if size.bits > 16 and rows * columns * max(padded(n) for n in (*size.depths, *size.values)) > _MAX_PLAIN:
            continue
        if _held(size, rows, columns, warps) > 2 * _MOST_REGISTERS:
            continue
        item = size.bits // 8
        left = target.shared_memory // item - rows * sum(padded(n) for n in size.depths) - rows * columns
        fitting = left // (columns * padded_reads(size))
        if fitting < 1:
            continue
        s = GpuScoresSchedule(rows, columns, Launch(warps, min(stages, fitting)))
        found.append(replace(s, seconds=_predict(size, s, target)))
    return sorted(dict.fromkeys(found), key=by_seconds)


def padded_reads(size: ScoresSize) -> int:
    """Elements of all that is read of a column, as blocks hold them."""
    return max(size.reads, padded(max((*size.depths, *size.values))))


def _held(size: ScoresSize, rows: int, columns: int, warps: int) -> float:
    """Numbers that a thread keeps: the sums of results, and the values of the products at the points of a block."""
    values = sum(padded(n) for n in size.values) + columns * (len(size.depths) + 0.5)
    return rows * values / (32 * warps)


def _predict(size: ScoresSize, s: GpuScoresSchedule, target: GpuTarget) -> float:
    rates = target.rates
    products, maps = size.products(rates.tensor if size.bits == 16 else rates.simt), size.maps(target)
    if target.has_faster_matmuls:
        point = hypot(products, maps) / _SHARE
    else:
        point = (products + maps) / _ALTERNATING
    held = _held(size, s.rows, s.columns, s.launch.warps)
    halvings = log2(max(128 / s.rows, 1)), log2(max(64 / s.columns, 1))
    point /= _HALF_BLOCK ** sum(min(n, 1) for n in halvings) * _SMALL_BLOCK ** sum(max(n - 1, 0) for n in halvings)
    point *= 1 + max(0.0, _SPILLED * (held - _REGISTERS) / _MOST_REGISTERS)
    work = busiest(size, s.rows, s.columns, _BETWEEN, target) * target.sms * point
    return rates.launch + _START + max(work, size.fetched(s.rows, target), size.traffic(target))
