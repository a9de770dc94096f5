# SPDX-License-Identifier: Apache-2.0
"""Schedules of matmuls of few vectors whose large operand is computed, best predicted first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from math import ceil, sqrt
from typing import ClassVar

from fusec.ir.indexing import pow2
from fusec.passes.schedule.base import by_seconds
from fusec.passes.schedule.launch import Launch
from fusec.target.gpu import GpuTarget
from fusec.tile.kernel import Language
from fusec.tile.templates import WarpShares


@dataclass(frozen=True)
class SkinnyGemmSchedule:
    """How warps share the matmul."""

    language: ClassVar[Language] = "cuda"
    shares: WarpShares
    seconds: float = field(default=0.0, compare=False)

    @property
    def launch(self) -> Launch:
        return Launch(self.shares.warps, self.shares.ahead)

    def describe(self) -> tuple[tuple[str, int | str], ...]:
        s = self.shares
        return (
            ("warp", f"{s.lines}x{s.vectors}"),
            ("warps", f"{s.line_groups}x{s.depth_groups}"),
            ("split", s.split),
            ("lane", s.lane),
            ("ahead", s.ahead),
            ("ring", s.ring),
            ("together", s.together),
        )


@dataclass(frozen=True)
class SkinnyProblem:
    """``dots`` of ``lines`` of a large operand with ``vectors``, ``k`` deep.

    bytes: of memory for an element of a line. instructions: that make one of it.
    """

    batches: int
    vectors: int
    lines: int
    k: int
    dots: int
    bytes: float
    instructions: float


MOST_VECTORS = 512
"""Of a matmul whose lines each block of vectors makes anew."""

_WARPS = {
    8: ((16, 1, 8, 1, 0, 1), (16, 1, 8, 2, 0, 1)),
    16: ((64, 1, 8, 2, 3, 1), (64, 1, 8, 1, 3, 1), (32, 1, 8, 1, 3, 2)),
    32: ((32, 2, 4, 1, 3, 1), (64, 2, 4, 1, 3, 1)),
}
"""By the least number of vectors: lines of a warp, warps along lines and along K, reads under way, steps of vectors in
shared memory, blocks that share an SM. Blocks of more warps along the lines, and more blocks that share K, read shorter
pieces of more rows, and take up to twice as long (H100)."""
_SPLITS = (1, 2)
_MOST_SUMS = 64
"""Of a thread: with 128 there are not enough registers for the lines on their way."""
_LANES = (64, 32, 16, 8)
_LANE_BYTES = 32
"""Of a line that a lane reads at once, at most: two loads. Of several vectors half of it where numbers have 4 bits,
which takes a tenth less (H100)."""
_SLACK = 1.2
"""More with what comes to the numbers, such as their scales."""
_MOST_TOGETHER = 64
"""Vectors of a warp."""
_REGISTERS, _MOST_REGISTERS = 65536, 255
_THREADS = 2048
_BLOCK_BARE = 1024
"""Bytes of shared memory that the driver keeps of a block's."""
_IN_FLIGHT = 3.1e6
"""Bytes under way at which device memory is busy."""
_LINE = 128
"""Bytes of a line that four lanes should read together; half as many take a tenth longer."""
_BUSY = 11.5
"""Warps of an SM that issue at the full rate."""
_OF_VECTORS = 1.6
"""Instructions of eight vectors for an element of 16 lines."""
_VECTORS = 1.35
"""L2's rate at which blocks read the same vectors, which L1 has in part."""
_HIDES = 1.4
"""How well a kernel's works hide each other: 1 not at all."""
_START = 1e-6
"""Seconds until a block's first lines are there."""
_SPLIT = 1e-6
"""Of blocks that wait for each other, and read each other's sums."""


def skinny_candidates(p: SkinnyProblem, target: GpuTarget) -> list[SkinnyGemmSchedule]:
    """Schedules of a matmul of half floats, best predicted first; none for GPUs before sm_80 and others than
    NVIDIA's."""
    if target.backend != "cuda" or not isinstance(target.arch, int) or target.arch < 80:
        return []
    if not p.batches * p.lines * p.k * p.vectors or p.vectors > MOST_VECTORS:
        return []
    found = [SkinnyGemmSchedule(s, _predict(p, s, target)) for s in _shares(p, target)]
    return sorted(found, key=by_seconds)


def _lane(p: SkinnyProblem) -> int | None:
    """The longest that divides K of what a lane reads at once; None where K is odd."""
    most = _LANE_BYTES if p.vectors == 1 or p.bytes >= 1 else _LANE_BYTES // 2
    fitting = [lane for lane in _LANES if p.k % lane == 0]
    return next((lane for lane in fitting if lane * p.bytes <= most * _SLACK), fitting[-1] if fitting else None)


def _shares(p: SkinnyProblem, target: GpuTarget) -> Iterator[WarpShares]:
    vectors = min(_MOST_TOGETHER, max(8, pow2(p.vectors)))
    splits = _SPLITS if target.has_tma else (1,)
    lane = _lane(p)
    if lane is None:
        return
    for columns in dict.fromkeys((vectors, max(vectors // 2, 8))):
        for warps, split in product(_WARPS[min(columns, 32)], splits):
            lines, line_groups, depth_groups, ahead, ring, together = warps
            groups = line_groups, depth_groups, split
            s = WarpShares(lines, columns, *groups, lane, ahead, ring, together if p.dots == 1 else 1)
            fits = lines * columns * p.dots // 32 <= _MOST_SUMS and _registers(p, s) < _MOST_REGISTERS
            fits = fits and (lines == 16 or s.block_lines < 2 * p.lines)
            deep = split == 1 or p.k >= 4 * lane * depth_groups * split
            if fits and deep and _shared(p, s) <= target.shared_memory // s.together - _BLOCK_BARE:
                yield s


def _shared(p: SkinnyProblem, s: WarpShares) -> int:
    """Bytes of a block's vectors, and after them its sums, about."""
    sums = 4 * p.dots * (s.vectors + 2) * (s.block_lines + 4)
    return s.depth_groups * max(sums, 8 * s.ring * s.vectors * s.lane)


def _registers(p: SkinnyProblem, s: WarpShares) -> int:
    """Of a thread, about."""
    sums = s.lines * s.vectors * p.dots // 32
    held = s.ahead * s.lines / 8 * (p.bytes * s.lane / 4 + 1) * p.dots
    vectors = s.vectors // 8 * min(s.lane // 2, 16) / (1 if s.vectors <= 16 else 2)
    return min(_MOST_REGISTERS, int(56 + sums + held + vectors))


def _predict(p: SkinnyProblem, s: WarpShares, target: GpuTarget) -> float:
    """Seconds: the warps' instructions, memory and the vectors' way through L2, which hide each other in part."""
    tiles = p.batches * ceil(p.vectors / s.vectors)
    blocks = tiles * ceil(p.lines / s.block_lines) * s.split
    threads, rates = 32 * s.warps, target.rates
    fit = target.shared_memory // (_shared(p, s) + _BLOCK_BARE)
    resident = max(1, min(_REGISTERS // (_registers(p, s) * threads), _THREADS // threads, fit))
    rounds = ceil(blocks / (target.sms * resident))
    beside = min(resident, ceil(blocks / target.sms)) * s.warps
    share = max(1.0, ceil(blocks / target.sms) * target.sms / blocks)
    made = tiles * ceil(p.lines / s.block_lines) * s.block_lines * p.k * p.dots
    busy = min(1.0, sqrt(beside / _BUSY))
    making = made * (p.instructions + _OF_VECTORS * s.vectors / s.lines) / rates.issue
    multiplying = 2.0 * made * s.vectors / rates.warp_tensor
    work = (making + multiplying) * share / busy
    held = s.warps * s.ahead * p.bytes * 4 * s.lane * s.lines * p.dots
    supply = min(1.0, sqrt(min(blocks, resident * target.sms) * held / _IN_FLIGHT))
    row = min(1.0, 0.75 + 0.25 * p.bytes * s.lane * 4 / _LINE)
    memory = p.batches * p.lines * p.k * p.dots * p.bytes / rates.read / supply / row
    rows = min(s.vectors, p.vectors)
    vectors = 2.0 * blocks * rows * p.k / s.split / (_VECTORS * rates.l2)
    works = sum(each**_HIDES for each in (work, memory, vectors))
    seconds = rates.launch + _START * rounds + float(works ** (1 / _HIDES))
    return seconds + (_SPLIT if s.split > 1 else 0.0)
