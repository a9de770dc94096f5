"""Distances as floats of rows and columns."""

from __future__ import annotations

from fusec.ir.index import add, floordiv, mul, sub, symbol
from fusec.ir.types import f32, i64
from fusec.passes.lower.distances import by_rows_and_columns
from fusec.tile.scalar import Apply, Const, IndexValue, ScalarExpr

ROW, COLUMN, START = symbol("ri", 0, 127), symbol("cj", 0, 63), symbol("c0", 0, 4095)
COLUMNS = {COLUMN, START}


def number(value: ScalarExpr) -> Apply:
    return Apply("cast", (value,), f32)


def test_a_distance_is_a_number_of_the_row_and_one_of_the_column() -> None:
    distance = Apply("sub", (IndexValue(add(ROW, 128)), IndexValue(add(START, COLUMN))), i64)
    row, column = add(ROW, 128), sub(mul(START, -1), COLUMN)
    wanted = Apply("add", (number(IndexValue(row)), number(IndexValue(column))), f32)
    scaled = Apply("mul", (number(distance), Const(0.5, f32)), f32)
    assert by_rows_and_columns(scaled, COLUMNS) == Apply("mul", (wanted, Const(0.5, f32)), f32)


def test_what_is_of_one_axis_or_not_exact_stays() -> None:
    for index in (ROW, COLUMN, mul(sub(ROW, COLUMN), 1 << 20), floordiv(add(ROW, COLUMN), 2)):
        value = number(IndexValue(index))
        assert by_rows_and_columns(value, COLUMNS) == value
