"""Schedules of products on Hopper's tensor cores, best predicted first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil

from fusec.passes.schedule.gpu import AttentionSize, Launch
from fusec.target.gpu import GpuTarget
from fusec.tile.nodes import Pipeline


@dataclass(frozen=True)
class HopperGemmSchedule:
    """A block computes tiles of ``m`` by ``n`` in steps of ``k``, ``stages`` steps fetched ahead.

    seconds: what the cost model says of a product.
    """

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
            ("consumers", "in turns" if p.turns else "together"),
            ("stages", self.stages),
            *((("split", p.split),) if p.split > 1 else ()),
        )


@dataclass(frozen=True)
class HopperAttentionSchedule:
    """A block does ``queries`` rows, 64 a warpgroup, against ``keys`` at a time, ``stages`` of which are fetched ahead.

    turns: warpgroups take turns at the tensor cores. heads: done side by side where some rows have more keys.
    walks: a block does one block of queries after another, the next one's fetched while one ends.
    """

    queries: int
    keys: int
    stages: int
    turns: bool
    heads: int = 8
    walks: bool = False

    @property
    def launch(self) -> Launch:
        """The warpgroups that multiply, and one that fetches."""
        return Launch(4 * (self.queries // 64 + 1), self.stages)

    @property
    def pipeline(self) -> Pipeline:
        return Pipeline(1, 1, self.heads, self.turns, self.walks)

    def describe(self) -> tuple[tuple[str, int | str], ...]:
        return (
            ("queries", self.queries),
            ("keys", self.keys),
            ("consumers", "in turns" if self.turns else "together"),
            ("stages", self.stages),
            *((("blocks", "walk"),) if self.walks else ()),
        )


@dataclass(frozen=True)
class _Tile:
    """A block's tile, and the share of the peak rate that it reaches with many tiles (measured on an H200)."""

    m: int
    n: int
    stages: int
    turns: bool
    share: float


_TILES = (
    _Tile(128, 256, 4, False, 0.955),
    _Tile(128, 128, 6, True, 0.90),
    _Tile(128, 128, 6, False, 0.90),
    _Tile(128, 64, 8, True, 0.75),
    _Tile(128, 64, 8, False, 0.75),
)
_PAIRED = (_Tile(128, 128, 4, False, 0.92), _Tile(128, 64, 6, True, 0.80))
"""For two products of one left operand; the columns are those of each."""

_ROW_BYTES = 128
_LEAST_COPY = 64
"""Columns that one copy brings where they lie side by side."""
_GROUP = 8
_START = 6e-6
"""Seconds of a launch until the first product, and after the last."""
_EPILOGUE, _PARKED, _READ = 2.2e-6, 0.5e-6, 3e-6
"""Seconds in which a warpgroup stores 64 by 256 results, or 128 by 128; in which it puts them aside instead; and what
each tensor read there adds."""
_SPLITS = ((2, 1.0), (3, 0.95))
"""Blocks of a cluster that share a tile, and the share of the units that such clusters fill."""
_ADD_UP = 4e-6
"""Seconds in which they add up their sums."""
_STEPS = 8
"""Steps along K of one of them, at least."""


@dataclass(frozen=True)
class HopperProblem:
    """Products of operands of 16 bits, or of 32 that may be rounded to TF32.

    ``reads``: tensors of the result's size that the epilogue reads. parks: the results are rounded to 16 bits, so that
    epilogues can run under the next tile's products. turned: neighbours in the right operands' memory are of different
    columns, of which a copy brings 64.
    """

    batches: int
    m: int
    n: int
    k: int
    products: int = 1
    reads: int = 0
    bits: int = 16
    parks: bool = False
    turned: bool = False

    def tiles(self, tile: _Tile) -> tuple[int, int]:
        return ceil(self.m / tile.m), ceil(self.n / tile.n)


def hopper_candidates(p: HopperProblem, target: GpuTarget) -> list[HopperGemmSchedule]:
    """Schedules, best predicted first. None on other cards, or for too little work."""
    if target.backend != "cuda" or target.arch != 90 or p.products > 2 or min(p.m, p.n) <= 64 or not p.k:
        return []
    found: dict[HopperGemmSchedule, float] = {}
    for tile in _TILES if p.products == 1 else _PAIRED:
        for cluster, split in _clusters(p, tile, target):
            pipeline = Pipeline(*cluster, _GROUP, tile.turns, split=split)
            seconds = _predict(p, tile, split, target) + _START
            depth = _ROW_BYTES * 8 // p.bits
            found[HopperGemmSchedule(tile.m, tile.n, depth, tile.stages, pipeline, seconds)] = seconds
    return sorted(found, key=found.__getitem__)


def _clusters(p: HopperProblem, tile: _Tile, target: GpuTarget) -> Iterator[tuple[tuple[int, int], int]]:
    """Blocks that share operands, where there is more than one wave, or that share a tile, where there are few."""
    rows, columns = p.tiles(tile)
    tiles, steps = p.batches * rows * columns, p.k * p.bits // (8 * _ROW_BYTES)
    enough = target.units // 2
    if enough <= tiles <= target.units:
        yield (1, 1), 1
    elif tiles > target.units:
        halved = rows % 2 == 0 and not (p.turned and tile.n < 2 * _LEAST_COPY)
        yield (2, 1) if halved else (1, 2) if columns % 2 == 0 else (1, 1), 1
    for split, filled in _SPLITS:
        fits = enough <= tiles * split <= target.units * filled
        if not tile.turns and fits and steps >= split * _STEPS:
            yield (1, 1), split


def _predict(p: HopperProblem, tile: _Tile, split: int, target: GpuTarget) -> float:
    """Seconds: whole waves of tiles; epilogues but the last are covered where consumers take turns, or all but covered
    where results are put aside."""
    rows, columns = p.tiles(tile)
    area = tile.m * tile.n / (128 * (128 if tile.turns else 256))
    k = p.k * p.bits // 16 / split
    multiply = 2.0 * tile.m * tile.n * p.products * k * target.units / (target.half_flops * tile.share)
    epilogue = (_EPILOGUE + p.reads * _READ) * area
    waves = ceil(p.batches * rows * columns / target.units)
    if split > 1:
        moved = p.batches * (p.m * p.k + p.k * p.n * p.products) * p.bits // 8
        return max(multiply, moved / target.bandwidth) + epilogue / split + _ADD_UP
    if tile.turns:
        return waves * multiply + epilogue
    if p.parks:
        return waves * (multiply + _PARKED * area) + epilogue
    return waves * (multiply + epilogue)


_ATTENTION = (
    (64, ((192, 128, 2), (128, 128, 2), (128, 192, 2))),
    (128, ((128, 128, 2), (128, 160, 2), (128, 96, 3))),
    (192, ((128, 96, 2), (128, 64, 2))),
    (256, ((128, 80, 2), (128, 64, 2))),
)
"""For heads of so many columns at most: queries, keys, stages, in the order of their rate on an H200 (heads of 128,
4096 keys: 706, 697 and 654 TFLOP/s)."""
_MOST_WALKED = 128
"""Columns of heads up to which there is room for the next queries beside the results."""
_LONG = 8192
"""Keys from which blocks have so much to do that walking no longer pays."""


def hopper_attention_candidates(size: AttentionSize, target: GpuTarget) -> list[HopperAttentionSchedule]:
    """Schedules for attention in 16 bits, the usual best first; none on other cards, or for too little work."""
    columns = max(size.depth, size.values)
    enough = size.rows >= 64 and size.heads * ceil(size.rows / 128) >= target.units // 2
    if target.backend != "cuda" or target.arch != 90 or size.bits != 16 or size.whole or not enough:
        return []
    blocks = next((found for most, found in _ATTENTION if columns <= most), ())
    ways = _ways(columns, size.masked, size.keys > _LONG)
    return [
        HopperAttentionSchedule(queries, keys, stages, turns, walks=walks)
        for turns, walks in ways
        for queries, keys, stages in blocks
    ]


def _ways(columns: int, masked: bool, long: bool) -> list[tuple[bool, bool]]:
    """Whether consumers take turns and blocks walk, the best first (measured on an H200).

    Heads of 64, TFLOP/s: 4096 keys full 468 against 449 in turns, causal 394 in turns against 382; 16384 keys full
    527 standing in turns, 513 otherwise, causal 493 standing and 467 walking.
    """
    if columns > _MOST_WALKED:
        return [(True, False)]
    if columns > 64:
        return [(True, not (masked and long)), (True, masked and long)]
    if long:
        return [(True, False), (False, False)]
    return [(masked, True), (not masked, True), (masked, False)]
