"""Schedules of map kernels on GPUs."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import ClassVar

from fusec.passes.schedule.launch import Launch, pow2
from fusec.passes.schedule.stream import Stream
from fusec.target.gpu import GpuTarget
from fusec.tile.kernel import Language


@dataclass(frozen=True)
class GpuMapSchedule:
    """A block computes ``elements`` neighbouring elements, at ``transposed`` places along the axis that operands lie
    along.

    transposed: 0 where they lie along the same axis as the result.
    """

    language: ClassVar[Language] = "triton"
    elements: int
    launch: Launch
    transposed: int = 0
    seconds: float = field(default=0.0, compare=False)

    def describe(self) -> tuple[tuple[str, int | str], ...]:
        block: int | str = f"{self.elements}x{self.transposed}" if self.transposed else self.elements
        return (("elements", block), ("warps", self.launch.warps))


_TRANSPOSED = 0.95
"""What transpositions reach of memory's rate."""


def map_seconds(size: int, s: GpuMapSchedule, stream: Stream, target: GpuTarget, *, cuda: bool) -> float:
    """Predicted seconds of a map of so many results."""
    blocks = ceil(size / (s.elements * max(s.transposed, 1)))
    return stream.seconds(max(blocks, 1), target, rate=_TRANSPOSED if s.transposed else 1.0, cuda=cuda)


def transposed_schedule(along: int, across: int, bits: int) -> GpuMapSchedule:
    """A tile for results that lie along an axis of ``along`` places, and operands along one of ``across``.

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
