# SPDX-License-Identifier: Apache-2.0
"""Points of a domain that code is written for, and which of a value's loads are in range there."""

from __future__ import annotations

from fusec.codegen.cuda.numbering import children
from fusec.ir.index import Expr, Index, Sum, Symbol, bounds, sub, symbol
from fusec.ir.indexing import substitute
from fusec.ir.types import fixed
from fusec.tile.nodes import Iter
from fusec.tile.scalar import Apply, Load, ScalarExpr, loads


class Point:
    """A point of a domain while code for it is written.

    chunks: the variable of each iterator's chunk. vector: the iterator that vectors lie along; lane: the variable of
    the element in one. read: the text of loads made ahead. at: the position in a block's part of a row, where it has
    one.
    """

    def __init__(self, domain: tuple[Iter, ...]) -> None:
        self.domain = domain
        self.chunks: dict[Symbol, str] = {}
        self.vector: Iter | None = None
        self.lane = ""
        self.read: dict[Load, str] = {}
        self.at = ""


def guarded(value: ScalarExpr) -> set[Load]:
    """Loads that only one side of a choice reads."""
    free: set[Load] = set()
    seen: set[int] = set()
    waiting = [value]
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, Load):
            free.add(node)
        waiting.extend(node.args[:1] if isinstance(node, Apply) and node.op == "select" else children(node))
    return {load for load in loads(value) if load not in free}


def is_inside(load: Load, domain: tuple[Iter, ...]) -> bool:
    """Whether every subscript is in range wherever a statement on the domain runs."""
    for i, extent in zip(load.index, fixed(load.buffer.shape), strict=True):
        low, high = bounds(_tight(i, domain)) if isinstance(i, int | Expr) else (None, None)
        if low is None or high is None or low < 0 or high >= extent:
            return False
    return True


def _tight(e: Index, domain: tuple[Iter, ...]) -> Index:
    """``e`` with each limited iterator replaced by a symbol that has no more than its values."""
    changes: dict[Symbol, Index] = {}
    for i in domain:
        if i.limit is not None:
            last = i.limit if isinstance(i.limit, int) else i.limit.constant if isinstance(i.limit, Sum) else 0
            base = sub(last, i.limit)
            changes[i.var] = sub(symbol(f"{i.var.name}_all", 0, max(last - 1, 0)), base)
    return substitute(e, changes)
