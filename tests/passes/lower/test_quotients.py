"""Quotients by what a row or a column has, as products with its reciprocal."""

from __future__ import annotations

import math

import pytest
from tile_harness import buffer, const, load, op, sym, tile

from fusec.ir.types import bool_, f32, i32
from fusec.passes.lower.quotients import by_reciprocals
from fusec.tile.scalar import Apply, ScalarExpr, walk

ROW, COLUMN = sym("i", 16), sym("j", 16)
SCORE = load(tile("score", f32, (16, 16)), ROW, COLUMN)
OF_ROW = load(buffer("total", f32, (16,)), ROW)
OF_COLUMN = load(buffer("total", f32, (16,)), COLUMN)
OF_POINT = load(buffer("bias", f32, (16, 16)), ROW, COLUMN)


def changed(value: ScalarExpr) -> ScalarExpr:
    return by_reciprocals(value, {ROW}, {COLUMN})


def divisors(value: ScalarExpr) -> list[ScalarExpr]:
    return [n.args[0] for n in walk(value) if isinstance(n, Apply) and n.op == "div"]


def test_a_number_is_a_factor() -> None:
    assert changed(op("div", SCORE, const(8.0, f32))) == op("mul", SCORE, const(0.125, f32))


@pytest.mark.parametrize("number", [1e-39, 3e38, 0.0, math.inf, math.nan])
def test_a_number_without_a_reciprocal_divides(number: float) -> None:
    quotient = op("div", SCORE, const(number, f32))
    assert changed(quotient) is quotient


@pytest.mark.parametrize("divisor", [OF_ROW, OF_COLUMN])
def test_a_reciprocal_for_each_line(divisor: ScalarExpr) -> None:
    assert divisors(changed(op("div", op("exp2", SCORE), divisor))) == [const(1.0, f32)]


@pytest.mark.parametrize("quotient", [op("div", SCORE, OF_POINT), op("div", OF_ROW, OF_ROW), op("div", SCORE, SCORE)])
def test_what_is_divided_point_by_point(quotient: ScalarExpr) -> None:
    assert changed(quotient) is quotient


def test_what_decides_a_jump_is_divided_as_it_is_written() -> None:
    quotient = op("div", SCORE, OF_ROW)
    for jump in (op("floor", quotient), op("lt", quotient, OF_POINT, dtype=bool_), op("cast", quotient, dtype=i32)):
        assert changed(jump) == jump
    both = changed(op("add", quotient, op("floor", quotient)))
    assert set(map(str, divisors(both))) == {str(SCORE), str(const(1.0, f32))}
