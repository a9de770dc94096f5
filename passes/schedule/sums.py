"""How many products of a long sum are added up before they join the accumulator."""

from __future__ import annotations

SUM_BLOCK = 128
"""Products added up in registers before the sum joins the accumulator in memory: 1 to 2 % of the time."""

LONG_BLOCK = 16 * SUM_BLOCK
"""The same where k lies on the lanes, each of which adds up its share."""


def block_depth(depth: int, block: int = SUM_BLOCK) -> int:
    """How many products of a sum of so many are added up before they join the accumulator."""
    return depth if depth <= 3 * block // 2 else block


def even_block(run: int) -> int:
    """The largest part of a run of products, in equal parts, that is added up before it joins the accumulator."""
    return max(n for n in range(1, min(run, 3 * SUM_BLOCK // 2) + 1) if run % n == 0)
