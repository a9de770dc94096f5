# SPDX-License-Identifier: Apache-2.0
"""Schedules of scan kernels on a CPU."""

from __future__ import annotations

from dataclasses import dataclass

from fusec.ir.indexing import round_up
from fusec.passes.families.map.schedule.cpu import non_temporal_from
from fusec.passes.schedule.base import CpuSchedule
from fusec.target.cpu import CpuTarget


@dataclass(frozen=True)
class ScanSchedule(CpuSchedule):
    """``task_rows``: rows one parallel task does. ``chunk``: positions of a row that are scanned and stored at a time.
    ``lanes``: rows side by side where neighbours in memory are of neighbouring rows, 0 elsewhere. ``parts``: of a row,
    where rows are too few for all cores. ``non_temporal_bytes``: results of at least so many bytes go past the caches,
    0 for none."""

    task_rows: int
    chunk: int
    lanes: int = 0
    parts: int = 1
    non_temporal_bytes: int = 0


CHUNK_BYTES = 8192
"""Of a chunk in scratch: it stays in L1 with what it is made of and what is made of it."""

SERIAL = 16384
"""Elements up to which a task is not worth sharing out."""

PART = 1 << 15
"""Elements of a part of a row at the least: its operand is read once more, to be reduced."""

FEWEST_LANES, MOST_LANES = 64, 1024
"""Rows side by side: fewer are no run of memory, more carries do not stay in L1."""


def along_schedule(rows: int, length: int, threads: int, target: CpuTarget, *, cuts: bool) -> ScanSchedule:
    """Rows that lie along memory. ``cuts``: they may be cut into parts."""
    chunk = max(1, min(length, CHUNK_BYTES // 4))
    past = non_temporal_from(target)
    parts = _parts(rows, rows * length, length, threads) if cuts else 1
    if parts > 1 or rows * length <= SERIAL:
        return ScanSchedule(max(rows, 1) if parts == 1 else 1, chunk, 0, _even(length, parts, chunk), past)
    task = max(1, min(SERIAL // max(length, 1), -(-rows // (4 * threads))))
    return ScanSchedule(task, chunk, 0, 1, past)


def across_schedule(
    outer: int, width: int, length: int, threads: int, target: CpuTarget, *, cuts: bool
) -> ScanSchedule:
    """Rows that lie across memory, ``width`` of them side by side."""
    wanted = -(-outer * width // (4 * threads)) if outer * width * length > SERIAL else width
    lanes = max(1, min(round_up(min(max(wanted, FEWEST_LANES), MOST_LANES), 16), width))
    chunk = max(1, min(CHUNK_BYTES // (4 * lanes), length))
    tasks = outer * -(-width // lanes)
    parts = _parts(tasks, outer * width * length, length, threads) if cuts else 1
    return ScanSchedule(1, chunk, lanes, _even(length, parts, chunk), non_temporal_from(target))


def _parts(tasks: int, elements: int, length: int, threads: int) -> int:
    """Parts of each row, where there are fewer tasks than threads."""
    if threads == 1 or tasks >= threads or elements < 4 * PART:
        return 1
    return max(1, min(8 * threads // max(tasks, 1), elements // PART, length // 2))


def _even(length: int, parts: int, chunk: int) -> int:
    """As many parts as there are of whole chunks."""
    each = round_up(-(-length // parts), chunk)
    return -(-length // each) if parts > 1 else 1
