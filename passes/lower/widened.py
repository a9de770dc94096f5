# SPDX-License-Identifier: Apache-2.0
"""What all rows of a task read in 16 bits, widened once: the weight and the bias of a layer norm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fusec.ir.index import Symbol
from fusec.ir.types import f32
from fusec.passes.lower.context import LoweringContext
from fusec.tile.nodes import Alloc, Block, Iter, Map, Reduce, Statement, Store
from fusec.tile.scalar import Apply, Load, ScalarExpr, rewrite, symbols_in, walk


def widen_once(
    context: LoweringContext, statements: Sequence[Statement], row: Symbol, along: Iter, most_bytes: int
) -> tuple[Block, Block]:
    """Statements to run once, and the statements of a row that read what those make, ``most_bytes`` at most.

    Layer norm of bf16 2048x768 on Zen 5: 130 to 123 us, 512x2048: 77 to 73.
    """
    found: dict[ScalarExpr, Load] = {}
    for s in statements:
        if isinstance(s, Map | Store | Reduce):
            found |= {node: load for node in walk(s.value) if (load := _widened(node, row, along)) is not None}
    if not found or along.limit is not None or len(found) * along.extent * f32.itemsize > most_bytes:
        return (), tuple(statements)
    before: list[Statement] = []
    widened_loads: dict[ScalarExpr, ScalarExpr] = {}
    for node, load in found.items():
        target = context.tile(f"{load.buffer.name}_wide", f32, along.extent)
        before += [Alloc(target), Map((along,), target, (along.var,), node)]
        widened_loads[node] = Load(target, (along.var,))
    return tuple(before), tuple(_reading(s, widened_loads) for s in statements)


def _widened(node: ScalarExpr, row: Symbol, along: Iter) -> Load | None:
    match node:
        case Apply("cast", (Load() as load,), dtype) if dtype == f32 and load.dtype.is_half:
            symbols = symbols_in(load)
            return load if load.buffer.space != "tile" and row not in symbols and along.var in symbols else None
    return None


def _reading(s: Statement, widened_loads: dict[ScalarExpr, ScalarExpr]) -> Statement:
    if not isinstance(s, Map | Store | Reduce):
        return s
    return replace(s, value=rewrite(s.value, widened_loads.get))
