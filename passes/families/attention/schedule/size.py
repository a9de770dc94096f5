# SPDX-License-Identifier: Apache-2.0
"""What an attention on a GPU has to do, and how long that takes.

A point is a query and a key that no mask hides. It takes the tensor cores ``2 * (depth + values)`` operations, and the
rest of an SM the softmax: an exponential, and four instructions (maximum, multiply-add, sum, half a rounding) besides
what the score is changed by. Hopper's warpgroups do both at a time: on an H200 with heads of 64 and of 128 a point
takes the root of the sum of both squares, within 1 % (546.9 and 731.9 TFLOP/s). Warps' own instructions take turns with
the softmax.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, hypot

from fusec.target.gpu import GpuTarget

SOFTMAX_INSTRUCTIONS, SOFTMAX_SPECIALS = 4.0, 1.0
"""Of a lane, for a point."""

BETWEEN, BETWEEN_STANDING = 1.0, 2.4
"""Blocks of keys that could be done in the time between two blocks of queries, where CTAs are persistent and
where they don't (decision 13)."""

BETWEEN_NARROW, BETWEEN_TOGETHER = 3.0, 4.5
"""The same of persistent CTAs with heads of up to 64 columns, whose blocks of keys are done in half the time, and where
their warpgroups end a block together, so that none multiplies meanwhile (4×16×1024 causal 45 µs, 8×12×512 causal 30;
full 4×16×1024 62; 4×32×4096 full 1195, causal 633: decision 54)."""

READS_IN_FRAGMENTS = (40.0, 8.0)
"""Instructions' worth of time for an element of an array that is read at each point, and at each key, by kernels whose
threads read what the fragments that they hold need: two neighbours of eight rows an instruction. Heads of 64, 4×16×1024
queries and keys on an H100, µs: none 62, a mask of keys 80, a mask of points 144, a bias of points 163; heads of 128,
4×16×4096, a bias: 2127."""

READS_IN_ROWS = (12.0, 3.0)
"""The same of Triton's kernels, which read rows of a block: 8×12×512, µs: 20, 25, 32, 27."""

FOUND_LATER = 0.5
"""The part of the points that is taken to be left by a mask made of data, by kernels that find which."""


@dataclass(frozen=True)
class AttentionSize:
    """``heads`` independent attentions (all outer axes) of ``rows`` queries to ``keys`` keys. ``whole``: the queries
    must lie in one block. ``masked``: a mask of indices may empty blocks of keys; ``bounded``: data of queries and keys
    may, and Triton's kernels find which. A query has ``depth`` elements, a value ``values``, of ``bits`` bits; with
    queries and keys of 8, values have 16. hidden: the share of the points whose blocks a mask of indices empties.
    instructions, specials: of a lane, for what changes a score. point_reads, key_reads: elements that are read from
    memory for a point: of arrays that have one for each point (a mask, a bias), and for each key. uneven: data say
    how many keys each of the heads' blocks visits (lengths of sequences in a cache).
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
    hidden: float = 0.0
    instructions: float = 0.0
    specials: float = 0.0
    point_reads: int = 0
    key_reads: int = 0
    uneven: bool = False

    def reading(self, point: float, key: float) -> AttentionSize:
        """With a kernel's instructions for what it reads of arrays beside the scores, an element of each kind."""
        more = point * self.point_reads + key * self.key_reads
        return replace(self, instructions=self.instructions + more)

    @property
    def points(self) -> float:
        """Queries and keys that are computed."""
        return (1 - self.hidden) * self.heads * self.rows * self.keys

    def matmuls(self, depth: int, values: int, rate: float) -> float:
        """Seconds of a point's dots, heads taken as so wide; at a rate of matmuls of 16 bits."""
        return 2.0 * (depth * self.bits / 16 + values * max(self.bits // 16, 1)) / rate

    def softmax(self, target: GpuTarget) -> float:
        """Seconds of a point's softmax."""
        rates = target.rates
        instructions = (SOFTMAX_INSTRUCTIONS + self.instructions) / rates.issue
        return instructions + (SOFTMAX_SPECIALS + self.specials) / rates.special

    def traffic(self, target: GpuTarget, blocks: int) -> float:
        """Seconds in which memory gives what is read and takes what is written once, to so many blocks."""
        item = self.bits // 8
        seen = (1 - self.hidden) if self.rows == 1 or self.whole else 1.0
        read = item * self.heads * (self.rows * self.depth + seen * self.keys * (self.depth + self.values))
        written = item * self.heads * self.rows * self.values
        return target.rates.moved(read, written) / min(1.0, _FILLED * max(blocks, 1) / target.sms)


_FILLED = 1.5
"""Units without a block don't fetch; two thirds of them keep memory busy."""


def waves(size: AttentionSize, queries: int, extra: float, keys: int, target: GpuTarget) -> float:
    """Points of the SM that has most to do, in whole blocks of ``queries`` and steps of ``keys``; a block of queries
    takes as long as ``extra`` steps more."""
    blocks = size.heads * ceil(size.rows / queries)
    each = queries * keys * ((1 - size.hidden) * ceil(size.keys / keys) + extra)
    share = blocks / target.sms
    return each * (ceil(share) if share <= 1 or not size.hidden else max(share, 1.0))


def overlapped(matmuls: float, softmax: float) -> float:
    """Seconds of a point where warps multiply while others are at their softmax."""
    return hypot(matmuls, softmax)
