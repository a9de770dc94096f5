# SPDX-License-Identifier: Apache-2.0
"""Distances of rows and columns as floats: a block has few rows and columns, and many points."""

from __future__ import annotations

from collections.abc import Set

from fusec.ir.index import Index, Symbol, add, bounds, mul, symbols_of, terms_of
from fusec.ir.types import f32
from fusec.passes.lower.mask import to_index
from fusec.tile.scalar import Apply, Const, IndexValue, ScalarExpr, rewrite

_EXACT = 1 << 24
"""Integers up to here are floats of 32 bits."""


def by_rows_and_columns(value: ScalarExpr, columns: Set[Symbol]) -> ScalarExpr:
    """float(i - j) ⇒ float(i) - float(j), where all of these are exact: a conversion for each row and each column.

    ``columns``: the symbols of a column.
    """

    def change(node: ScalarExpr) -> ScalarExpr | None:
        match node:
            case Apply("cast", (number,), dtype) if dtype is f32 and number.dtype.is_integer:
                index = to_index(number)
                row, column = _parts(index, columns) if index is not None else (0, 0)
                if index is None or row == 0 or column == 0 or not all(map(_is_exact, (index, row, column))):
                    return None
                return Apply("add", (_number(row), _number(column)), f32)
            case _:
                return None

    return rewrite(value, change)


def _parts(index: Index, columns: Set[Symbol]) -> tuple[Index, Index]:
    """What an index adds up that has to do with no column, and the rest."""
    row, terms = terms_of(index)
    parts: list[Index] = [row, 0]
    for atom, factor in terms.items():
        which = not columns.isdisjoint(symbols_of(atom))
        parts[which] = add(parts[which], mul(atom, factor))
    return parts[0], parts[1]


def _is_exact(index: Index) -> bool:
    low, high = bounds(index)
    return low is not None and high is not None and -_EXACT <= low <= high <= _EXACT


def _number(index: Index) -> ScalarExpr:
    if isinstance(index, int):
        return Const(float(index), f32)
    return Apply("cast", (IndexValue(index),), f32)
