# SPDX-License-Identifier: Apache-2.0
"""Index expressions in C++."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fusec.ir.index import Expr, Extremum, FloorDiv, Index, Mod, Product, Sum, Symbol, bounds
from fusec.ir.index_text import IndexSpeller
from fusec.ir.indexing import needs_int64


def spell_index(e: Index, symbols: Mapping[Symbol, str]) -> str:
    """The expression over the variables of its symbols; 64-bit where it, or a part of it, may pass 2**31."""
    return _Speller(symbols, wide=_is_wide(e)).index(e)


def _is_wide(e: Index) -> bool:
    if needs_int64(e):
        return True
    match e:
        case Sum():
            return any(_is_wide(a) or needs_int64(a * k) for a, k in e.terms)
        case FloorDiv() | Mod():
            return _is_wide(e.value) or _is_wide(e.divisor)
        case Extremum():
            return _is_wide(e.a) or _is_wide(e.b)
        case Product():
            return any(map(_is_wide, e.factors))
        case _:
            return False


@dataclass(frozen=True)
class _Speller(IndexSpeller):
    symbols: Mapping[Symbol, str]
    wide: bool

    @property
    def kind(self) -> str:
        return "i64" if self.wide else "int"

    def symbol(self, s: Symbol) -> str:
        name = self.symbols[s]
        return f"i64({name})" if self.wide and not name.isdigit() else name

    def sum(self, e: Sum) -> str:
        text = super().sum(e).replace("+ -", "- ")
        return text if len(e.terms) > 1 or e.constant else text[1:-1]

    def quotient(self, value: Expr, divisor: Index) -> str:
        return self._divide(value, divisor, "/", "floor_divide")

    def remainder(self, value: Expr, divisor: Index) -> str:
        return self._divide(value, divisor, "%", "floor_remainder")

    def _divide(self, value: Expr, divisor: Index, sign: str, function: str) -> str:
        """C++ divides towards zero: what may be negative is divided by a function of ours."""
        low = bounds(value)[0]
        a, b = self._factor(value), self._factor(divisor)
        return f"({a} {sign} {b})" if low is not None and low >= 0 else f"{function}<{self.kind}>({a}, {b})"

    def _factor(self, e: Index) -> str:
        """An operand of a division."""
        text = self.index(e)
        return f"({text})" if isinstance(e, Sum) and not text.startswith("(") else text

    def extremum(self, a: str, b: str, *, largest: bool) -> str:
        return f"{'maximum' if largest else 'minimum'}<{self.kind}>({a}, {b})"
