"""Exponentials as powers of two."""

from __future__ import annotations

from math import e, log2

import pytest

from fusec.ir.types import bool_, f32
from fusec.passes.families.scores.powers import by_powers_of_two
from fusec.tile.scalar import Apply, Buffer, Const, Load, ScalarExpr

X, Y = (Load(Buffer(name, f32, (), (), "tile"), ()) for name in "xy")
LOG2E = log2(e)


def op(name: str, *args: ScalarExpr) -> Apply:
    return Apply(name, args, f32)


def number(value: float) -> Const:
    return Const(value, f32)


def test_factors_join() -> None:
    found = by_powers_of_two(op("exp", op("neg", op("mul", X, number(0.125)))))
    assert isinstance(found, Apply)
    assert found.op == "exp2"
    assert isinstance(found.args[0], Apply)
    scaled, factor = found.args[0].args
    assert scaled == X
    assert isinstance(factor, Const)
    assert factor.value == pytest.approx(-0.125 * LOG2E)


def test_sums_and_choices_are_scaled_part_by_part() -> None:
    kept = Apply("lt", (X, Y), bool_)
    found = by_powers_of_two(op("exp", op("sub", op("select", kept, X, number(float("-inf"))), Y)))
    scaled = [op("mul", each, number(LOG2E)) for each in (X, Y)]
    assert found == op("exp2", op("sub", op("select", kept, scaled[0], number(float("-inf"))), scaled[1]))


def test_powers_of_a_positive_number() -> None:
    assert by_powers_of_two(op("pow", number(0.5), X)) == op("exp2", op("mul", X, number(-1.0)))
    for power in (op("pow", number(-2.0), X), op("pow", X, number(2.0))):
        assert by_powers_of_two(power) == power
