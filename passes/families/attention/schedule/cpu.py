# SPDX-License-Identifier: Apache-2.0
"""Schedules of attention on a CPU: queries on vector lanes, keys in blocks."""

from __future__ import annotations

from dataclasses import dataclass

from fusec.ir.indexing import round_up
from fusec.ir.types import bf16
from fusec.passes.schedule.base import CpuSchedule
from fusec.target.cpu import CpuTarget
from fusec.tile.nodes import RegisterTile


@dataclass(frozen=True)
class AttentionSchedule(CpuSchedule):
    """``queries``: rows of one task, on lanes. ``keys``: rows of one step of the online softmax.
    ``scores`` and ``values``: accumulators of the first and the second dot. ``split``: parts of the keys, a task
    each."""

    queries: int
    keys: int
    scores: RegisterTile
    values: RegisterTile
    split: int = 1

    def describe(self) -> tuple[tuple[str, int | str], ...]:
        """The sizes by name, for dumps."""
        return (
            ("queries", self.queries),
            ("keys", self.keys),
            ("scores", f"{self.scores.rows}x{self.scores.columns}"),
            ("values", f"{self.values.rows}x{self.values.columns}"),
            *((("split", self.split),) if self.split > 1 else ()),
        )


@dataclass(frozen=True)
class LowPrecisionAttentionSchedule(CpuSchedule):
    """Attention whose dots are of bf16.

    task: queries of one task, ``queries`` at a time, on lanes. chunk: keys whose values a task turns and keeps in L2
    while all its queries pass; keys: of one step of the online softmax. scores, values: accumulators of the dots.
    shared: each chunk has tasks of its own.
    """

    task: int
    queries: int
    chunk: int
    keys: int
    scores: RegisterTile
    values: RegisterTile
    shared: bool = False

    def describe(self) -> tuple[tuple[str, int | str], ...]:
        """The sizes by name, for dumps."""
        r, v = self.scores, self.values
        return (
            ("task", self.task),
            ("queries", self.queries),
            ("chunk", f"{self.chunk}{' shared' if self.shared else ''}"),
            ("keys", self.keys),
            ("scores", f"{r.rows}x{r.columns}{' in tiles' if r.tiles else ''}"),
            ("values", f"{v.rows}x{v.columns}{' in tiles' if v.tiles else ''}"),
        )


def low_precision_candidates(
    heads: int, queries: int, keys: int, values: int, target: CpuTarget, threads: int, seen: int | None = None
) -> list[LowPrecisionAttentionSchedule]:
    """Schedules worth considering, the usual best first. ``seen``: keys that the mask leaves some query's block.

    A task's values are transposed once, so it takes many queries, but there are some tasks for each thread.
    """
    tiles = target.multiplies_in_tiles(bf16)
    step = 32 if tiles else 2
    found: list[LowPrecisionAttentionSchedule] = []
    for width in (32, 64, 16):
        if width > 16 and queries <= width // 2:
            continue
        for block in (64, 128, 256) if tiles else (32, 64, 128):
            whole = round_up(min(block, keys), step)
            chunk = round_up(min(keys, CHUNK_BYTES // (2 * max(values, 1))), whole)
            if tiles:
                side = min(width, 32)
                scores, rows = (RegisterTile(32 if n > 16 else 16, side, tiles=True) for n in (whole, values))
            else:
                most = (target.vector_registers - 1 - width // 16) // (width // 16)
                scores, rows = (RegisterTile(_near(n, min(most, 12)), width) for n in (whole, values))
            task = width
            while task < min(queries, MOST_QUERIES) and heads * -(-queries // (2 * task)) >= 3 * threads:
                task *= 2
            parts = key_parts(heads * -(-queries // task), keys if seen is None else seen, threads)
            if parts > 1:
                chunk = min(chunk, round_up(-(-(keys if seen is None else seen) // parts), whole))
            found.append(LowPrecisionAttentionSchedule(task, width, chunk, whole, scores, rows, parts > 1))
    return list(dict.fromkeys(found))


def attention_candidates(
    queries: int,
    keys: int,
    depth: int,
    values: int,
    bits: int,
    target: CpuTarget,
    heads: int = 1,
    threads: int = 1,
    seen: int | None = None,
) -> list[AttentionSchedule]:
    """Schedules worth considering, the usual best first. A tile of scores, keys and values stays within L1 and L2.

    Few queries of few heads share out the keys among the threads; ``seen``: how many a mask leaves some query's block.
    """
    lanes = target.lanes(bits)
    wide = 2 if target.vector_registers >= 32 else 1
    found: list[AttentionSchedule] = []
    least = wide // 2 or 1
    few = (least, wide, 2 * wide) if queries <= least * lanes else (wide, 2 * wide, least)
    for vectors in (2 * wide, wide, least) if queries >= 2 * wide * lanes else few:
        columns = vectors * lanes
        most = (target.vector_registers - 1 - vectors) // vectors
        for block in (64, 128, 32):
            scores = RegisterTile(_divisor_near(min(block, max(keys, 1)), min(most, 8)), columns)
            rows = RegisterTile(_divisor_near(max(values, 1), min(most, 8)), columns)
            parts = key_parts(heads * -(-queries // columns), keys if seen is None else seen, threads)
            found.append(AttentionSchedule(columns, min(block, round_up(max(keys, 1), 8)), scores, rows, parts))
    return list(dict.fromkeys(found))


def key_parts(tasks: int, keys: int, threads: int) -> int:
    """Parts of the keys that keep all threads busy where there are few tasks; 1 where that gains little."""

    def rounds(parts: int) -> float:
        """What the busiest thread does, in tasks of all keys."""
        combined = COMBINED_KEYS * parts / keys if parts > 1 else 0.0
        return -(-tasks * parts // threads) / parts * (1 + combined)

    most = min(2 * threads, keys // LEAST_KEYS)
    best = min(range(1, most + 1), key=rounds, default=1)
    return best if rounds(best) <= 0.85 * rounds(1) else 1


LEAST_KEYS = 256
"""Of one part: fewer take no longer than joining the parts."""

COMBINED_KEYS = 48
"""Keys that take as long as storing a part's result and joining it."""

MOST_QUERIES = 1024
"""Of one task, whose results stay in L2 while they pass over the chunks of keys."""

CHUNK_BYTES = 512 * 1024
"""Of values that a task keeps transposed."""


def _divisor_near(extent: int, most: int) -> int:
    """The largest row count up to ``most`` that divides the extent, if it is not tiny; else ``most``."""
    for rows in range(most, max(most // 2, 1) - 1, -1):
        if extent % rows == 0:
            return rows
    return min(most, extent)


def _near(extent: int, most: int) -> int:
    """The largest number of rows up to ``most`` that divides the extent, if it is not tiny; else ``most``."""
    return next((rows for rows in range(most, max(most // 2, 1), -1) if extent % rows == 0), min(most, max(extent, 1)))
