# SPDX-License-Identifier: Apache-2.0
"""Index expressions in C++, and how they step along a vector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

from fusec.errors import LoweringError
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


@dataclass(frozen=True)
class Step:
    """How an index goes along a vector: ``first + along * v``, ``first`` being a multiple of ``multiple``."""

    along: int
    multiple: int


def step_of(e: Index, vector: Symbol, length: int) -> Step | None:
    """The step of ``e`` where ``vector`` stands for ``first + v``, ``v < length``, with ``first`` a multiple of it.

    None where neighbours do not follow each other evenly.
    """
    match e:
        case int():
            return Step(0, e)
        case Symbol():
            return Step(1, length) if e is vector else Step(0, 1)
        case Sum():
            along, multiple = 0, e.constant
            for atom, k in e.terms:
                found = step_of(atom, vector, length)
                if found is None:
                    return None
                along, multiple = along + k * found.along, gcd(multiple, k * found.multiple)
            return Step(along, multiple)
        case FloorDiv() | Mod():
            return _divided(e, vector, length)
        case Extremum():
            ends = (step_of(e.a, vector, length), step_of(e.b, vector, length))
            return Step(0, 1) if all(end is not None and not end.along for end in ends) else None
        case Product():
            parts = [step_of(f, vector, length) for f in e.factors]
            return Step(0, 1) if all(p is not None and not p.along for p in parts) else None
    raise LoweringError(f"an index of kind {type(e).__name__}")


def _divided(e: FloorDiv | Mod, vector: Symbol, length: int) -> Step | None:
    """``(k*(first + v)) // d`` is one value, and its remainder goes on evenly, where no vector crosses a multiple."""
    value, divisor = step_of(e.value, vector, length), e.divisor
    if value is None or (value.along and not isinstance(divisor, int)):
        return None
    if not value.along:
        other = step_of(divisor, vector, length)
        if other is None or other.along:
            return None
        return Step(0, gcd(value.multiple, divisor) if isinstance(e, Mod) and isinstance(divisor, int) else 1)
    assert isinstance(divisor, int)
    spanned = abs(value.along) * length
    if value.along < 0 or value.multiple % spanned or divisor % spanned:
        return None
    return Step(0, 1) if isinstance(e, FloorDiv) else Step(value.along, gcd(value.multiple, divisor))
