# SPDX-License-Identifier: Apache-2.0
"""Schedules of matmuls on a CPU whose right operand is read where it lies, along K."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from fusec.ir.indexing import round_up
from fusec.passes.families.gemm.schedule.cpu import GemmSchedule
from fusec.passes.families.gemm.schedule.mixed import TASKS_PER_THREAD
from fusec.target.cpu import CpuTarget
from fusec.tile.nodes import RegisterTile

TILE_COLUMNS = 32
"""Columns whose sums are finished together: whole vectors for the epilogue."""

ADDING_UP = 2.0
"""Cycles to add up the lanes of one sum."""

REACHED = 0.93
"""Of the multiplication rate with operands in L1 and L2. Zen 5, one thread, 128×768×3072: f32 5.85 ms, with a packed
operand 5.69; bf16 3.01 and 2.77."""

PACKING = {4: 3.0, 2: 1.2, 1: 0.6, 8: 4.0}
"""Cycles to pack one element, by its bytes: 768×3072 on Zen 5, one thread, f32 1.7 ms, bf16 0.6."""

STAGING = 0.6
"""Share of these cycles where what is packed stays in a core's L2."""

LATENCY = 8
"""Sums that have to be under way: two multiplications a cycle, four cycles each."""


@dataclass(frozen=True)
class AlongProblem:
    """A matmul of M by K with N by K. item: bytes of an operand's element as it is multiplied. low_precision: their
    sums are wider. computed: the right operand is made in the prologue. source: bytes of an element of what it is made
    from."""

    m: int
    n: int
    k: int
    item: int
    low_precision: bool = False
    computed: bool = False
    source: int = 4

    @property
    def sum_bits(self) -> int:
        return 32 if self.low_precision else 8 * self.item


def along_candidates(p: AlongProblem, target: CpuTarget, threads: int) -> dict[GemmSchedule, float]:
    """Schedules with their predicted seconds, of many tasks and of one.

    One task has several tiles of columns. What computes them can't see then that its indices are within the operand,
    and reads bytes one by one; so it gets no such schedule.
    """
    found: dict[GemmSchedule, float] = {}
    for registers in _register_tiles(p, target):
        fit = int(target.l2 // 2 // (p.item * max(p.k, 1)))
        tile_m = min(round_up(max(p.m, 1), registers.rows), max(fit // registers.rows, 1) * registers.rows)
        tile_n = _tile_columns(p, registers, target)
        for tasks in (TASKS_PER_THREAD * threads, *(() if p.computed else (1,))):
            block_n = round_up(max(ceil(p.n / tasks), 1), tile_n)
            s = GemmSchedule(tile_m, block_n, tile_n, max(p.k, 1), registers, False, p.low_precision)
            found[s] = seconds_along(p, s, target, threads)
    return found


def _register_tiles(p: AlongProblem, target: CpuTarget) -> list[RegisterTile]:
    """Few rows take as many columns as fit; more of them blocks that are as even as can be."""
    found = []
    for columns in (8, 4, 2):
        most = (target.vector_registers - 1 - columns) // columns
        if columns > target.lanes(p.sum_bits) or most < 1:
            continue
        most = min(most, 6)
        rows = ceil(max(p.m, 1) / ceil(max(p.m, 1) / most))
        prefetch_bytes = 0 if p.computed else columns * p.k * p.item
        found.append(RegisterTile(rows, columns, along=True, prefetch_bytes=prefetch_bytes))
    return found


def _tile_columns(p: AlongProblem, registers: RegisterTile, target: CpuTarget) -> int:
    """Those that are computed stay in L1."""
    if not p.computed:
        return TILE_COLUMNS
    fit = target.l1 // 2 // max(p.k * p.item, 1) // registers.columns * registers.columns
    return min(max(fit, registers.columns), TILE_COLUMNS)


def seconds_along(p: AlongProblem, s: GemmSchedule, target: CpuTarget, threads: int) -> float:
    """Of the matmul, its right operand from beyond L2."""
    r, cycle = s.registers, 1.0 / target.frequency
    rate = target.peak_flops(8 * p.item, 1) * REACHED * _issued(r)
    rows = ceil(p.m / r.rows) * r.rows
    columns = round_up(min(s.block_n, p.n), r.columns)
    per_task = 2.0 * rows * columns * p.k / rate + rows * columns * ADDING_UP * cycle
    if p.computed:
        per_task += columns * p.k * cycle / target.lanes(32) * 4
    tasks = max(1, ceil(p.n / s.block_n))
    rounds = ceil(tasks / threads)
    busy = min(threads, tasks) / threads
    again = ceil(p.m / s.tile_m)
    traffic = ((p.m * p.k * p.item) + again * p.n * p.k * p.source + p.m * p.n * 4) / (target.bandwidth * busy)
    return max(rounds * per_task, traffic) + (2e-6 if tasks > 1 else 0.2e-6)


def _issued(r: RegisterTile) -> float:
    """Share of the multiplication rate: two loads start in a cycle, and as many multiplications."""
    multiplies = r.rows * r.columns
    return min(1.0, multiplies / LATENCY, multiplies / (1.2 * (r.rows + r.columns)))


def packing_seconds(p: AlongProblem, target: CpuTarget, threads: int) -> float:
    """Of packing the right operand at a call."""
    elements = p.n * p.k
    cycles = elements * PACKING[p.item] / threads
    return max(cycles / target.frequency, elements * (2 * p.item + p.source) / target.bandwidth) + 2e-6


def staging_seconds(p: AlongProblem, target: CpuTarget, threads: int) -> float:
    """Of putting the right operand's columns in order in the caches of the cores that multiply them."""
    elements = p.n * p.k
    return max(
        elements * STAGING * PACKING[p.item] / threads / target.frequency, elements * p.source / target.bandwidth
    )
