# SPDX-License-Identifier: Apache-2.0
"""Points of a row compared with, or multiplied by, a number that the row has: what all its points share is made once.

The gradient of a loss has both: each position is compared with the row's target, a number of 64 bits, and a one or a
zero is multiplied by the row's weight. Wide rows of 16 bits are bound by such instructions, not by memory.
"""

from __future__ import annotations

from collections.abc import Set

from fusec.ir.index import Symbol, bounds
from fusec.ir.types import bool_, i32, i64
from fusec.tile.scalar import Apply, Const, IndexValue, Load, ScalarExpr, rewrite, symbols_in, walk

_MOST = 2**31 - 1


def by_lines(value: ScalarExpr, columns: Set[Symbol]) -> ScalarExpr:
    """``j == e ⇒ int32(j) == (e if 0 <= e <= max(j) else -1)``; ``select(c, k, l) * s ⇒ select(c, k * s, l * s)``.

    ``j`` is an index along a row, ``e`` and ``s`` are numbers that the row has: none of ``columns`` is in them. ``k``
    and ``l`` are constants.
    """

    def change(node: ScalarExpr) -> ScalarExpr | None:
        match node:
            case Apply("eq", (IndexValue() as position, place)) | Apply("eq", (place, IndexValue() as position)):
                return _compared(position, place) if _is_of_line(place) and place.dtype is i64 else None
            case Apply("mul", (Apply("select", (condition, Const() as k, Const() as l)), s), dtype) if _is_of_line(s):
                pass
            case Apply("mul", (s, Apply("select", (condition, Const() as k, Const() as l))), dtype) if _is_of_line(s):
                pass
            case _:
                return None
        chosen = (Apply("mul", (number, s), dtype) for number in (k, l))
        return Apply("select", (rewrite(condition, change), *chosen), dtype)

    def _is_of_line(e: ScalarExpr) -> bool:
        reads = any(isinstance(node, Load) for node in walk(e))
        return reads and symbols_in(e).isdisjoint(columns)

    def _compared(position: IndexValue, place: ScalarExpr) -> ScalarExpr | None:
        low, high = bounds(position.index)
        if low is None or high is None or low < 0 or high > _MOST or symbols_in(position).isdisjoint(columns):
            return None
        inside = (Apply(name, (place, Const(k, i64)), bool_) for name, k in (("ge", 0), ("le", high)))
        narrow = Apply("select", (Apply("logical_and", (*inside,), bool_), place, Const(-1, i64)), i64)
        return Apply("eq", (IndexValue(position.index, i32), Apply("cast", (narrow,), i32)), bool_)

    return rewrite(value, change)
