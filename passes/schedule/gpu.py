"""Schedules of GPU kernels: block sizes, warps, pipeline stages; candidates in the order of a simple cost model."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from fusec.target.gpu import GpuTarget


@dataclass(frozen=True)
class Launch:
    """What one block is: ``warps`` of it, and how many loads ahead its loops run (``stages``).

    registers: the most that a thread may have (0: the compiler's choice).
    """

    warps: int
    stages: int
    registers: int = 0


@dataclass(frozen=True)
class GpuGemmSchedule:
    """A block computes ``m`` by ``n`` of the result in steps of ``k``.

    group: row blocks whose column blocks run side by side, so that L2 serves both operands.
    split: parts of K that different blocks add up (1: none). walkers: blocks in flight, each of which computes tile
    after tile (0: a block for each tile). slices: stores that a tile's columns go out in.
    turned: the tile is computed transposed, because the matrix units want at least 64 rows.
    """

    m: int
    n: int
    k: int
    group: int
    split: int
    walkers: int
    launch: Launch
    slices: int = 1
    turned: bool = False

    def describe(self) -> tuple[tuple[str, int | str], ...]:
        return (
            ("block", f"{self.m}x{self.n}x{self.k}" + (" turned" if self.turned else "")),
            ("group", self.group),
            ("split", self.split),
            ("walkers", self.walkers),
            ("slices", self.slices),
            ("warps", self.launch.warps),
            ("stages", self.launch.stages),
        )


@dataclass(frozen=True)
class GpuGemvSchedule:
    """A block reads ``lines`` of the matrix, ``unroll`` times ``depth`` of K at once; ``split`` as in a gemm."""

    lines: int
    depth: int
    unroll: int
    split: int
    launch: Launch

    def describe(self) -> tuple[tuple[str, int | str], ...]:
        return (
            ("lines", self.lines),
            ("depth", f"{self.unroll}x{self.depth}"),
            ("split", self.split),
            ("warps", self.launch.warps),
        )


@dataclass(frozen=True)
class GpuAttentionSchedule:
    """A block does ``queries`` rows against ``keys`` at a time, in one of ``split`` parts of the keys."""

    queries: int
    keys: int
    launch: Launch
    split: int = 1

    def describe(self) -> tuple[tuple[str, int | str], ...]:
        return (
            ("queries", self.queries),
            ("keys", self.keys),
            ("split", self.split),
            ("warps", self.launch.warps),
            ("stages", self.launch.stages),
        )


@dataclass(frozen=True)
class GpuRowSchedule:
    """A block holds ``rows`` rows: whole ones padded to ``columns``, or ``columns`` elements of them at a time.

    cluster: blocks that hold the rows together, each a part of them (Hopper and later).
    """

    rows: int
    columns: int
    launch: Launch
    whole: bool = True
    cluster: int = 1

    def describe(self) -> tuple[tuple[str, int | str], ...]:
        columns = "columns" if self.whole else "chunk"
        sizes = (("rows", self.rows), (columns, self.columns), ("warps", self.launch.warps))
        return (*sizes, ("cluster", self.cluster)) if self.cluster > 1 else sizes


@dataclass(frozen=True)
class GpuMapSchedule:
    """A block computes ``elements`` neighbouring elements, at ``turned`` places along the axis that operands lie along.

    turned: 0 where they lie along the same axis as the result.
    """

    elements: int
    launch: Launch
    turned: int = 0

    def describe(self) -> tuple[tuple[str, int | str], ...]:
        block: int | str = f"{self.elements}x{self.turned}" if self.turned else self.elements
        return (("elements", block), ("warps", self.launch.warps))


GpuSchedule = GpuGemmSchedule | GpuGemvSchedule | GpuAttentionSchedule | GpuRowSchedule | GpuMapSchedule

_Blocks = tuple[tuple[int, int, int, int], ...]

_ATTENTION_BLOCKS: _Blocks = (
    (64, 64, 4, 3),
    (128, 64, 4, 2),
    (128, 128, 8, 3),
    (128, 64, 8, 3),
    (64, 128, 4, 2),
    (64, 32, 4, 2),
    (64, 64, 8, 2),
    (64, 32, 8, 2),
    (32, 32, 4, 2),
    (32, 32, 8, 2),
    (16, 16, 4, 2),
    (16, 64, 4, 2),
    (16, 32, 4, 2),
)
"""Queries, keys, warps, stages. On an H200 with heads of 128, TFLOP/s at N 4096: the first 493 causal and 534 full,
the second 464 and 538; two blocks of 4 warps a unit beat one of 8 (447 to 505), whose softmaxes come at one time. With
heads of 64 the fifth is best (482 full, 429 causal, where the first has 438 and 402), of 32 and of 256 the first."""
_UNMASKED_FIRST, _NARROW_FIRST = _ATTENTION_BLOCKS[1], _ATTENTION_BLOCKS[4]

_MAX_RESULTS = 128 * 32
"""Elements of the result that a warp keeps: more than 128 registers a thread for them, and the rest is spilled."""

_MAX_PLAIN = 64 * 32 * 64
"""Multiply-adds of a step in plain f32 arithmetic: all are written out, and take as long to compile."""

_FEW_ROWS = 64
_FEW_QUERIES_BLOCKS = ((16, 128, 4, 3), (16, 64, 4, 4), (32, 64, 4, 3), (64, 64, 4, 3))
"""Where keys and values are read by few queries, whose products hide behind the loads. On an H200, 32 heads that share
8 of 128: 3.5 TB/s of keys and values for one query and 65536 keys, 4.36 for 16 times 16384; all within 4 %."""

_KEYS_TO_SPLIT, _KEYS_TO_SPLIT_MANY_QUERIES, _LEAST_PART, _MOST_PARTS = 768, 4096, 128, 64
"""Keys that are worth a second kernel, for one block of queries and for more; keys of the smallest part, and how many
parts one block joins."""
_BLOCKS_A_UNIT = (1, 2, 4)
"""How many parts there are, best guess first."""


@dataclass(frozen=True)
class AttentionSize:
    """``heads`` independent attentions (all outer axes) of ``rows`` queries to ``keys`` keys.

    ``whole``: the queries must lie in one block. ``masked``: a mask of indices may empty blocks of keys; ``bounded``:
    data of queries and keys may, and Triton's kernels find which. A query has ``depth`` elements, a value ``values``,
    of ``bits`` bits.
    """

    heads: int
    rows: int
    whole: bool
    masked: bool
    keys: int
    depth: int
    values: int
    bits: int
    bounded: bool = False


def attention_candidates(size: AttentionSize, target: GpuTarget) -> list[GpuAttentionSchedule]:
    """Schedules that fit shared memory and registers, the usual best first; none where heads are too wide."""
    item = size.bits // 8
    deep, wide = (max(16, pow2(n)) for n in (size.depth, size.values))
    found: dict[GpuAttentionSchedule, None] = {}
    shallow: dict[GpuAttentionSchedule, None] = {}
    blocks = _ATTENTION_BLOCKS
    if 32 < max(size.depth, size.values) <= 64:
        blocks = (_NARROW_FIRST, *blocks)
    elif not size.masked and max(size.depth, size.values) > 64:
        blocks = (_UNMASKED_FIRST, *blocks)
    if size.rows <= _FEW_ROWS:
        blocks = (*_FEW_QUERIES_BLOCKS, *blocks)
    for q, k, warps, stages in dict.fromkeys(blocks):
        if q > max(16, pow2(size.rows)) or k > max(16, pow2(size.keys)) or (size.whole and q < size.rows):
            continue
        if (item == 4 and q * k * deep > _MAX_PLAIN) or q * wide > _MAX_RESULTS * warps:
            continue
        fitting = (target.shared_memory // item - q * deep) // (k * (deep + wide))
        kept = found if fitting >= stages else shallow
        for split in _splits(size, q, k, target) if fitting > 0 else ():
            kept[GpuAttentionSchedule(q, k, Launch(warps, min(stages, fitting)), split)] = None
    found |= shallow
    return list(found)


def _splits(size: AttentionSize, queries: int, keys: int, target: GpuTarget) -> list[int]:
    """Parts of the keys: one where there are blocks enough, else as many as fill every unit once, twice, four times."""
    blocks, steps = size.heads * ceil(size.rows / queries), ceil(size.keys / keys)
    least = _KEYS_TO_SPLIT if size.rows <= queries else _KEYS_TO_SPLIT_MANY_QUERIES
    if 2 * blocks > target.units or size.keys < least or blocks == 0:
        return [1]
    most = min(_MOST_PARTS, steps, size.keys // _LEAST_PART)
    parts = [min(most, max(1, w * target.units // blocks)) for w in _BLOCKS_A_UNIT]
    return list(dict.fromkeys(ceil(steps / ceil(steps / p)) for p in parts))


def turned_schedule(along: int, across: int, bits: int) -> GpuMapSchedule:
    """A tile for results that lie along an axis of ``along`` places, and operands along one of ``across``.

    On an H200, 8192 by 8192 turned: 4.05 TB/s in f32, 3.82 in bf16 (128 by 128: 3.87), by PyTorch 1.16 and 0.61.
    """
    rows = min(pow2(along), 64)
    columns = min(pow2(across), max(64 if bits > 16 else 128, 2048 // rows))
    rows = min(pow2(along), max(rows, 2048 // columns))
    return GpuMapSchedule(rows, Launch(8 if rows * columns >= 4096 else 4, 1), columns)


def map_schedule(elements: int, bits: int, target: GpuTarget) -> GpuMapSchedule:
    """Enough blocks for every unit, and where there are many 4 KiB of the widest operand (of ``bits``) in each.

    A thread moves 16 bytes of it at once. On an H200, 2²⁷ bf16 times two: 4.29 TB/s, with half as large blocks 3.34
    (each waits for the kernel ahead), with 4096 elements 4.13, with 8192 4.06; f32 4.27, twice as large blocks 4.09.
    """
    if elements < 1024 * target.units * 4:
        return GpuMapSchedule(256, Launch(4, 1))
    return GpuMapSchedule(2048, Launch(8, 1)) if bits <= 16 else GpuMapSchedule(1024, Launch(4, 1))


def pow2(n: int) -> int:
    """The least power of two that is not below ``n``."""
    return 1 << max(n - 1, 0).bit_length()
