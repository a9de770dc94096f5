# SPDX-License-Identifier: Apache-2.0
"""Quotients of points by what their row, or their column, has: a reciprocal for each row, a product for each point.

A division takes some eight instructions and a place in the special unit, where the exponentials wait as well. The
product is off by a unit in the last place at most.
"""

from __future__ import annotations

from collections.abc import Set

from fusec.ir.index import Symbol
from fusec.ir.types import bool_, f32
from fusec.tile.scalar import Apply, Const, ScalarExpr, loads, rewrite_upward, symbols_in

_LEAST, _MOST, _SHIFT = 2.0**-100, 2.0**100, 2.0**60
"""Numbers within the first two have reciprocals in full. Divisors below the first, and what they divide, are first
multiplied by the third."""


def by_reciprocals(value: ScalarExpr, rows: Set[Symbol], columns: Set[Symbol]) -> ScalarExpr:
    """``a / b ⇒ a * (1 / b)`` for a number ``b`` and for one of a row or of a column alone, whose symbols are given."""

    def change(node: Apply) -> ScalarExpr:
        match node:
            case Apply("div", (a, Const(int() | float() as b, _)), dtype) if dtype is f32:
                return Apply("mul", (a, Const(1.0 / b, f32)), f32) if _LEAST < abs(b) < _MOST else node
            case Apply("div", (a, b), dtype) if dtype is f32 and _is_of_points(a) and _is_of_lines(b):
                factor = _factor(b)
                return _product(_product(a, factor), Apply("div", (Const(1.0, f32), _product(b, factor)), f32))
            case _:
                return node

    def _is_of_points(a: ScalarExpr) -> bool:
        found = symbols_in(a)
        made = any(load.buffer.space == "tile" for load in loads(a))
        return made or not (found.isdisjoint(rows) or found.isdisjoint(columns))

    def _is_of_lines(b: ScalarExpr) -> bool:
        read = list(loads(b))
        found = symbols_in(b)
        known = bool(read) and all(load.buffer.space == "parameter" for load in read)
        return known and (found.isdisjoint(rows) or found.isdisjoint(columns))

    return rewrite_upward(value, change)


def _factor(b: ScalarExpr) -> ScalarExpr:
    """What brings a small divisor to where it has a reciprocal, a power of two; a large one has a subnormal one."""
    tiny = Apply("lt", (Apply("abs", (b,), f32), Const(_LEAST, f32)), bool_)
    return Apply("select", (tiny, Const(_SHIFT, f32), Const(1.0, f32)), f32)


def _product(a: ScalarExpr, b: ScalarExpr) -> ScalarExpr:
    return Apply("mul", (a, b), f32)
