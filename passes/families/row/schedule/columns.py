# SPDX-License-Identifier: Apache-2.0
"""Schedules of row kernels on GPUs that add up columns on the way: persistent CTAs, each over a run of rows."""

from __future__ import annotations

from fusec.ir.indexing import pow2
from fusec.passes.families.row.schedule.gpu import RESERVED, START, GpuRowSchedule
from fusec.passes.schedule.launch import Launch
from fusec.passes.schedule.stream import Stream
from fusec.target.gpu import GpuTarget

EACH = 16
"""Elements of a tile that a thread has: its sums take as many registers each."""

MOST_HELD = 32768
"""Numbers that a CTA holds in registers: of each input and each sum a tile."""

TOGETHER = 2048
"""Elements of short rows that a CTA takes at a time."""

STAGES = 3
"""Tiles under way to shared memory, and the one at hand."""

REGISTERS = 128
"""Registers that a thread may have. Gradients of norms take 80 to 128."""

_REGISTERS_OF_SM = 65536

FEWEST = 64
"""Parts, which are the CTAs: with fewer most SMs would stand idle."""

UNEVEN = 1.4
"""How much longer a part may be for all of them to be equal."""

WALKED = 0.88
"""What such kernels reach of memory's rate (decision 11: a layer norm whose blocks go from row to row, 3.7 TB/s of
4.2)."""


def holds(length: int, tiles: int) -> bool:
    """Whether a CTA can hold so many tiles of a row in registers."""
    return pow2(max(length, 1)) * tiles <= MOST_HELD


def parts_of(rows: int, length: int, sms: int) -> tuple[int, int]:
    """Parts, and rows of each: one wave of CTAs, in equal parts where they need be little longer for it."""
    wanted = max(1, min(sms * _resident(max(pow2(max(length, 1)), TOGETHER)), rows // 2))
    least = -(-rows // wanted)
    even = (n for n in range(least, int(least * UNEVEN) + 1) if rows % n == 0)
    height = next(even, least)
    return -(-rows // height), height


def _resident(tile: int) -> int:
    """CTAs that share an SM, each with a tile of so many elements."""
    return max(1, _REGISTERS_OF_SM // (tile // EACH * REGISTERS))


def walk_seconds(parts: int, stream: Stream, target: GpuTarget, *, cuda: bool) -> float:
    """Predicted seconds of a kernel of so many CTAs."""
    return START + stream.seconds(parts, target, rate=WALKED, chunks=cuda, cuda=cuda)


def column_candidates(length: int, bits: int, target: GpuTarget, *, triton: bool) -> list[GpuRowSchedule]:
    """Schedules for rows of so many elements, the best guess first. In CUDA C++ a tile is one row.

    bits: of all that is read at a position of the row. Tiles under way fit the shared memory of an SM.
    """
    columns = pow2(max(length, 1))
    rows = max(1, TOGETHER // columns) if triton else 1
    warps = max(1, min(32, rows * columns // (target.warp_size * EACH)))
    if not triton:
        return [GpuRowSchedule(1, columns, Launch(warps, 1))]
    tile = rows * columns
    able = (target.shared_memory // _resident(tile) - RESERVED) // max(tile * bits // 8, 1)
    stages = max(1, min(STAGES, able))
    found = [GpuRowSchedule(rows, columns, Launch(warps, stages, REGISTERS))]
    found += [GpuRowSchedule(rows, columns, Launch(warps, stages - 1, REGISTERS))] if stages > 1 else []
    found += [GpuRowSchedule(rows, columns, Launch(2 * warps, stages))] if warps < 16 else []
    return found
