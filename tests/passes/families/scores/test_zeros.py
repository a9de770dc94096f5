"""Conditions without which what a consumer reads is 0."""

from __future__ import annotations

from math import inf

import pytest

from fusec.ir.index import mul, sub, symbol
from fusec.ir.types import bool_, f32, i64
from fusec.passes.families.scores.zeros import zero_conditions
from fusec.tile.scalar import Apply, Buffer, Const, IndexValue, Load, ScalarExpr

ROW, COLUMN = symbol("i", 0, 4095), symbol("j", 0, 4095)
S = Load(Buffer("s", f32, (), (), "tile"), ())
LSE = Load(Buffer("lse", f32, (4096,), (1,)), (ROW,))
KEPT = Apply("ge", (IndexValue(ROW), IndexValue(COLUMN)), bool_)


def number(value: float) -> Const:
    return Const(value, f32)


def op(name: str, *args: ScalarExpr) -> Apply:
    return Apply(name, args, f32)


def masked(value: ScalarExpr, fill: float) -> Apply:
    return op("select", KEPT, value, number(fill))


def sigmoid(x: ScalarExpr) -> Apply:
    return op("div", number(1.0), op("add", op("exp", op("neg", x)), number(1.0)))


DISTANCE = Apply("cast", (IndexValue(sub(ROW, COLUMN), i64),), f32)
FOUND: dict[str, ScalarExpr] = {
    "zeros": masked(S, 0.0),
    "zeros, scaled": op("mul", op("neg", masked(S, 0.0)), number(3.0)),
    "an exponential": op("exp", op("sub", masked(S, -inf), LSE)),
    "attention's backward": op("mul", op("exp", op("sub", masked(S, -inf), LSE)), op("sub", S, LSE)),
    "sigmoid": sigmoid(op("mul", masked(S, -inf), number(0.5))),
    "relu": op("maximum", masked(S, -inf), number(0.0)),
    "a factor": op("mul", S, Apply("cast", (KEPT,), f32)),
    "decay": op("mul", S, masked(op("pow", number(0.9), DISTANCE), 0.0)),
    "slow decay": op("mul", op("pow", number(0.99), DISTANCE), Apply("cast", (KEPT,), f32)),
}
NOT_FOUND: dict[str, ScalarExpr] = {
    "a number": masked(S, 1.0),
    "a low fill": op("exp", op("sub", masked(S, -1e30), LSE)),
    "tanh": op("tanh", masked(S, -inf)),
    "sigmoid of zeros": sigmoid(masked(S, 0.0)),
    "an infinity times 0": op("mul", masked(S, 0.0), op("exp", op("neg", masked(S, -inf)))),
    "a power that overflows": op("mul", op("pow", number(0.5), DISTANCE), Apply("cast", (KEPT,), f32)),
}


@pytest.mark.parametrize("name", list(FOUND))
def test_what_a_mask_empties(name: str) -> None:
    (found,) = zero_conditions(FOUND[name])
    assert (found.condition, found.wanted) == (KEPT, True)


@pytest.mark.parametrize("name", list(NOT_FOUND))
def test_what_is_not_0_or_not_known(name: str) -> None:
    assert zero_conditions(NOT_FOUND[name]) == []


def test_every_mask_counts() -> None:
    near = Apply("lt", (IndexValue(sub(ROW, COLUMN)), Const(64, i64)), bool_)
    value = op("select", near, masked(S, -inf), number(-inf))
    assert [c.condition for c in zero_conditions(op("exp", value))] == [near, KEPT]


def test_a_mask_of_data() -> None:
    seen = Apply("gt", (LSE, number(0.0)), bool_)
    (found,) = zero_conditions(op("select", seen, S, number(0.0)))
    assert found.condition == seen


def test_a_choice_made_the_other_way() -> None:
    (found,) = zero_conditions(op("select", KEPT, number(0.0), op("mul", S, IndexValue(mul(ROW, 2)))))
    assert found.wanted is False
