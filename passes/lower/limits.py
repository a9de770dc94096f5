# SPDX-License-Identifier: Apache-2.0
"""What a block computes beyond the limits of its iterators."""

from __future__ import annotations

from fusec.ir.types import bool_
from fusec.passes.lower.context import LoweringContext
from fusec.tile.nodes import Alloc, Iter, Map, Statement
from fusec.tile.scalar import Apply, Const, IndexValue, Load, ScalarExpr


def zero_beyond(element: ScalarExpr, *domain: Iter) -> ScalarExpr:
    """What is computed from zeros beyond the limits may be no zero, as a matmul's operand must be there."""
    for i in domain:
        if i.limit is not None:
            inside = Apply("lt", (IndexValue(i.var), IndexValue(i.limit)), bool_)
            element = Apply("select", (inside, element, Const(0.0, element.dtype)), element.dtype)
    return element


def block_in_tile(
    context: LoweringContext, name: str, element: ScalarExpr, rows: Iter, columns: Iter
) -> tuple[Load, list[Statement]]:
    """A tile of a matmul's operand, and what fills it."""
    value = element if isinstance(element, Load) else zero_beyond(element, rows, columns)
    tile, where = context.tile(name, value.dtype, rows.extent, columns.extent), (rows.var, columns.var)
    return Load(tile, where), [Alloc(tile), Map((rows, columns), tile, where, value)]
