# SPDX-License-Identifier: Apache-2.0
"""Interval arithmetic: on ranges of integers, either end of which may be open, and on closed ranges of numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

Range = tuple[int | None, int | None]
"""Inclusive lower and upper bound; None is unbounded."""

N = TypeVar("N", int, float)


def closed(op: str, of: Sequence[tuple[N, N]]) -> tuple[N, N] | None:
    """Of an elementwise op's result; None where its bounds are not told by such arithmetic."""
    match op, of:
        case "add", [(a, b), (c, d)]:
            return a + c, b + d
        case "sub", [(a, b), (c, d)]:
            return a - d, b - c
        case "mul", [(a, b), (c, d)]:
            ends = a * c, a * d, b * c, b * d
            return min(ends), max(ends)
        case "neg", [(a, b)]:
            return -b, -a
        case "minimum", [(a, b), (c, d)]:
            return min(a, c), min(b, d)
        case "maximum", [(a, b), (c, d)]:
            return max(a, c), max(b, d)
        case _:
            return None


def bits(op: str, a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int] | None:
    """Of a bitwise operation, or a shift to the right, on integers; None where its bounds are not told so simply."""
    masks = [high for low, high in (a, b) if low >= 0]
    if op == "bitwise_and":
        return (0, min(masks)) if masks else None
    if a[0] < 0 or b[0] < 0:
        return None
    if op == "shift_right":
        return 0, a[1] >> b[0]
    return 0, (1 << max(a[1], b[1]).bit_length()) - 1


def scaled_sum(constant: int, parts: Iterable[tuple[Range, int]]) -> Range:
    """Of the constant plus the multiples ``k`` of numbers in ranges."""
    lo: int | None = constant
    hi: int | None = constant
    for (least, most), k in parts:
        if k < 0:
            least, most = most, least
        lo = None if lo is None or least is None else lo + k * least
        hi = None if hi is None or most is None else hi + k * most
    return lo, hi


def quotient(value: Range, divisor: Range) -> Range:
    """Of a floor division by what is not one number: known only where nothing is negative."""
    (lo, hi), (least, most) = value, divisor
    if lo is None or lo < 0 or least is None or least < 0:
        return None, None
    return (0 if most is None else lo // max(most, 1)), (None if hi is None else hi // max(least, 1))


def remainder(divisor: Range) -> Range:
    """Of a remainder, which has the divisor's sign."""
    lo, hi = divisor
    return (None if lo is None else min(lo + 1, 0)), (None if hi is None else max(hi - 1, 0))


def extremum(a: Range, b: Range, *, largest: bool) -> Range:
    """Of the smaller or larger of two numbers."""
    return _end([a[0], b[0]], largest, lower=True), _end([a[1], b[1]], largest, lower=False)


def _end(ends: list[int | None], largest: bool, *, lower: bool) -> int | None:
    known = [x for x in ends if x is not None]
    if len(known) == 2:
        return max(known) if largest else min(known)
    one_is_enough = largest == lower  # a lower bound of max, or an upper bound of min
    return known[0] if known and one_is_enough else None


def product(parts: Sequence[Range]) -> Range:
    """Of a product: known only where nothing is negative."""
    lo, hi = parts[0]
    for nlo, nhi in parts[1:]:
        if lo is None or nlo is None or lo < 0 or nlo < 0:
            return None, None
        lo = lo * nlo
        hi = None if hi is None or nhi is None else hi * nhi
    return lo, hi


def both(a: Range, b: Range) -> Range:
    """What two ranges of one number tell together."""
    return _inner(a[0], b[0], max), _inner(a[1], b[1], min)


def _inner(a: int | None, b: int | None, choose: Callable[[int, int], int]) -> int | None:
    return b if a is None else a if b is None else choose(a, b)
