# SPDX-License-Identifier: Apache-2.0
"""Parts of a matmul's operand that stay the same along K (a scale of each row): computed once, before the loop."""

from __future__ import annotations

from fusec.ir.index import Symbol
from fusec.passes.lower.context import LoweringContext
from fusec.tile.nodes import Alloc, Iter, Map, Statement
from fusec.tile.scalar import Apply, Load, ScalarExpr, loads, rewrite, symbols_in


def hoist(
    context: LoweringContext, element: ScalarExpr, free: Iter, along: Symbol
) -> tuple[ScalarExpr, list[Statement]]:
    """The element with what does not change ``along`` K read from tiles over ``free``, and the code that fills them.

    Half types stay in f32, as they do on the way through an expression.
    """
    tiles: dict[ScalarExpr, Load] = {}
    code: list[Statement] = []

    def change(node: ScalarExpr) -> ScalarExpr | None:
        if not isinstance(node, Load | Apply) or not loads(node) or along in symbols_in(node):
            return None
        if node not in tiles:
            dtype = node.dtype.accumulator
            tile = context.tile("held", dtype, free.extent)
            tiles[node] = Load(tile, (free.var,))
            code.extend((Alloc(tile), Map((free,), tile, (free.var,), node)))
        return tiles[node]

    return rewrite(element, change), code
