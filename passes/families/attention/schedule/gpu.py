"""Schedules of attention on GPUs, the usual best first."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from fusec.passes.schedule.launch import Launch, pow2
from fusec.target.gpu import GpuTarget
from fusec.tile.nodes import Language


@dataclass(frozen=True)
class GpuAttentionSchedule:
    """A block does ``queries`` rows against ``keys`` at a time, in one of ``split`` parts of the keys."""

    queries: int
    keys: int
    launch: Launch
    split: int = 1

    @property
    def language(self) -> Language:
        return "triton"

    def describe(self) -> tuple[tuple[str, int | str], ...]:
        return (
            ("queries", self.queries),
            ("keys", self.keys),
            ("split", self.split),
            ("warps", self.launch.warps),
            ("stages", self.launch.stages),
        )


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
