"""What points of a row share with their row is made once."""

from __future__ import annotations

import pytest
from tile_harness import buffer, const, load, op, sym

from fusec.ir.types import bool_, f32, i32, i64
from fusec.passes.lower.lines import by_lines
from fusec.tile.scalar import Apply, IndexValue, ScalarExpr, walk

ROW, COLUMN = sym("i", 16), sym("j", 100)
WEIGHT = load(buffer("weight", f32, (16,)), ROW)
TARGET = load(buffer("target", i64, (16,)), ROW)
ALONG = load(buffer("other", i64, (100,)), COLUMN)
ONE_HOT = op("select", op("lt", IndexValue(COLUMN), TARGET, dtype=bool_), const(-1.0, f32), const(0.0, f32))


def changed(value: ScalarExpr) -> ScalarExpr:
    return by_lines(value, {COLUMN})


@pytest.mark.parametrize("place", [TARGET, op("add", TARGET, const(3, i64))])
def test_a_position_is_compared_in_32_bits(place: ScalarExpr) -> None:
    for equal in (op("eq", IndexValue(COLUMN), place, dtype=bool_), op("eq", place, IndexValue(COLUMN), dtype=bool_)):
        made = changed(equal)
        assert isinstance(made, Apply)
        assert made.args[0] == IndexValue(COLUMN, i32)
        assert {node.op for node in walk(made) if isinstance(node, Apply)} >= {"ge", "le", "select"}


@pytest.mark.parametrize(
    "equal",
    [
        op("eq", IndexValue(COLUMN), ALONG, dtype=bool_),
        op("eq", IndexValue(ROW), TARGET, dtype=bool_),
        op("eq", IndexValue(sym("k", 2**31 + 1)), TARGET, dtype=bool_),
        op("lt", IndexValue(COLUMN), TARGET, dtype=bool_),
    ],
    ids=["of a position", "of a row alone", "too many positions", "another comparison"],
)
def test_other_comparisons_stay(equal: ScalarExpr) -> None:
    assert changed(equal) is equal


def test_a_choice_of_products_with_a_row_s_number() -> None:
    for product in (op("mul", ONE_HOT, WEIGHT), op("mul", WEIGHT, ONE_HOT)):
        made = changed(product)
        assert isinstance(made, Apply)
        assert made.op == "select"
        assert made.args[1] == op("mul", const(-1.0, f32), WEIGHT)


def test_other_products_stay() -> None:
    along = load(buffer("bias", f32, (100,)), COLUMN)
    for product in (op("mul", ONE_HOT, along), op("mul", ONE_HOT, ONE_HOT), op("mul", WEIGHT, along)):
        assert changed(product) is product
