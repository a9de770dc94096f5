# SPDX-License-Identifier: Apache-2.0
"""How an index steps along a vector."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from fusec.ir.index import Extremum, FloorDiv, Index, Mod, Product, Sum, Symbol


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
    raise TypeError(f"an index of kind {type(e).__name__}")


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


def stays_along(e: Index, axis: Symbol, count: int) -> bool:
    """Whether so many neighbours along an axis, from a multiple of it on, have the same value."""
    step = step_of(e, axis, count)
    return step is not None and step.along == 0
