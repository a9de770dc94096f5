# SPDX-License-Identifier: Apache-2.0
"""Schedules of map kernels on GPUs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil
from typing import ClassVar

from fusec.ir.indexing import pow2
from fusec.passes.schedule.launch import Launch
from fusec.passes.schedule.stream import Stream
from fusec.target.gpu import GpuTarget
from fusec.tile.kernel import Language


@dataclass(frozen=True)
class GpuMapSchedule:
    """A block computes ``elements`` neighbouring elements, at ``transposed`` positions along the axis that operands lie
    along.

    transposed: 0 where they lie along the same axis as the result. results: of each of the elements so many along the
    axis before, by the same lane.
    """

    language: ClassVar[Language] = "triton"
    elements: int
    launch: Launch
    transposed: int = 0
    results: int = 1
    vector: int = 1
    seconds: float = field(default=0.0, compare=False)

    def describe(self) -> tuple[tuple[str, int | str], ...]:
        block: int | str = f"{self.elements}x{self.transposed}" if self.transposed else self.elements
        more = (("results", self.results), ("vector", self.vector))
        return (("elements", block), *((name, n) for name, n in more if n > 1), ("warps", self.launch.warps))


_TRANSPOSED = 0.95
"""What transpositions reach of memory's rate."""


def map_seconds(size: int, s: GpuMapSchedule, stream: Stream, target: GpuTarget, *, cuda: bool) -> float:
    """Predicted seconds of a map of so many results."""
    blocks = ceil(size / (s.elements * max(s.transposed, 1)))
    return stream.seconds(max(blocks, 1), target, rate=_TRANSPOSED if s.transposed else 1.0, cuda=cuda)


def transposed_schedule(along: int, across: int, bits: int) -> GpuMapSchedule:
    """A tile for results that lie along an axis of ``along`` positions, and operands along one of ``across``.

    On an H200, 8192 by 8192 transposed: 4.05 TB/s in f32, 3.82 in bf16 (128 by 128: 3.87), by PyTorch 1.16 and 0.61.
    """
    rows = min(pow2(along), 64)
    columns = min(pow2(across), max(64 if bits > 16 else 128, 2048 // rows))
    rows = min(pow2(along), max(rows, 2048 // columns))
    return GpuMapSchedule(rows, Launch(8 if rows * columns >= 4096 else 4, 1), columns)


def map_schedule(elements: int, bits: int, target: GpuTarget) -> GpuMapSchedule:
    """Enough blocks for every SM, and where there are many 4 KiB of the widest operand (of ``bits``) in each.

    A thread moves 16 bytes of it at once. On an H200, 2²⁷ bf16 times two: 4.29 TB/s, with half as large blocks 3.34
    (each waits for the kernel ahead), with 4096 elements 4.13, with 8192 4.06; f32 4.27, twice as large blocks 4.09.
    """
    if elements < 1024 * target.sms * 4:
        return GpuMapSchedule(256, Launch(4, 1))
    return GpuMapSchedule(2048, Launch(8, 1)) if bits <= 16 else GpuMapSchedule(1024, Launch(4, 1))


VECTOR_BYTES, FEWEST_DIVISIONS = 16, 3
"""What a thread moves at once, and divisions that say where an element lies, from which on they are made once for so
many bytes: of a norm, silu and padding of 128 channels each element took 34 instructions, 11 of them for its
position."""


def vector_of(innermost: int, bits: int, divisions: int) -> int:
    """Neighbours along an axis of so many elements whose position along the others is computed once; 1 where that does
    not pay, or where they are of different positions."""
    vector = VECTOR_BYTES * 8 // max(bits, 8)
    return vector if divisions >= FEWEST_DIVISIONS and vector > 1 and innermost % vector == 0 else 1


MOST_RESULTS = 8
"""Results of a lane: with two elements of each, what eight of a 7×7 window need at a time are some 80 registers."""


@dataclass(frozen=True)
class SharedLoads:
    """What results side by side along ``axis``, of ``extent`` positions, read: ``alone`` loads for the first one, and
    ``further`` ones for each that follows."""

    axis: int
    extent: int
    alone: int
    further: int

    def of(self, results: int) -> int:
        """Loads of so many results side by side."""
        return self.alone + (results - 1) * self.further

    def results(self, most: int = MOST_RESULTS) -> int:
        """How many of at most ``most`` a lane computes, so that all of them take the fewest loads."""
        counts = range(1, min(most, self.extent) + 1)
        return min(counts, key=lambda n: (-(-self.extent // n) * self.of(n), n))


_LOADS = ((16, 8), (64, 4))
"""Loads of a lane's results, and how many elements of each a lane then takes: more would leave it no registers. For
sm_90 bilinear resampling (14 loads) takes 90 registers, a 3×3 window of one channel (40) 80, a 5×5 one 72, a 7×7 one
168."""

_FEWEST = 2


def coarse_schedule(shared: SharedLoads, size: int, stream: Stream, target: GpuTarget) -> GpuMapSchedule | None:
    """Lanes with as many results as share most, while every SM has warps enough; None where one each is all."""
    launch = Launch(4, 1)
    lanes = launch.warps * target.warp_size
    results = shared.results()
    while results > 1 and size < results * _FEWEST * lanes * target.sms * 2:
        results = shared.results(results - 1)
    if results == 1:
        return None
    each = next((n for most, n in _LOADS if shared.of(results) <= most), _FEWEST)
    while each > _FEWEST and size < results * each * lanes * target.sms * 4:
        each //= 2
    made = GpuMapSchedule(each * lanes, launch, results=results)
    return replace(made, seconds=stream.seconds(size // (made.elements * results), target, cuda=False))
