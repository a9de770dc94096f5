# SPDX-License-Identifier: Apache-2.0
"""Schedules of scan kernels on GPUs."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import ClassVar

from fusec.ir.indexing import pow2, round_up
from fusec.passes.schedule.launch import Launch
from fusec.passes.schedule.stream import Stream
from fusec.target.gpu import GpuTarget
from fusec.tile.kernel import Language


@dataclass(frozen=True)
class GpuScanSchedule:
    """A block takes ``beside`` rows, ``chunk`` positions of them at a time.

    across: neighbours in memory are of neighbouring rows. parts: of a row, which one kernel reduces and another scans.
    relay: a part is a chunk, and one kernel does both: its blocks wait for what those before them gave.
    """

    language: ClassVar[Language] = "triton"
    beside: int
    chunk: int
    launch: Launch
    across: bool = False
    parts: int = 1
    relay: bool = False
    seconds: float = field(default=0.0, compare=False)

    def describe(self) -> tuple[tuple[str, int | str], ...]:
        sizes = (("rows", self.beside), ("chunk", self.chunk), ("warps", self.launch.warps))
        parts = "relayed parts" if self.relay else "parts"
        return (*sizes, *((name, n) for name, n in ((parts, self.parts),) if n > 1))


MOST_WHOLE = 16384
"""Elements of a row that a block holds in registers."""

TOGETHER = 2048
"""Elements of short rows that a block takes."""

CHUNK = 4096
"""Positions of a longer row at a time."""

DEAR_CHUNK = 2048
"""The same for log-sum-exps: 4096 rows of 8192 f32 take 166 µs on an H200, whole rows 306."""

NEAR_BYTES, ACROSS = 64, 256
"""Bytes of neighbouring rows side by side where they lie across memory, and positions of them at a time. Columns of
4096x8192 f32 on an H200: 83 µs, with 128 bytes and 128 positions 105 to 118, with 256 and 64 193; a copy 68."""

EACH = 1024
"""Elements of a row for each warp. Rows of 8192 f32 with maps: 72 µs; half as many 76, as few as a quarter 114. From
the last position on half as many warps: 72 µs, 77 and 87."""

MOST_PARTS = 2048
"""Parts of a row: as many as a block combines at once before it starts. Of 2**24 f32 57 µs, 1024 of them 58, 512 61."""

RELAYED = ((4096, 4), (8192, 8), (4096, 8), (2048, 4))
"""Positions of a part that waits for those before it, and warps. A row of 2**24 f32 on an H200: 46 µs, 48, 51 and 50;
with 8192 positions and 16 warps 60."""

MOST_RELAYED = 1 << 16
"""Such parts of a row: each reads what all squads before it gave."""

RATE = 0.9
"""What scans reach of memory's rate, as a first guess."""


IN_ORDER = (128, 64, 32, 256)
"""Rows side by side that a block of a recurrence takes, a row for each thread."""

AHEAD = 4
"""Positions of a recurrence whose loads are on their way."""


def recurrence_candidates(
    rows: int, stream: Stream, target: GpuTarget, *, across: bool, outer: int
) -> list[GpuScanSchedule]:
    """Schedules of recurrences, whose positions come one after another: a thread has a row."""
    widths = dict.fromkeys(min(n, max(32, pow2(max(rows // max(outer, 1), 1)))) for n in IN_ORDER)
    made = []
    for beside in widths:
        blocks = outer * ceil(rows / max(outer, 1) / beside) if across else ceil(rows / beside)
        seconds = _seconds(blocks, 1, stream, target)
        made.append(GpuScanSchedule(beside, 1, Launch(max(1, beside // 32), AHEAD), across, 1, seconds=seconds))
    return made


def scan_candidates(
    rows: int,
    length: int,
    bits: int,
    target: GpuTarget,
    stream: Stream,
    *,
    across: bool,
    outer: int,
    cuts: bool,
    relays: bool = False,
    dear: bool = False,
    reverse: bool = False,
) -> list[GpuScanSchedule]:
    """Schedules for ``rows`` rows in all, best predicted first. outer: rows that do not lie side by side; cuts: rows
    may be cut into parts; relays: parts may wait for each other; dear: combining takes exponentials."""
    if across:
        beside = max(1, min(pow2(max(rows // max(outer, 1), 1)), NEAR_BYTES * 8 // max(bits, 8)))
        chunk = min(pow2(max(length, 1)), ACROSS)
        found = [(beside, chunk, 4)]
    elif pow2(max(length, 1)) <= MOST_WHOLE:
        chunk = pow2(max(length, 1))
        beside = max(1, min(pow2(max(rows, 1)), TOGETHER // chunk))
        warps = max(1, min(16, beside * chunk // (2 * EACH if reverse else EACH)))
        found = [(beside, chunk, warps)]
        found += [(beside, chunk, warps // 2), (beside, chunk, 2 * warps)] if warps > 1 else []
        found += [(1, CHUNK, 8)] if chunk > CHUNK else []
    else:
        found = [(1, CHUNK, 8), (1, 2 * CHUNK, 16), (1, CHUNK // 2, 4)]
    if dear and not across and found[0][1] > DEAR_CHUNK:
        found.insert(0, (1, DEAR_CHUNK, 4))
    made = []
    for beside, chunk, warps in found:
        blocks = outer * ceil(rows / max(outer, 1) / beside) if across else ceil(rows / beside)
        parts = _parts(blocks, length, chunk, target) if cuts else 1
        seconds = _seconds(blocks, parts, stream, target)
        made.append(GpuScanSchedule(beside, chunk, Launch(warps, 1), across, parts, seconds=seconds))
    if relays and cuts and not across and made[0].parts > 1:
        return [*_relayed(rows, length, stream, target), *made]
    return made


def _relayed(rows: int, length: int, stream: Stream, target: GpuTarget) -> list[GpuScanSchedule]:
    """Schedules whose parts wait for those before them."""
    made = []
    for chunk, warps in RELAYED:
        parts = ceil(length / chunk)
        if 4 <= parts <= MOST_RELAYED:
            seconds = target.rates.launch + _seconds(rows * parts, 1, stream, target)
            made.append(GpuScanSchedule(1, chunk, Launch(warps, 1), False, parts, True, seconds))
    return made


def _parts(blocks: int, length: int, chunk: int, target: GpuTarget) -> int:
    """Parts of each row, where there are too few blocks for all SMs."""
    if 2 * blocks >= target.sms or length < 4 * chunk:
        return 1
    wanted = min(16 * target.sms // max(blocks, 1), MOST_PARTS, length // chunk)
    each = round_up(-(-length // max(wanted, 1)), chunk)
    return -(-length // each)


def _seconds(blocks: int, parts: int, stream: Stream, target: GpuTarget) -> float:
    if parts == 1:
        return stream.seconds(blocks, target, rate=RATE, chunks=True, cuda=False)
    read = Stream(stream.read, 0.0, stream.instructions / 2, stream.specials)
    first = read.seconds(blocks * parts, target, rate=RATE, chunks=True, cuda=False)
    return first + stream.seconds(blocks * parts, target, rate=RATE, chunks=True, cuda=False)
