# SPDX-License-Identifier: Apache-2.0
"""Schedules of row kernels on GPUs.

The sizes were measured on an H200: 2²⁷ elements, cold L2, where a copy reaches 4.22 TB/s.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import ClassVar

from fusec.ir.indexing import pow2
from fusec.passes.schedule.launch import Launch
from fusec.passes.schedule.stream import Stream
from fusec.target.gpu import GpuTarget
from fusec.tile.kernel import Language


@dataclass(frozen=True)
class GpuRowSchedule:
    """A block holds ``rows`` rows: whole ones padded to ``columns``, or ``columns`` elements of them at a time.

    cluster: blocks that hold the rows together, each a part of them (Hopper and later). unroll: how many times as many
    elements are asked for at a time, where what is made of them are sums alone.
    """

    language: ClassVar[Language] = "triton"
    rows: int
    columns: int
    launch: Launch
    whole: bool = True
    cluster: int = 1
    unroll: int = 1
    seconds: float = field(default=0.0, compare=False)

    def describe(self) -> tuple[tuple[str, int | str], ...]:
        columns = "columns" if self.whole else "chunk"
        sizes = (("rows", self.rows), (columns, self.columns), ("warps", self.launch.warps))
        more = (("cluster", self.cluster), ("unroll", self.unroll), ("stages", self.launch.stages))
        return (*sizes, *((name, n) for name, n in more if n > 1))


MOST_ELEMENTS = 32768
"""Elements that a block holds in registers."""

TOGETHER = 2048
"""Elements of short rows that a block takes. Softmax of bf16 rows of 256: 4.17 TB/s, with 8192 elements 4.05."""

CHUNK, CHUNK_AGAIN = 8192, 16384
"""Elements of a wide row that are read at a time, by a warp for each 1024: where a row is read once, and where it is
read again. Of bf16 rows of 128256, log-sum-exp: 2.88 TB/s, with 32768 elements 2.39; softmax, read twice: 2.82 and
2.72."""

LIGHT_BLOCKS, LIGHT_REGISTERS = 4, 64
"""Blocks of such rows that share an SM, for so many registers a thread: where the second-level cache holds all their
rows, what is read again comes from there."""

LIGHT = 1 << 16
"""Elements below which a row whose exponentials are cheap is read again in the smaller chunks. Loss and gradient of
bf16 rows on an H200, where a copy reaches 4.2: of 32000 elements 3.43 TB/s, in the larger chunks 3.21, in a block of 32
warps, which has an SM alone, 2.9; of 50304 2.87 and 2.00; of 128256 2.64 and 2.82."""

CLUSTER_WARPS, MOST_BLOCKS = 8, 8
"""Warps of a cluster's blocks, and blocks that any GPU with clusters can put together."""

SHARING = (3, 2, 1)
"""Blocks of clusters that share an SM's memory, best guess first: while one waits, another stores."""

RESERVED = 2048
"""Bytes of shared memory that each block takes besides: for reductions, and the driver's."""

NEAR_BYTES = 128
"""Bytes of neighbouring rows that a block takes side by side where neighbours in memory lie in different rows."""

ACROSS = 128
"""Positions of such rows that are read at a time. Column sums: 4.03 TB/s in f32, 3.55 in bf16."""

FEW_COLUMNS, FEW_WARPS = 8, 4
"""Rows of so few elements are added up by a thread each: as many lie side by side as its loads take. Four matrices of
2²⁸ elements of bf16 on an H100: 0.87 ms, where warps that share a row take 2.53."""

FEW_ACROSS = 16
"""The same of 16 bits, by 4 warps, where all sums are made in one pass: while a block adds up what it has read, others
read. Sums of 64 images of 112² of 64 channels take 38 µs on an H200, with 32 positions 39, with 128 and 8 warps 51; of
16384 by 8192: 75, 87 and 80. Rows that a block could hold are read so, too: two blocks of 16 warps share an SM, and
wait for their loads together (on an H100 sums of 256 positions of images of 26 MB took 35 µs, where those of 103 MB
read so take 50)."""

UNROLLS = (4, 5, 3, 7)
"""Times as many of those are asked for at a time: of 16 alone a thread has 16 bytes under way, which keep memory busy
where an SM has all the threads that it can have, and are too few for images of few channels. The sums take no more
registers for it. A number that leaves no rest, best first."""


START = 1.2e-6
"""Seconds that a row's barriers take, where no other row's loads hide them: a norm of 16 rows of 4096 between other
kernels takes 2.8 µs (decision 18)."""
_HELD = 0.8
"""What clusters reach of memory's rate: while one waits for the others' sums it neither reads nor writes (1024 rows of
128256: 3.39 TB/s of 4.3)."""


def row_seconds(
    rows: int, s: GpuRowSchedule, stream: Stream, target: GpuTarget, *, again: float = 0.0, cuda: bool
) -> float:
    """Predicted seconds; ``again``: the bytes that are read once more where no block holds a row."""
    blocks = ceil(max(rows, 1) / s.rows) * s.cluster
    twice = again if not s.whole else 0.0
    rate = _HELD if s.cluster > 1 else 1.0
    return START + stream.seconds(blocks, target, again=twice, rate=rate, chunks=not s.whole, cuda=cuda)


def row_candidates(
    rows: int,
    length: int,
    target: GpuTarget,
    *,
    bits: int = 32,
    across: bool = False,
    steps: int = 1,
    again: bool = False,
    light: bool = False,
) -> list[GpuRowSchedule]:
    """Schedules for ``rows`` rows of ``length`` elements of ``bits``, best predicted first.

    ``across``: neighbours in memory are of neighbouring rows. ``steps``: how many reductions need one another.
    ``again``: it reads its rows once more when they are made. ``light``: exponentials below a maximum, which take few
    instructions, so that what is read again is computed again.
    """
    columns = pow2(max(length, 1))
    if across:
        return [_across(rows, length, bits, steps, target, again=again)]
    if columns > MOST_ELEMENTS or (light and columns == MOST_ELEMENTS):
        chunk = CHUNK_AGAIN if again and not (light and length < LIGHT) else CHUNK
        return [GpuRowSchedule(1, chunk, Launch(chunk // 1024, 1, LIGHT_REGISTERS if light else 0), whole=False)]
    together = max(1, min(pow2(max(rows, 1)), TOGETHER // columns))
    return [GpuRowSchedule(together, columns, _launch(together * columns, target))]


def cluster_candidates(length: int, bits: int, target: GpuTarget) -> list[GpuRowSchedule]:
    """Schedules for rows wider than a block, which the blocks of a cluster hold together; none where they don't fit.

    bits: of all that is read at a position of the row.
    """
    if not target.has_tma or length <= MOST_ELEMENTS:
        return []
    found: dict[GpuRowSchedule, None] = {}
    for sharing in SHARING:
        blocks = max(2, -(-length * bits // 8 // (target.shared_memory // sharing - RESERVED)))
        if blocks <= MOST_BLOCKS:
            found[GpuRowSchedule(1, length, Launch(CLUSTER_WARPS, 1), cluster=blocks)] = None
    return list(found)


def _across(rows: int, length: int, bits: int, steps: int, target: GpuTarget, *, again: bool) -> GpuRowSchedule:
    """Where no sum needs another one the threads keep parts of their own; else a block agrees after each chunk, and is
    smaller.

    Where that leaves SMs idle, blocks are narrower, down to two sectors of memory.
    """
    columns = pow2(max(length, 1))
    side = min(pow2(max(rows, 1)), NEAR_BYTES * 8 // bits if steps == 1 else 64)
    while steps > 1 and side * bits > 64 * 8 and rows < 4 * side * target.sms:
        side //= 2
    beside = FEW_WARPS * target.warp_size * 128 // bits
    if columns <= FEW_COLUMNS and rows >= 2 * beside * target.sms:
        return GpuRowSchedule(beside, columns, Launch(FEW_WARPS, 1))
    passing = steps == 1 and bits <= 16 and side * bits >= NEAR_BYTES * 8
    if side * columns <= MOST_ELEMENTS // 2 and (again or not passing or length < ACROSS):
        side = max(side, min(pow2(max(rows, 1)), TOGETHER // columns))
        return GpuRowSchedule(side, columns, _launch(side * columns, target))
    if passing:
        chunks = -(-length // FEW_ACROSS)
        unroll = next((n for n in UNROLLS if chunks % n == 0), UNROLLS[0])
        return GpuRowSchedule(side, FEW_ACROSS, Launch(4, 1), whole=False, unroll=unroll)
    chunk = max(ACROSS, 8192 // side if steps > 1 else TOGETHER // side)
    return GpuRowSchedule(side, chunk, Launch(8 if steps == 1 or side < 64 else 4, 1), whole=False)


def _launch(elements: int, target: GpuTarget) -> Launch:
    """Thirty-two elements a thread, fewer where a block has few."""
    warps = pow2(max(1, min(32, elements // (target.warp_size * 32))))
    return Launch(max(warps, min(4, pow2(max(1, elements // (target.warp_size * 16))))), 1)
