"""Index expressions as text: what a speller says is worth what the expression is; what is no index is refused."""

from __future__ import annotations

import itertools

import pytest

from fusec.errors import ParseError
from fusec.ir.index import Expr, Index, Symbol, maximum, minimum, symbol
from fusec.ir.index_text import IndexSpeller, parse_index
from fusec.ir.indexing import evaluate

A, B = symbol("a", -9, 9), symbol("b", 1, 9)


class Python(IndexSpeller):
    def symbol(self, s: Symbol) -> str:
        return s.name

    def quotient(self, value: Expr, divisor: Index) -> str:
        return f"({self.index(value)} // {self.index(divisor)})"

    def remainder(self, value: Expr, divisor: Index) -> str:
        return f"({self.index(value)} % {self.index(divisor)})"

    def extremum(self, a: str, b: str, *, largest: bool) -> str:
        return f"{'max' if largest else 'min'}({a}, {b})"


@pytest.mark.parametrize(
    "e",
    [
        *(7, A, A - B, A * -3 + 2, (A + 2) // 4, (A * 3 - B) % 5, (A + 1) // B, A % B * 2, A * B * B - 1),
        *(maximum(A, B - 3) * 2, minimum((A - 1) % 4 * B, B // 3)),
    ],
    ids=str,
)
def test_text_is_worth_the_expression(e: Index) -> None:
    text = Python().index(e)
    for a, b in itertools.product(range(-9, 10), range(1, 10)):
        values = {"a": a, "b": b}
        assert eval(text, values) == evaluate(e, values)


def test_text() -> None:
    assert Python().index(A * -3 + B + 2) == "(a * -3 + b + 2)"
    assert Python().index(A * 4) == "(a * 4)"


@pytest.mark.parametrize(
    "text", ["", "a b", "f(a, b)", "a.b", "a[0]", "__import__('os')", "1.5", "True", "a ** 2", "0inf", "é(", "\0"]
)
def test_what_is_not_an_index_expression_is_refused(text: str) -> None:
    with pytest.raises(ParseError, match="not an index expression"):
        parse_index(text, symbol)


def test_a_text_that_expands_without_end_is_refused() -> None:
    total = "(" + " + ".join(f"s{n}" for n in range(9)) + ")"
    with pytest.raises(ParseError, match="more than 256 terms"):
        parse_index("*".join([total] * 40), symbol)


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(ParseError, match="not an index expression"):
        parse_index("-" * 50_000 + "1", symbol)
