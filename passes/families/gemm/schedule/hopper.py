"""Schedules of products on Hopper's tensor cores, best predicted first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil
from typing import ClassVar

from fusec.passes.schedule.base import by_seconds
from fusec.passes.schedule.launch import Launch
from fusec.target.gpu import GpuTarget
from fusec.tile.kernel import Language
from fusec.tile.templates import Pipeline


@dataclass(frozen=True)
class HopperGemmSchedule:
    """A block computes tiles of ``m`` by ``n`` in steps of ``k``, ``stages`` steps fetched ahead.

    seconds: what the cost model says of a product.
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
        )


@dataclass(frozen=True)
class _Tile:
    """A block's tile, and the share of the widest tile's rate that it reaches with many tiles (measured on an H200)."""

    m: int
    n: int
    stages: int
    ping_pong: bool
    share: float


_TILES = (
    _Tile(128, 256, 4, False, 1.0),
    _Tile(128, 128, 6, True, 0.942),
    _Tile(128, 128, 6, False, 0.942),
    _Tile(128, 64, 8, True, 0.8),
    _Tile(128, 64, 8, False, 0.8),
)
_PAIRED = (_Tile(128, 128, 4, False, 0.963), _Tile(128, 64, 6, True, 0.838))
"""For two products of one left operand; the columns are those of each."""

_FEWEST = 16
"""Columns of a matmul over windows."""

_ROW_BYTES = 128
_LEAST_COPY = 64
"""Columns that one copy brings where they lie side by side."""
_GROUP = 8
_START = 1.2e-6
"""Seconds from a launch to the first product, and after the last."""
_EPILOGUE, _DEFERRED, _READ = 2.2e-6, 0.5e-6, 3e-6
"""Seconds in which a warpgroup stores 64 by 256 results, or 128 by 128; in which it puts them aside instead; and what
each tensor read there adds."""
_SPLITS = ((2, 1.0), (3, 0.95))
"""Blocks of a cluster that share a tile, and the share of the SMs that such clusters fill."""
_ADD_UP = 2.3e-6
"""Seconds in which they add up their sums (128×4096×4096: 15.8 µs in all)."""
_FIRST = 0.05
"""The part of the shorter of multiplying and memory that the other does not hide."""
_STEPS = 8
"""Steps along K of one of them, at least."""


@dataclass(frozen=True)
class HopperProblem:
    """Products of operands of 16 bits, or of 32 that may be rounded to TF32.

    ``reads``: tensors of the result's size that the epilogue reads. defers: the results are rounded to 16 bits, so that
    epilogues can run under the next tile's products. transposed: neighbours in the right operands' memory are of
    different columns, of which a copy brings 64. windows: the left operand shows windows of an image, which no other
    kernel of ours fetches as fast, also for few columns.
    """

    batches: int
    m: int
    n: int
    k: int
    products: int = 1
    reads: int = 0
    bits: int = 16
    defers: bool = False
    transposed: bool = False
    windows: bool = False

    def tiles(self, tile: _Tile) -> tuple[int, int]:
        return ceil(self.m / tile.m), ceil(self.n / tile.n)


def hopper_candidates(p: HopperProblem, target: GpuTarget) -> list[HopperGemmSchedule]:
    """Schedules, best predicted first. None on other GPUs, or for too little work."""
    if target.backend != "cuda" or target.arch != 90 or p.products > 2 or not p.k:
        return []
    if min(p.m, p.n) <= 64 and not (p.windows and min(p.m, p.n) >= _FEWEST):
        return []
    found: dict[HopperGemmSchedule, None] = {}
    for tile in _TILES if p.products == 1 else _PAIRED:
        for cluster, split in _clusters(p, tile, target):
            pipeline = Pipeline(*cluster, _GROUP, tile.ping_pong, split=split)
            seconds = target.rates.launch + _START + _predict(p, tile, split, target)
            depth = _ROW_BYTES * 8 // p.bits
            found[HopperGemmSchedule(tile.m, tile.n, depth, tile.stages, pipeline, seconds)] = None
    return sorted(found, key=by_seconds)


def _clusters(p: HopperProblem, tile: _Tile, target: GpuTarget) -> Iterator[tuple[tuple[int, int], int]]:
    """Blocks that share operands, where there is more than one wave, or that share a tile, where there are few."""
    rows, columns = p.tiles(tile)
    tiles, steps = p.batches * rows * columns, p.k * p.bits // (8 * _ROW_BYTES)
    enough = target.sms // 2
    if enough <= tiles <= target.sms or (p.windows and tiles < enough):
        yield (1, 1), 1
    elif tiles > target.sms:
        halved = rows % 2 == 0 and not (p.transposed and tile.n < 2 * _LEAST_COPY)
        yield (2, 1) if halved else (1, 2) if columns % 2 == 0 else (1, 1), 1
    for split, filled in _SPLITS:
        fits = enough <= tiles * split <= target.sms * filled
        if not tile.ping_pong and fits and steps >= split * _STEPS:
            yield (1, 1), split


def _predict(p: HopperProblem, tile: _Tile, split: int, target: GpuTarget) -> float:
    """Seconds: whole waves of tiles; epilogues but the last are covered where consumers ping-pong, or all but covered
    where results are put aside."""
    rows, columns = p.tiles(tile)
    area = tile.m * tile.n / (128 * (128 if tile.ping_pong else 256))
    k = p.k * p.bits // 16 / split
    multiply = 2.0 * tile.m * tile.n * p.products * k * target.sms / (target.rates.tensor * tile.share)
    epilogue = (_EPILOGUE + p.reads * _READ) * area
    waves = ceil(p.batches * rows * columns / target.sms)
    moved = p.batches * (p.m * p.k + p.k * p.n * p.products) * p.bits // 8
    traffic = moved / target.rates.read
    if split > 1:
        return _together(multiply, traffic) + epilogue / split + _ADD_UP
    if tile.ping_pong:
        return _together(waves * multiply, traffic) + epilogue
    if p.defers:
        return _together(waves * (multiply + _DEFERRED * area), traffic) + epilogue
    return _together(waves * (multiply + epilogue), traffic)


def _together(multiply: float, traffic: float) -> float:
    """Products while memory brings operands, but for the first ones."""
    return max(multiply, traffic) + _FIRST * min(multiply, traffic)
