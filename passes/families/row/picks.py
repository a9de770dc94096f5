# SPDX-License-Identifier: Apache-2.0
"""Sums of a row in which one element counts: a loss picks the logit of each row's target.

Written as a sum (:mod:`fusec.passes.row_picks`), a pick takes a comparison, a choice and an addition at each position
of the row. A GPU's kernel reads the element where it lies instead.
"""

from __future__ import annotations

from fusec.ir.index import symbol
from fusec.ir.indexing import last, substitute
from fusec.ir.nodes import Op
from fusec.ir.types import bool_, i64
from fusec.passes.families.row.rows import Rows
from fusec.passes.inline import Inliner, Leaf
from fusec.passes.subscripts import fill_symbols
from fusec.tile.nodes import Alloc, Map, Statement
from fusec.tile.scalar import Apply, Buffer, Const, IndexValue, Load, ScalarExpr, loads, reindex, rewrite, symbols_in


class Picks:
    """The sums of one element among a kernel's reductions.

    ``before``: statements that read the elements, for the kernel's start: later, another thread may have stored a
    result there.
    """

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.ops: set[Op] = set()
        self.before: list[Statement] = []
        self._read: dict[Load, Load] = {}
        trial = Inliner(rows.context.producers, rows.context.inliner.leaves)
        for op in rows.anchors:
            trial.add_leaf(op.result, _always(Const(0, op.result.type.dtype.accumulator)))
        for op in rows.anchors:
            element = _element(rows, op, trial)
            if element is not None:
                self.ops.add(op)
                self._read_first(element)

    def _read_first(self, element: ScalarExpr) -> None:
        row = self.rows.row
        for load in loads(element):
            if load.gathers and load not in self._read:
                name = self.rows.context.unique(f"{load.buffer.name}_picked")
                held = Buffer(name, load.dtype.accumulator, (self.rows.schedule.rows,), (1,), "tile")
                self.before += [Alloc(held), Map((row,), held, (row.var,), load)]
                self._read[load] = Load(held, (row.var,))

    def value(self, op: Op) -> ScalarExpr:
        """``sum(select(j == e, x[j], 0)) ⇒ select(0 <= e < n, x[e], 0)``, with ``e`` the same all along the row; once
        what the element is made of is settled."""
        element = _element(self.rows, op, self.rows.context.inliner)
        assert element is not None
        return rewrite(element, lambda node: self._read.get(node) if isinstance(node, Load) else None)


def _always(element: ScalarExpr) -> Leaf:
    return lambda index: element


def _element(rows: Rows, op: Op, inliner: Inliner) -> ScalarExpr | None:
    chosen = rows.context.producers.get(op.operands[0])
    if op.name != "reduce_sum" or chosen is None or chosen.name != "select" or not isinstance(rows.length, int):
        return None
    condition, value, other = chosen.operands
    zero = inliner.at(other, rows.index_of(other))
    place = _compared(rows, inliner.at(condition, rows.index_of(condition)))
    if place is None or not isinstance(zero, Const) or zero.value != 0:
        return None
    name = symbol("picked", 0, last(rows.length))
    index = tuple(substitute(i, {rows.j: name}) for i in rows.index_of(value))
    inside = Apply("minimum", (Apply("maximum", (place, Const(0, i64)), i64), Const(rows.length - 1, i64)), i64)
    element = fill_symbols(inliner.at(value, index), {name: inside})
    if rows.j in symbols_in(element):
        return None
    low, high = Apply("ge", (place, Const(0, i64)), bool_), Apply("lt", (place, Const(rows.length, i64)), bool_)
    dtype = op.result.type.dtype.accumulator
    nothing = Const(0.0, dtype)
    counted = Apply("add", (element, nothing), dtype)  # a sum with zeros: never -0
    return reindex(Apply("select", (Apply("logical_and", (low, high), bool_), counted, nothing), dtype), rows.shift)


def _compared(rows: Rows, condition: ScalarExpr) -> ScalarExpr | None:
    """What a position in the row is compared with for equality, where that is one number a row."""
    match condition:
        case Apply("eq", (IndexValue(rows.j), place)) | Apply("eq", (place, IndexValue(rows.j))):
            reads = any(load.buffer.space == "parameter" for load in loads(place))
            return place if reads and rows.j not in symbols_in(place) and place.dtype is i64 else None
    return None
