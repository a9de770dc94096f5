# SPDX-License-Identifier: Apache-2.0
"""Quotients of points by what their row, or their column, has: a reciprocal for each row, a product for each point.

A division takes some eight instructions and a place in the special unit, where the exponentials wait as well. The
product is off by a unit in the last place at most.
"""

from __future__ import annotations

from collections.abc import Set

from fusec.ir.index import Symbol
from fusec.ir.ops import OPS
from fusec.ir.types import bool_, f32
from fusec.tile.scalar import Apply, Buffer, Const, Load, ScalarExpr, loads, rewrite, symbols_in

_LEAST, _MOST, _SHIFT = 2.0**-100, 2.0**100, 2.0**60
"""Numbers within the first two have reciprocals in full. Divisors below the first, and what they divide, are first
multiplied by the third."""


def by_reciprocals(
    value: ScalarExpr, rows: Set[Symbol], columns: Set[Symbol], large: Set[Buffer] = frozenset()
) -> ScalarExpr:
    """``a / b ⇒ a * (1 / b)`` for a number ``b`` and for one of a row or of a column alone, whose symbols are given.
    What lies in a buffer that is ``large`` is 1 at least.

    What decides a jump (a comparison, an integer) is divided as it is written.
    """

    def change(node: ScalarExpr) -> ScalarExpr | None:
        match node:
            case Apply() if _jumps(node):
                return node
            case Apply("div", (a, Const(int() | float() as b, _)), dtype) if dtype is f32 and _LEAST < abs(b) < _MOST:
                return Apply("mul", (rewrite(a, change), Const(1.0 / b, f32)), f32)
            case Apply("div", (a, b), dtype) if dtype is f32 and _is_of_points(a) and _is_of_lines(b):
                if isinstance(b, Load) and b.buffer in large:
                    return _product(rewrite(a, change), Apply("div", (Const(1.0, f32), b), f32))
                factor = _factor(b)
                inverse = Apply("div", (Const(1.0, f32), _product(b, factor)), f32)
                return _product(_product(rewrite(a, change), factor), inverse)
            case _:
                return None

    def _is_of_points(a: ScalarExpr) -> bool:
        found = symbols_in(a)
        made = any(load.buffer.space == "tile" for load in loads(a))
        return made or not (found.isdisjoint(rows) or found.isdisjoint(columns))

    def _is_of_lines(b: ScalarExpr) -> bool:
        read = list(loads(b))
        found = symbols_in(b)
        known = bool(read) and all(load.buffer.space == "parameter" or load.index for load in read)
        return known and (found.isdisjoint(rows) or found.isdisjoint(columns))

    return rewrite(value, change)


def _jumps(node: Apply) -> bool:
    definition = OPS.get(node.op)
    return definition is not None and definition.jumps and not (node.op == "cast" and node.dtype.is_float)


def _factor(b: ScalarExpr) -> ScalarExpr:
    """What brings a small divisor to where it has a reciprocal, a power of two; a large one has a subnormal one."""
    tiny = Apply("lt", (Apply("abs", (b,), f32), Const(_LEAST, f32)), bool_)
    return Apply("select", (tiny, Const(_SHIFT, f32), Const(1.0, f32)), f32)


def _product(a: ScalarExpr, b: ScalarExpr) -> ScalarExpr:
    return Apply("mul", (a, b), f32)
