"""Integer arithmetic on indices, as index expressions."""

from __future__ import annotations

import operator

import pytest

from fusec.ir.index import symbol
from fusec.ir.indexing import evaluate
from fusec.tile.integers import ARITHMETIC, applied

I = symbol("i", 0, 99)  # noqa: E741
J = symbol("j", -5, 5)
PYTHON = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "remainder": operator.mod,
    "maximum": max,
    "minimum": min,
    "neg": operator.neg,
}


@pytest.mark.parametrize("op", sorted(ARITHMETIC))
def test_values_are_python_s(op: str) -> None:
    operands = (J,) if op == "neg" else (J, 7)
    made = applied(op, operands)
    assert made is not None
    for j in range(-5, 6):
        assert evaluate(made, {"j": j}) == PYTHON[op](*(j if o is J else o for o in operands))


@pytest.mark.parametrize(
    ("op", "operands"),
    [
        ("mul", (I, J)),
        ("floordiv", (I, J)),
        ("floordiv", (I, 0)),
        ("remainder", (I, -3)),
        ("add", (I, 2**31 - 99)),
        ("mul", (I, 2**30)),
        ("exp", (I,)),
        ("logical_and", (I, J)),
    ],
)
def test_what_is_no_index_or_needs_64_bits(op, operands) -> None:
    assert applied(op, operands) is None
