# SPDX-License-Identifier: Apache-2.0
"""How many products of a long sum are added up before they join the accumulator."""

from __future__ import annotations

from fusec.ir.types import Dim

SUM_BLOCK = 128
"""Products added up in registers before the sum joins the accumulator in memory: 1 to 2 % of the time."""

LONG_BLOCK = 16 * SUM_BLOCK
"""The same where k lies on the lanes, each of which adds up its share."""

SMALL_BLOCK = 16
"""The same for few rows (:data:`FEW_ROWS`) of few columns, where libraries keep several sums for each result."""

FEW_ROWS, FEW_COLUMNS = 8, 128


def block_for(rows: Dim, columns: Dim) -> int:
    """How many products of such a matmul join the accumulator at once."""
    small = isinstance(rows, int) and isinstance(columns, int) and rows <= FEW_ROWS and columns <= FEW_COLUMNS
    return SMALL_BLOCK if small else SUM_BLOCK


def block_depth(depth: int, block: int = SUM_BLOCK) -> int:
    """How many products of a sum of so many are added up before they join the accumulator."""
    return depth if depth <= 3 * block // 2 else block


def even_block(run: int) -> int:
    """The largest part of a run of products, in equal parts, that is added up before it joins the accumulator."""
    return max(n for n in range(1, min(run, 3 * SUM_BLOCK // 2) + 1) if run % n == 0)
