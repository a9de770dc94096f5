"""Index expressions in C++, and how they step along a vector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd
from typing import assert_never

from fusec.errors import LoweringError
from fusec.ir.index import Expr, Extremum, FloorDiv, Index, Mod, Product, Sum, Symbol, bounds, needs_int64


def spell_index(e: Index, symbols: Mapping[Symbol, str]) -> str:
    """The expression over the variables of its symbols; 64-bit where it, or a part of it, may pass 2**31."""
    return _Speller(symbols, wide=_is_wide(e)).spell(e)


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
class _Speller:
    symbols: Mapping[Symbol, str]
    wide: bool

    def spell(self, e: Index) -> str:
        match e:
            case int():
                return str(e)
            case Symbol():
                name = self.symbols[e]
                return f"i64({name})" if self.wide and not name.isdigit() else name
            case Sum():
                terms = [self.spell(a) if k == 1 else f"{self.spell(a)} * {k}" for a, k in e.terms]
                text = " + ".join([*terms, *([str(e.constant)] if e.constant else [])])
                return f"({text.replace('+ -', '- ')})" if len(terms) > 1 or e.constant else text
            case FloorDiv():
                return self._divide(e.value, e.divisor, "/")
            case Mod():
                return self._divide(e.value, e.divisor, "%")
            case Extremum():
                kind = "i64" if self.wide else "int"
                return f"{'maximum' if e.largest else 'minimum'}<{kind}>({self.spell(e.a)}, {self.spell(e.b)})"
            case Product():
                return f"({' * '.join(map(self.spell, e.factors))})"
            case Expr():
                raise AssertionError(type(e))
            case _:
                assert_never(e)

    def _divide(self, value: Expr, divisor: Index, sign: str) -> str:
        """C++ divides towards zero: what may be negative is divided by a function of ours."""
        low = bounds(value)[0]
        a, b = self._factor(value), self._factor(divisor)
        if low is not None and low >= 0:
            return f"({a} {sign} {b})"
        kind = "i64" if self.wide else "int"
        return f"{'floor_divide' if sign == '/' else 'floor_remainder'}<{kind}>({a}, {b})"

    def _factor(self, e: Index) -> str:
        """An operand of a division."""
        text = self.spell(e)
        return f"({text})" if isinstance(e, Sum) and not text.startswith("(") else text


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
