# SPDX-License-Identifier: Apache-2.0
"""Schedules of matmuls on a CPU: tiles for the caches, register tiles for the vector unit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

from fusec.ir.indexing import round_up
from fusec.passes.families.gemm.schedule.mixed import (
    PREFETCH_BYTES,
    PREFETCH_BYTES_TO_L2,
    TASKS_PER_THREAD,
    passes_once,
)
from fusec.passes.schedule.base import CpuSchedule
from fusec.passes.schedule.sums import block_depth
from fusec.target.cpu import CpuTarget
from fusec.tile.nodes import RegisterTile

UNHIDDEN = 0.1
"""Share of a panel's way from beyond L2 that multiplying doesn't cover, unless it is fetched ahead."""

LEFT_SHARE = 0.5
"""Share of L2 that a task's rows of the left operand may take; the rest is for panels passing through."""


@dataclass(frozen=True)
class GemmSchedule(CpuSchedule):
    """Tile sizes of one matmul of M by K with K by N.

    tile_m: rows of the left operand that a task keeps in L2. block_n: columns of one task.
    tile_n: columns of one accumulator tile, in L1. tile_k: how much of K is packed and multiplied at a time.
    registers: the accumulators. pack_left: copy the left rows to scratch (else read them in place).

    With ``registers.along`` both operands are read along K. low_precision: they keep their type, which the target
    multiplies. staged: a right operand without batch axes, too, is read by each task where it lies, or copied to its
    scratch; else a kernel of its own packs it.
    """

    tile_m: int
    block_n: int
    tile_n: int
    tile_k: int
    registers: RegisterTile
    pack_left: bool
    low_precision: bool = False
    staged: bool = False

    @property
    def reads_once(self) -> bool:
        """Whether a task needs its panels once, sums of all of its rows being in registers, and fetches them ahead."""
        return self.registers.prefetch_bytes > 0 and self.tile_m <= self.registers.rows

    def k_splits(self, k: int) -> int:
        """In how many pieces K is packed and multiplied."""
        return max(1, -(-k // self.tile_k))

    def describe(self) -> tuple[tuple[str, int | str], ...]:
        """The sizes by name, for dumps."""
        r = self.registers
        return (
            ("tile_m", self.tile_m),
            ("block_n", self.block_n),
            ("tile_n", self.tile_n),
            ("tile_k", self.tile_k),
            ("registers", f"{r.rows}x{r.columns}{' along' if r.along else ''}"),
            ("pack_left", int(self.pack_left)),
        )


@dataclass(frozen=True)
class Problem:
    """A matmul's extents and the size of its elements; ``batched`` when the right operand has batch axes."""

    batches: int
    m: int
    n: int
    k: int
    bits: int = 32

    @property
    def batched(self) -> bool:
        return self.batches > 1

    @property
    def flops(self) -> int:
        return 2 * self.batches * self.m * self.n * self.k


def register_tiles(target: CpuTarget, bits: int) -> Iterator[RegisterTile]:
    """Accumulator shapes that fit the registers beside one row of the right operand and one broadcast."""
    lanes = target.lanes(bits)
    for vectors in (1, 2, 3, 4):
        most = (target.vector_registers - 1 - vectors) // vectors
        for rows in range(1, min(most, 14) + 1):
            yield RegisterTile(rows, vectors * lanes)


def register_efficiency(tile: RegisterTile, target: CpuTarget, bits: int) -> float:
    """Share of the FMA rate that a full register tile reaches.

    Each step loads ``vectors`` and broadcasts ``rows`` values for ``rows * vectors`` FMAs, so one vector of columns
    is bound by loads; fewer than ten chains of FMAs don't cover their latency (4 cycles, 2 units). Fewer loads are
    better beyond that, those of the right operand above all, which come from L2: 512x768x3072 on Zen 5 and on Emerald
    Rapids, GFLOP/s: 6x64 445 and 295, 8x48 431 and 289, 8x32 406 and 285. Operands in L1, Zen 5: 6x64 0.98, 8x32
    0.97, 14x32 0.95, 10x16 0.72.
    """
    vectors = tile.columns // target.lanes(bits)
    fmas = tile.rows * vectors
    chains = min(1.0, fmas / 10)
    issue = min(1.0, fmas / (1.25 * (vectors + tile.rows)))
    return 0.98 * chains * issue * (1.05 - 0.1 * (1.5 * vectors + tile.rows) / fmas)


def _overhangs(tile: RegisterTile, p: Problem, target: CpuTarget) -> bool:
    """Whether half of a tile's vectors or more would hold no column of the product."""
    return tile.columns >= 2 * max(p.n, target.lanes(p.bits))


def gemm_candidates(p: Problem, target: CpuTarget, threads: int) -> list[GemmSchedule]:
    """Schedules worth considering, best predicted first."""
    found: dict[GemmSchedule, Seconds] = {}
    left_bytes = target.l2 * LEFT_SHARE
    item = p.bits // 8
    for registers in register_tiles(target, p.bits):
        if registers.rows > max(p.m, 1) or _overhangs(registers, p, target):
            continue
        if passes_once(p.m, p.n * p.k * item, registers, target) and not p.batched:
            found.update(_few_rows(p, registers, target, threads))
            continue
        tile_k = p.k if p.k <= 4096 else _even_split(p.k, 2048)
        fit = max(registers.rows, int(left_bytes // (item * max(tile_k, 1))))
        for rows in (48, 96, 128, 192, 256):
            tile_m = round_up(_even(p.m, min(rows, fit)), registers.rows)
            shared = tile_m > registers.rows
            fetching = replace(registers, prefetch_bytes=_next_block(p, registers, tile_k, target) if shared else 0)
            for parts in (1, 2, 4, 8):
                block_n = round_up(ceil(p.n / parts), registers.columns)
                if parts > 1 and block_n < 4 * registers.columns:
                    continue
                if p.k > tile_k:
                    block_n = min(block_n, round_up(max(target.l2 // 4 // (tile_m * item), 1), registers.columns))
                packs = p.m > 8 * registers.rows or p.k > tile_k
                s = GemmSchedule(tile_m, block_n, registers.columns, max(tile_k, 1), fetching, packs and p.m > 1)
                found[s] = _seconds(p, s, target, threads)
    return sorted(found, key=lambda s: (max(found[s]), not s.reads_once, *found[s]))


def unpacked_candidates(p: Problem, target: CpuTarget, threads: int) -> list[GemmSchedule]:
    """Schedules for a right operand whose columns lie side by side: each task reads it there, without packing.

    Few rows read long runs of some rows of it; more of them blocks that stay in L2. Zen 5, one thread, f32, ms, beside
    a packed operand and PyTorch: 1×4096×4096 2.8, 2.3 and 3.2; 8×4096×4096 7.0, 2.8 and 9.8; 128×768×3072 6.0, 5.9 and
    8.0. Beyond MOST_UNPACKED rows packing takes less.
    """
    if p.batched or p.m > MOST_UNPACKED:
        return []
    fits = [t for t in register_tiles(target, p.bits) if t.rows <= p.m and not _overhangs(t, p, target)]
    few = [t for t in fits if t.rows == p.m]
    tiles = few or fits
    registers = max(tiles, key=lambda t: register_efficiency(t, target, p.bits))
    columns = registers.columns
    if few:
        return [GemmSchedule(p.m, round_up(ceil(p.n / threads), columns), columns, 16, registers, False, staged=True)]
    tile_m = round_up(_even(p.m, 128), registers.rows)
    block_n = min(8 * columns, round_up(ceil(p.n / threads), columns))
    return [GemmSchedule(tile_m, block_n, columns, min(p.k, 128), registers, True, staged=True)]


MOST_UNPACKED = 256


def staged_candidates(p: Problem, target: CpuTarget, threads: int) -> list[GemmSchedule]:
    """Schedules by which each task puts its columns of a right operand in order, in its core's cache, and multiplies
    all rows with them: what is packed never goes to memory. None where a panel does not fit there.

    3×3 of 512 channels, 7×7, weights of PyTorch, Zen 4, one thread, ms: 4.1 packed before, 3.7 so; 2×2: 3.4 and 1.4.
    """
    if p.batched:
        return []
    found = {}
    for registers in register_tiles(target, p.bits):
        panel = p.k * registers.columns * p.bits // 8
        if registers.rows > p.m or registers.columns > p.n or panel > STAGED_SHARE * target.l2:
            continue
        tile_m = round_up(_even(p.m, 1024), registers.rows)
        s = GemmSchedule(tile_m, registers.columns, registers.columns, p.k, registers, True, staged=True)
        found[s] = _seconds(p, s, target, threads)
    return sorted(found, key=lambda s: max(found[s]))


STAGED_SHARE = 0.75
"""Of L2, for the columns that a task puts in order."""


def _next_block(p: Problem, registers: RegisterTile, tile_k: int, target: CpuTarget) -> int:
    """Bytes from a panel's position to the same one in what is multiplied next, which is fetched meanwhile; 0 where the
    right operand stays in L2. Without, its first block of rows waits: the four matmuls of a layer of BERT with 128
    tokens took 4.4 ms on Zen 5, with it 3.7."""
    if p.batched or p.n * p.k * p.bits // 8 <= target.l2 // 2:
        return 0
    return block_depth(tile_k) * registers.columns * p.bits // 8


Seconds = tuple[float, float]
"""Of a matmul's threads, and of its traffic with memory."""


def _few_rows(p: Problem, registers: RegisterTile, target: CpuTarget, threads: int) -> dict[GemmSchedule, Seconds]:
    """Each task reads its panels of the right operand from end to end, all of K at once."""
    prefetch_bytes = replace(registers, prefetch_bytes=PREFETCH_BYTES_TO_L2 if target.fetches_to_l2 else PREFETCH_BYTES)
    block_n = round_up(ceil(p.n / (TASKS_PER_THREAD * threads)), registers.columns)
    s = GemmSchedule(registers.rows, block_n, registers.columns, max(p.k, 1), prefetch_bytes, False)
    return {s: _seconds(p, s, target, threads)}


def gemm_seconds(p: Problem, s: GemmSchedule, target: CpuTarget, threads: int) -> float:
    """Without the packing of the right operand."""
    return max(_seconds(p, s, target, threads))


def _seconds(p: Problem, s: GemmSchedule, target: CpuTarget, threads: int) -> Seconds:
    """Without the packing of a constant right operand."""
    row_blocks, column_blocks = ceil(p.m / s.tile_m), ceil(p.n / s.block_n)
    tasks = max(1, p.batches * row_blocks * column_blocks)
    peak = target.peak_flops(p.bits, 1)
    rate = peak * register_efficiency(s.registers, target, p.bits)
    columns = round_up(min(s.block_n, p.n), s.registers.columns)
    rows = _padded_rows(min(s.tile_m, p.m), s.registers.rows)
    multiply = 2.0 * rows * columns * p.k / rate
    item = p.bits // 8
    cycle = 1.0 / target.frequency
    left = (0.35 * cycle * min(s.tile_m, p.m) * p.k) if s.pack_left else 0.0
    panels = columns * p.k * item / (24.0 * target.frequency)
    if s.k_splits(p.k) > 1:
        left += 0.3 * cycle * rows * columns * s.k_splits(p.k)
    waiting = 0.0 if s.registers.prefetch_bytes else UNHIDDEN * panels
    per_task = max(multiply, panels) + waiting + left + rows * columns * 0.4 * cycle
    rounds = ceil(tasks / threads) if tasks > 1 else 1
    launch = 2e-6 if tasks > 1 else 0.2e-6
    busy = min(threads, tasks) / threads
    traffic = (p.m * p.k + p.n * p.k + p.m * p.n) * p.batches * item / (target.bandwidth * busy)
    return rounds * per_task + launch, traffic + launch


def _padded_rows(rows: int, tile: int) -> float:
    """Rows in units of full tiles; a tail tile of fewer rows costs more than its share."""
    full, rest = divmod(rows, tile)
    return full * tile + (0.5 * (rest + tile) if rest else 0)


def _even(extent: int, most: int) -> int:
    """The extent in equal parts, as few as there can be: threads that share them are done at the same time."""
    return ceil(extent / max(ceil(extent / most), 1))


def _even_split(k: int, most: int) -> int:
    return round_up(_even(k, most), 16)
