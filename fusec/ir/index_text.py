# SPDX-License-Identifier: Apache-2.0
"""Index expressions as text: read back, and spelled in other languages."""

from __future__ import annotations

import ast
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import assert_never

from fusec.errors import ParseError
from fusec.ir.index import (
    Expr,
    Extremum,
    FloorDiv,
    Index,
    Mod,
    Product,
    Sum,
    Symbol,
    add,
    floordiv,
    maximum,
    minimum,
    mod,
    mul,
    sub,
)


class IndexSpeller(ABC):
    """Spells index expressions by one traversal; sums and products as C, Python and their family do."""

    def index(self, e: Index) -> str:
        """The expression's text, an operand of ``+`` or ``*`` as it stands."""
        match e:
            case int():
                return self.integer(e)
            case Symbol():
                return self.symbol(e)
            case Sum():
                return self.sum(e)
            case FloorDiv():
                return self.quotient(e.value, e.divisor)
            case Mod():
                return self.remainder(e.value, e.divisor)
            case Extremum():
                return self.extremum(self.index(e.a), self.index(e.b), largest=e.largest)
            case Product():
                return f"({' * '.join(map(self.index, e.factors))})"
            case Expr():
                raise AssertionError(type(e))
            case _:
                assert_never(e)

    def integer(self, value: int) -> str:
        return str(value)

    def sum(self, e: Sum) -> str:
        terms = [self.index(a) if k == 1 else f"{self.index(a)} * {k}" for a, k in e.terms]
        return f"({' + '.join([*terms, *([str(e.constant)] if e.constant else [])])})"

    @abstractmethod
    def symbol(self, s: Symbol) -> str: ...

    @abstractmethod
    def quotient(self, value: Expr, divisor: Index) -> str:
        """Floor division by what is positive."""

    @abstractmethod
    def remainder(self, value: Expr, divisor: Index) -> str:
        """The remainder of that."""

    @abstractmethod
    def extremum(self, a: str, b: str, *, largest: bool) -> str: ...


def parse_index(text: str, lookup: Callable[[str], Index]) -> Index:
    """Reads what ``str`` writes. ``lookup`` gives the symbol of a name.

    ParseError on anything else, ZeroDivisionError for a division by 0.
    """
    if not _ALLOWED.fullmatch(text):
        raise ParseError(f"not an index expression: {text[:80]!r}")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        return _from_ast(tree, text, lookup)
    except ParseError:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ParseError(f"not an index expression: {text[:80]!r}") from None


_ALLOWED = re.compile(r"(?:(?!\b\d+[^\W\d])[\w\s+\-*/%(),])*")
"""Names, integers and operators; a number that runs into a letter would make Python warn."""

MOST_TERMS = 256
"""A text that expands to a longer sum is refused: a short one can stand for an endless product."""

_BINARY: dict[type[ast.operator], Callable[[Index, Index], Index]] = {
    ast.Add: add,
    ast.Sub: sub,
    ast.Mult: mul,
    ast.FloorDiv: floordiv,
    ast.Mod: mod,
}


def _from_ast(node: ast.expr, text: str, lookup: Callable[[str], Index]) -> Index:
    match node:
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            return number
        case ast.Name(id=name):
            return lookup(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return mul(_from_ast(operand, text, lookup), -1)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            result = _BINARY[type(op)](_from_ast(left, text, lookup), _from_ast(right, text, lookup))
            if isinstance(result, Sum) and len(result.terms) > MOST_TERMS:
                raise ParseError(f"index expression of more than {MOST_TERMS} terms: {text[:80]!r}")
            return result
        case ast.Call(func=ast.Name(id="min" | "max" as which), args=[a, b]):
            choose = maximum if which == "max" else minimum
            return choose(_from_ast(a, text, lookup), _from_ast(b, text, lookup))
    raise ParseError(f"not an index expression: {text[:80]!r}")
