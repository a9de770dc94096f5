# SPDX-License-Identifier: Apache-2.0
"""Indices that repeat along the lanes of a block: ``k // 2`` of packed nibbles, ``k // 128`` of a group's scale.

A block starts at a multiple of its lanes. There such an index is a number that all lanes share and a step that each
lane knows, so that what is read are neighbours, or one element, and not each lane's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from fusec.ir import index as ix
from fusec.ir.index import FloorDiv, Index, Mod, Sum, Symbol
from fusec.ir.indexing import substitute


@dataclass(frozen=True)
class LanePattern:
    """``first`` at the block number ``block``, and on each lane so much more."""

    first: Index
    block: Symbol
    steps: tuple[int, ...]

    @property
    def span(self) -> int:
        """How many neighbours the lanes read, from the first lane's on; 0 where they go back, or leave most out."""
        span = max(self.steps) + 1
        return span if min(self.steps) == 0 and span <= len(self.steps) and span & (span - 1) == 0 else 0


def lane_pattern(e: Index, symbol: Symbol, lanes: int) -> LanePattern | None:
    """The pattern of an index on the lanes of a whole block; None where lanes differ from block to block."""
    low, high = ix.bounds(symbol)
    if low != 0 or high is None or high < lanes - 1:
        return None
    block = ix.symbol("block", 0, high // lanes)
    first = _at(e, symbol, ix.mul(block, lanes))
    steps = []
    for lane in range(lanes):
        step = ix.sub(_at(e, symbol, ix.add(ix.mul(block, lanes), lane)), first)
        if not isinstance(step, int):
            return None
        steps.append(step)
    return LanePattern(first, block, tuple(steps))


def _at(e: Index, symbol: Symbol, value: Index) -> Index:
    """``e`` with the symbol replaced, and quotients of multiples reduced."""
    match e:
        case Symbol():
            return value if e is symbol else e
        case Sum():
            total: Index = e.constant
            for atom, k in e.terms:
                total = ix.add(total, ix.mul(_at(atom, symbol, value), k))
            return total
        case FloorDiv():
            return _quotient(_at(e.value, symbol, value), _at(e.divisor, symbol, value))
        case Mod():
            whole, divisor = _at(e.value, symbol, value), _at(e.divisor, symbol, value)
            return ix.sub(whole, ix.mul(_quotient(whole, divisor), divisor))
        case _:
            return substitute(e, {symbol: value})


def _quotient(a: Index, b: Index) -> Index:
    """``(g * x + r) // (g * d)`` as ``x // d``, where ``0 <= r < g``."""
    if not (isinstance(a, Sum) and isinstance(b, int) and b > 0):
        return ix.floordiv(a, b)
    common = gcd(b, *(k for _, k in a.terms))
    reduced: Index = a.constant // common
    for atom, k in a.terms:
        reduced = ix.add(reduced, ix.mul(atom, k // common))
    return ix.floordiv(reduced, b // common)
