# SPDX-License-Identifier: Apache-2.0
"""Schedules of matmuls on Hopper's tensor cores, best predicted first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import ceil
from typing import ClassVar

from fusec.ir.indexing import round_up
from fusec.passes.schedule.base import by_seconds
from fusec.passes.schedule.launch import Launch
from fusec.target.gpu import GpuTarget
from fusec.target.gpu_rates import EIGHT_BITS
from fusec.tile.kernel import Language
from fusec.tile.templates import Pipeline


@dataclass(frozen=True)
class HopperGemmSchedule:
    """A block computes tiles of ``m`` by ``n`` in steps of ``k``, ``stages`` steps fetched ahead.

    seconds: what the cost model says of a matmul.
    """

    language: ClassVar[Language] = "cuda"
    m: int
    n: int
    k: int
    stages: int
    pipeline: Pipeline
    seconds: float = field(default=0.0, compare=False)

    @property
    def launch(self) -> Launch:
        """One warpgroup that fetches, and two that multiply."""
        return Launch(12, self.stages)

    def describe(self) -> tuple[tuple[str, int | str], ...]:
        p = self.pipeline
        return (
            ("block", f"{self.m}x{self.n}x{self.k}"),
            ("cluster", f"{p.cluster_m}x{p.cluster_n}"),
            ("group", p.group),
            ("consumers", "ping-pong" if p.ping_pong else "cooperative"),
            ("stages", self.stages),
            *((("split", p.split),) if p.split > 1 else ()),
            *((("promotes", p.promotes),) if p.promotes else ()),
        )


@dataclass(frozen=True)
class _Tile:
    """A block's tile."""

    m: int
    n: int
    stages: int
    ping_pong: bool


_ROWS, _WIDEST = 128, 256
_WIDTHS = (256, 128, 64)
"""Columns of tiles that any result can be cut into."""
_UNIT, _INTEGER_UNIT = 8, 16
"""Columns of the narrowest instruction; of wider ones for integers, multiples of which there are."""
_WIDEST_PROMOTED, _HELD = 192, 192
"""Columns for which a thread has registers where sums are promoted, all at once; registers for sums that grow, those
that they are added to, and those of the last tile."""
_RATES: tuple[tuple[int, float], ...] = ((256, 1.0), (128, 0.942), (64, 0.6), (0, 0.3))
"""The share of the widest tile's rate that matmuls of so many columns reach; between them, in proportion. Narrow ones
wait for shared memory, which is read for both operands and written: 8192×640 results of K 5760 in tiles of 128×64 took
138 µs on an H200."""
_PAIRED_RATES: tuple[tuple[int, float], ...] = ((256, 0.963), (128, 0.838), (0, 0.3))
"""For two matmuls of one left operand, by the columns of both."""
_OF_EIGHT_BITS: tuple[tuple[int, float], ...] = ((256, 1.0), (192, 0.95), (128, 0.8), (64, 0.5), (0, 0.3))
"""For matmuls of 8 bits, of one or two (8192×4096×14336 on an H200)."""
_SHARE_PROMOTED = 0.94
"""What is left of it where sums are promoted."""
_WIDE_IN_TURNS = 0.93
"""What is left by ping-pong where no result has 16 bits (8192×4096×14336 of f16 with f32 results: 1.49 ms, together
1.35)."""
_IN_ONE_WAVE = 0.8
"""The same of 64 columns, where a kernel is short and the clock stays up (128×4096×4096, 512×3072×768)."""
_CONSUMERS, _WARPGROUP, _CHUNK, _RESERVED = 2, 128, 8192, 2048
"""Warpgroups that multiply, and threads of one; bytes of results of 16 bits that one of them sends at a time; bytes of
shared memory for alignment and barriers."""
_MOST_STAGES = 8

_FEWEST = 16
"""Columns of a matmul over windows."""

_ROW_BYTES = 128
_LEAST_COPY = 64
"""Columns that one copy brings where they lie side by side."""
_GROUP = 8
_START = 1.2e-6
"""Seconds from a launch to the first MMA, and after the last."""
_EPILOGUE, _DEFERRED, _READ, _FETCHED = 2.2e-6, 0.5e-6, 2e-6, 0.5e-6
"""Seconds in which a warpgroup stores 64 by 256 results, or 128 by 128; in which it puts them aside instead; and what
each tensor read there adds, or one that TMA fetches to where results are staged."""
_PORTIONS = 16
"""Steps along K under which a deferred epilogue is hidden; of one that waits for a residual the rest shows where there
are fewer (H100, 512→2048 columns of 3136 rows with a residual: 33.3 µs, by ping-pong 25.7)."""
_L2 = 1.2
"""Of L2's rate as Triton's blocks have it: 64 bytes a cycle for each SM."""
_SPLITS = ((2, 1.0), (3, 0.95))
"""Blocks of a cluster that share a tile, and the share of the SMs that such clusters fill."""
_ADD_UP = 2.3e-6
"""Seconds in which they add up their sums and store them (128×4096×4096: 16.6 µs in all)."""
_FIRST = 0.05
"""The part of the shorter of multiplying and memory that the other does not hide."""
_STEPS = 8
"""Steps along K of one of them, at least."""


@dataclass(frozen=True)
class HopperProblem:
    """Matmuls of operands of 16 bits, of 32 that may be rounded to TF32, or of 8, floats or ``integers``.

    ``reads``: tensors of the result's size that the epilogue reads, ``fetched`` of them by TMA. defers: the results are
    rounded to 16 bits, so that epilogues can run under the next tile's matmuls. transposed: neighbours in the right
    operands' memory are of different columns, of which a copy brings 64. windows: the left operand shows windows of an
    image, which no other kernel of ours fetches as fast, also for few columns. read, written: bytes of memory, all of
    the kernel's. results: of 16 bits, which leave through shared memory. promotes: as in ``Pipeline``. scaled: by
    scales of blocks.
    """

    batches: int
    m: int
    n: int
    k: int
    dots: int = 1
    reads: int = 0
    bits: int = 16
    defers: bool = False
    transposed: bool = False
    windows: bool = False
    read: float = 0.0
    written: float = 0.0
    results: int = 1
    fetched: int = 0
    integers: bool = False
    promotes: int = 0
    scaled: bool = False

    def tiles(self, tile: _Tile) -> tuple[int, int]:
        return ceil(self.m / tile.m), ceil(self.n / tile.n)

    def defers_in(self, tile: _Tile) -> bool:
        """Whether the epilogue runs under the next tile's matmuls: all of it, where a tile's sums can be kept while the
        next one's grow, or what is behind a rounding to 16 bits."""
        if tile.ping_pong or self.scaled:
            return False
        sums = tile.n * self.dots * _ROWS // (_CONSUMERS * _WARPGROUP)
        grow = sums * (2 if self.promotes else 1)
        if (self.bits == 8 or self.promotes) and grow + sums <= _HELD:
            return True
        return self.defers and (not self.promotes or grow + sums // (2 * self.dots) <= _HELD)


def hopper_candidates(p: HopperProblem, target: GpuTarget) -> list[HopperGemmSchedule]:
    """Schedules, best predicted first. None on other GPUs, or for too little work."""
    if target.backend != "cuda" or target.arch != 90 or p.dots > 2 or not p.k:
        return []
    if min(p.m, p.n) <= 64 and not (p.windows and min(p.m, p.n) >= _FEWEST):
        return []
    found: dict[HopperGemmSchedule, None] = {}
    for tile in _tiles(p, target):
        for cluster, split in _clusters(p, tile, target):
            shared = Pipeline(*cluster, _GROUP, tile.ping_pong, split=split)
            pipeline = replace(shared, promotes=p.promotes)
            seconds = target.rates.launch + _START + _predict(p, tile, cluster, split, target)
            depth = _ROW_BYTES * 8 // p.bits
            found[HopperGemmSchedule(tile.m, tile.n, depth, tile.stages, pipeline, seconds)] = None
    return sorted(found, key=by_seconds)


def _tiles(p: HopperProblem, target: GpuTarget) -> Iterator[_Tile]:
    """The widest first; consumers with a tile each have registers for 128 columns."""
    for n in _widths(p):
        stage = (_ROWS + n * p.dots) * _ROW_BYTES
        stages = min(_MOST_STAGES, (target.shared_memory - _beside(p)) // stage)
        if n * p.dots <= _ROWS and not p.promotes:
            yield _Tile(_ROWS, n, stages, True)
        yield _Tile(_ROWS, n, stages, False)


def _beside(p: HopperProblem) -> int:
    """Bytes of shared memory that are not for operands; a single result has two places, to be sent in turn."""
    return _CONSUMERS * max(p.results, 2) * _CHUNK + _RESERVED


def _widths(p: HopperProblem) -> list[int]:
    """Columns of a tile: of any results, and those that cut this one's columns in equal parts."""
    widest = (_WIDEST_PROMOTED if p.promotes else _WIDEST) // p.dots
    found = {n for n in _WIDTHS if n <= widest}
    if p.dots == 1 and not p.transposed:
        parts = range(ceil(p.n / widest), max(1, p.n // _WIDTHS[-1]) + 1)
        found |= {p.n // count for count in parts if p.n % (count * _UNIT) == 0}
        if p.n <= widest:
            found.add(round_up(p.n, _UNIT))
    if p.promotes:
        found.add(widest)
    if p.scaled:
        found = {n for n in found if n * p.dots % _WIDTHS[-1] == 0}
    if p.integers:
        found = {n for n in found if n * p.dots % _INTEGER_UNIT == 0}
    return sorted(found, reverse=True)


def _clusters(p: HopperProblem, tile: _Tile, target: GpuTarget) -> Iterator[tuple[tuple[int, int], int]]:
    """Blocks that share operands, where there is more than one wave, or that share a tile, where there are few."""
    rows, columns = p.tiles(tile)
    tiles, steps = p.batches * rows * columns, p.k * p.bits // (8 * _ROW_BYTES)
    enough = target.sms // 2
    if enough <= tiles <= target.sms or ((p.windows or p.scaled) and tiles < enough):
        yield (1, 1), 1
    elif tiles > target.sms:
        least = 2 * (_LEAST_COPY if p.transposed else _UNIT)
        halved = rows % 2 == 0 and tile.n % least == 0
        yield (2, 1) if halved else (1, 2) if columns % 2 == 0 else (1, 1), 1
    for split, filled in _SPLITS:
        fits = enough <= tiles * split <= target.sms * filled and tile.n % (2 * _UNIT) == 0
        whole = p.integers or p.scaled
        if not tile.ping_pong and fits and steps >= split * _STEPS and not whole:
            yield (1, 1), split


def _predict(p: HopperProblem, tile: _Tile, cluster: tuple[int, int], split: int, target: GpuTarget) -> float:
    """Seconds: whole waves of tiles. Epilogues but the last are covered where consumers ping-pong, as far as matmuls
    last, or all but covered where results are put aside."""
    rows, columns = p.tiles(tile)
    tiles = p.batches * rows * columns
    waves = ceil(tiles * split / target.sms)
    area = tile.m * tile.n / (128 * (128 if tile.ping_pong else 256))
    depth = _ROW_BYTES * 8 // p.bits
    k = round_up(p.k, depth) * p.bits // 16 / split
    rate = target.rates.tensor * _rate(p, tile, waves) * (EIGHT_BITS if p.bits == 8 else 1.0)
    multiply = 2.0 * tile.m * tile.n * p.dots * k * target.sms / rate
    fetched = (tile.m / cluster[1] + tile.n * p.dots / cluster[0]) * p.k * p.bits / 8 / split
    multiply = max(multiply, fetched * min(tiles * split, target.sms) / (target.rates.l2 * _L2))
    beside = 0 if split > 1 else p.fetched
    epilogue = (_EPILOGUE + beside * _FETCHED + (p.reads - beside) * _READ) * area
    operands = p.batches * (p.m * p.k + p.k * p.n * p.dots) * p.bits // 8
    reading = (p.read or operands) / target.rates.read
    if split > 1:
        return _together(multiply, reading) + epilogue / split + _ADD_UP
    traffic = reading + p.written / target.rates.copy
    if tile.ping_pong:
        return _together(waves * max(multiply, (multiply + epilogue) / 2), traffic) + epilogue
    if p.defers_in(tile):
        shown = max(0.0, 1 - ceil(p.k / depth) / _PORTIONS) if beside else 0.0
        each = max(multiply, epilogue) + shown * epilogue + _DEFERRED * area
        return _together(waves * each, traffic) + epilogue
    return _together(waves * (multiply + epilogue), traffic)


def _rate(p: HopperProblem, tile: _Tile, waves: int) -> float:
    """The share of the GPU's rate of matmuls that such tiles reach."""
    columns = tile.n * p.dots
    rates = _OF_EIGHT_BITS if p.bits == 8 else _RATES if p.dots == 1 else _PAIRED_RATES
    if waves == 1:
        rates = tuple((n, _IN_ONE_WAVE if n == 64 else rate) for n, rate in rates)
    number = next(k for k, (n, _) in enumerate(rates) if n < columns)
    (wide, most), (fewer_columns, least) = rates[number - 1], rates[number]
    share = _SHARE_PROMOTED if p.promotes else 1.0
    share *= _WIDE_IN_TURNS if tile.ping_pong and not p.results else 1.0
    most, least = most * share, least * share
    return least + (most - least) * (columns - fewer_columns) / (wide - fewer_columns)


def _together(multiply: float, traffic: float) -> float:
    """Matmuls while memory brings operands, but for the first ones."""
    return max(multiply, traffic) + _FIRST * min(multiply, traffic)
