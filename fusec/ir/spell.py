"""Index expressions as text of another language: one traversal, and for each language what it spells otherwise."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import assert_never

from fusec.ir.index import Expr, Extremum, FloorDiv, Index, Mod, Product, Sum, Symbol


class IndexSpeller(ABC):
    """Spells index expressions; sums and products as C, Python and their family do."""

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
