# SPDX-License-Identifier: Apache-2.0
"""Schedules of matmuls of low-precision types on a CPU: bf16 into f32, i8 into i32."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

from fusec.ir.indexing import round_up
from fusec.ir.types import DType, bf16, f32, i8, i32
from fusec.passes.schedule.base import CpuSchedule
from fusec.target.cpu import CpuTarget
from fusec.tile.nodes import RegisterTile

TILE_BYTES = 64
"""Of k in one row of an AMX tile."""

L2_BYTES, L3_BYTES = 45.0, 8.0
"""Bytes a cycle that one core reads from L2 and from L3. Measured on Emerald Rapids: 39 to 48, and 8."""

PREFETCH_BYTES = 8192
"""Bytes ahead of which a right operand that passes once is fetched. 8×4096×4096 in f32, ms, a C program's loops, on
Zen 5 and on Emerald Rapids: 0 9.1 and 8.1, 1024 9.2 and 6.6, 2048 7.9 and 5.7, 4096 7.7 and 4.7, 8192 7.9 and 4.5;
reading alone 8.0 and 4.1."""

PREFETCH_BYTES_TO_L2 = 16384
"""The same where vectors fetch to L2. Four layers of 8×4096×4096 in f32 on Emerald Rapids, compiled, share of the speed
of reading: 8192 to L1 0.90, 8192 to L2 0.98, 16384 and 32768 1.00, nothing fetched 0.84; one row takes 1.23 to 1.25 of
it by all of them, and bf16 on tiles, fetched 8192 ahead to L1, 1.5."""

TASKS_PER_THREAD = 8
"""Of such a matmul: long runs of panels, and not much left for one thread when the others are done."""

SUMS: dict[DType, DType] = {bf16: f32, i8: i32}
"""The type of the sums of low-precision products."""


@dataclass(frozen=True)
class MixedGemmSchedule(CpuSchedule):
    """Tile sizes of one matmul of M by K with K by N.

    tile_m, block_n: rows and columns of one task, whole register tiles. tile_k: how much of K is multiplied before
    the next block of sums; it divides K rounded up to ``step``. columns_inside: a block of rows passes all columns
    before the next one starts, so that it stays in L1; else a panel of columns passes all rows. pack_left: copy the
    rows to scratch first.
    """

    tile_m: int
    block_n: int
    tile_k: int
    registers: RegisterTile
    columns_inside: bool
    pack_left: bool

    def describe(self) -> tuple[tuple[str, int | str], ...]:
        """The sizes by name, for dumps."""
        r = self.registers
        return (
            ("tile_m", self.tile_m),
            ("block_n", self.block_n),
            ("tile_k", self.tile_k),
            ("registers", f"{r.rows}x{r.columns}{' in tiles' if r.tiles else ''}"),
            ("inside", "columns" if self.columns_inside else "rows"),
            ("pack_left", int(self.pack_left)),
        )


@dataclass(frozen=True)
class MixedProblem:
    """A matmul's extents and the type of its operands.

    ``direct``: the left rows could be read where they are. ``fixed``: m is the number of rows, not the most of them.
    """

    batches: int
    m: int
    n: int
    k: int
    dtype: DType
    direct: bool = False
    fixed: bool = True

    @property
    def group(self) -> int:
        return 32 // self.dtype.bits


TASK = 500
"""Cycles that a task takes to start and to end."""

LATE = 0.5
"""Tasks that one thread has left when the others are done. 512×768×3072 among other work: 12 tasks 1.09 ms, 96 0.94."""

MISSED = 0.1
"""Share of what should stay in L1 and is too large whose way from L2 is waited for. On Zen 5 K in parts that fit costs
more: 2 % of 512×768×3072 and 2048×1024×4096, 8 % of 128×768×768."""

MISSED_TILES = 0.35
"""The same of AMX tiles, which multiply eight times as fast."""


def passes_once(m: int, right_bytes: int, registers: RegisterTile, target: CpuTarget) -> bool:
    """Whether the right operand comes from beyond L2 and is needed once: sums of all rows fit the registers."""
    return m <= registers.rows and right_bytes > target.l2


def sum_dtype(dtype: DType, target: CpuTarget) -> DType | None:
    """The type of the sums of products of this type, where the target multiplies it as it is; else None."""
    return SUMS.get(dtype) if target.multiplies(dtype) or target.multiplies_in_tiles(dtype) else None


def depth_step(dtype: DType, tiles: bool) -> int:
    """The number of elements of k that a multiplication takes."""
    return TILE_BYTES // dtype.itemsize if tiles else 32 // dtype.bits


def mixed_candidates(p: MixedProblem, target: CpuTarget, threads: int) -> list[MixedGemmSchedule]:
    """Schedules worth considering, best predicted first."""
    found: dict[MixedGemmSchedule, float] = {}
    tiles = list(_register_tiles(p, target))
    holding = [r for r in tiles if p.batches == 1 and passes_once(p.m, p.n * p.k * p.dtype.itemsize, r, target)]
    for registers in holding or tiles:
        step = depth_step(p.dtype, registers.tiles)
        depth = round_up(p.k, step)
        beyond = registers.tiles and not (p.fixed and p.m % min(registers.rows, 16) == 0)
        packs = not p.direct or beyond or p.k != depth
        share = ceil(p.n / (TASKS_PER_THREAD * threads))
        widths = (64, 128, 192, 256, 384, 512, 1024) if registers.tiles else (64, 128, 256, 512, 1024)
        if holding:
            registers = replace(registers, prefetch_bytes=PREFETCH_BYTES)
        for tile_k in (depth,) if holding else _depths(depth, step, p):
            for wanted_m in (32, 64, 128, 256):
                tile_m = round_up(min(wanted_m, p.m), registers.rows)
                for wanted_n in (share,) if holding else widths:
                    block_n = round_up(min(wanted_n, p.n), registers.columns)
                    for inside in (True, False):
                        s = MixedGemmSchedule(tile_m, block_n, tile_k, registers, inside, packs)
                        found[s] = predict_mixed(p, s, target, threads)
    return sorted(found, key=found.__getitem__)


def _register_tiles(p: MixedProblem, target: CpuTarget) -> Iterator[RegisterTile]:
    """Tiles where there are any, also for few rows: 8×4096×4096 takes 0.6 ms with them, 1.3 with AVX512-BF16."""
    if target.multiplies_in_tiles(p.dtype):
        rows = 32 if p.m > 16 else max(p.m, 1) if p.fixed else 16
        yield RegisterTile(rows, 16 if p.n <= 16 else 32, tiles=True)
    else:
        yield from _vector_tiles(p, target)


def _vector_tiles(p: MixedProblem, target: CpuTarget) -> Iterator[RegisterTile]:
    lanes = target.lanes(32)
    extra = 1 if p.dtype is i8 else 0
    for vectors in (1, 2, 3, 4):
        most = (target.vector_registers - 1 - vectors) // vectors - extra
        for rows in sorted({1, 2, 4, 6, 8, 9, 12, 14, min(max(p.m, 1), 14)}):
            if rows <= min(most, max(p.m, 1)) and vectors * lanes < 2 * max(p.n, lanes):
                yield RegisterTile(rows, vectors * lanes)


def _depths(depth: int, step: int, p: MixedProblem) -> Iterator[int]:
    """All of K, and parts of it of which a block of rows and a panel fit L1."""
    yield depth
    for parts in range(2, 9):
        part = depth // parts
        if depth % parts == 0 and part % step == 0 and part * p.dtype.itemsize >= 512:
            yield part


def predict_mixed(p: MixedProblem, s: MixedGemmSchedule, target: CpuTarget, threads: int) -> float:
    """Seconds, without the packing of a constant right operand."""
    item, r = p.dtype.itemsize, s.registers
    rows, columns = round_up(min(s.tile_m, p.m), r.rows), round_up(min(s.block_n, p.n), r.columns)
    parts = ceil(p.k / s.tile_k)
    multiply = 2.0 * rows * columns * p.k / (target.matmul_flops(p.dtype, 1) * _efficiency(s, target))
    cycles = _operand_cycles(p, s, target, rows, columns)
    if s.pack_left:
        cycles += rows * p.k * item * 0.03
    cycles += rows * columns * (0.5 + 0.8 * (parts - 1))  # the epilogue; sums that come and go
    per_task = multiply + (cycles + TASK) / target.frequency
    tasks = max(1, p.batches * ceil(p.m / s.tile_m) * ceil(p.n / s.block_n))
    rounds = ceil(tasks / threads) + LATE if tasks > 1 else 1
    launch = 2e-6 if tasks > 1 else 0.2e-6
    busy = min(threads, tasks) / threads
    traffic = ((p.m * p.k + p.n * p.k) * item + p.m * p.n * 2) * p.batches / (target.bandwidth * busy)
    return max(rounds * per_task, traffic) + launch


def _operand_cycles(p: MixedProblem, s: MixedGemmSchedule, target: CpuTarget, rows: int, columns: int) -> float:
    """Cycles that a task waits for operands: what passes comes from L2, what stays too where L1 is too small for it."""
    item, r = p.dtype.itemsize, s.registers
    staying, passing = (r.rows, r.columns) if s.columns_inside else (r.columns, r.rows)
    blocks = ceil(rows / r.rows) * ceil(columns / r.columns)
    stays = staying * s.tile_k * item < 0.75 * target.l1
    missed = 0.0 if stays else MISSED_TILES if r.tiles else MISSED
    cycles = blocks * (passing + missed * staying) * p.k * item / L2_BYTES
    panel = columns * p.k * item
    if panel > 0.6 * target.l2 and rows > r.rows:  # each further block of rows reads it again
        cycles += panel / L3_BYTES
    shared = p.m if panel <= 0.6 * target.l2 else rows
    return cycles + (rows * p.k * item + panel * rows / shared) / L3_BYTES


def _efficiency(s: MixedGemmSchedule, target: CpuTarget) -> float:
    if s.registers.tiles:
        return 1.0 if s.registers.rows == 32 else 0.5
    vectors = s.registers.columns // target.lanes(32)
    multiplies = s.registers.rows * vectors
    issue = min(1.0, multiplies / (1.25 * (vectors + s.registers.rows)))
    return 0.95 * min(1.0, multiplies / 10) * issue
