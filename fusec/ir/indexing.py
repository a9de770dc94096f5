# SPDX-License-Identifier: Apache-2.0
"""What index expressions are asked: their values and steps, the positions and ends of axes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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
    bounds,
    floordiv,
    maximum,
    minimum,
    mod,
    mul,
    product,
    sub,
    symbols_of,
    terms_of,
)

INT32_MAX = 2**31 - 1


def substitute(e: Index, replacements: Mapping[Symbol, Index]) -> Index:
    """``e`` with symbols replaced, simplified again. A replacement must keep to its symbol's range."""
    match e:
        case int():
            return e
        case Symbol():
            return replacements.get(e, e)
        case Sum():
            total: Index = e.constant
            for atom, k in e.terms:
                total = add(total, mul(substitute(atom, replacements), k))
            return total
        case FloorDiv():
            return floordiv(substitute(e.value, replacements), substitute(e.divisor, replacements))
        case Mod():
            return mod(substitute(e.value, replacements), substitute(e.divisor, replacements))
        case Extremum():
            a, b = substitute(e.a, replacements), substitute(e.b, replacements)
            return maximum(a, b) if e.largest else minimum(a, b)
        case Product():
            result: Index = 1
            for f in e.factors:
                result = mul(result, substitute(f, replacements))
            return result
    raise AssertionError(type(e))


def evaluate(e: Index, values: Mapping[str, int]) -> int:
    """The integer that ``e`` is when each symbol has the value given by its name. KeyError if one is missing."""
    result = substitute(e, {s: values[s.name] for s in symbols_of(e)})
    assert isinstance(result, int)
    return result


def slope(e: Index, s: Symbol) -> Index | None:
    """``k`` when ``e = k*s + rest``, neither with ``s`` in it; None when ``e`` is not linear in ``s``."""
    _, terms = terms_of(e)
    total: Index = 0
    for atom, k in terms.items():
        if s not in symbols_of(atom):
            continue
        factors = atom.factors if isinstance(atom, Product) else (atom,)
        others = [f for f in factors if f is not s]
        if len(others) != len(factors) - 1 or any(s in symbols_of(f) for f in others):
            return None
        total = add(total, mul(product(others), k))
    return total


def most(e: Index) -> int:
    """The largest value that ``e`` can have. ValueError where nothing bounds it."""
    found = bounds(e)[1]
    if found is None:
        raise ValueError(f"{e} has no upper bound; give its symbols ranges")
    return found


def last(extent: Index) -> Index:
    """The last index of an axis; 0 for an empty one. A symbolic extent is at least 1."""
    return max(extent - 1, 0) if isinstance(extent, int) else sub(extent, 1)


def ceildiv(a: Index, b: int) -> Index:
    """``a / b`` rounded up."""
    return floordiv(add(a, b - 1), b)


def round_up(n: int, step: int) -> int:
    """The least multiple of ``step`` that is not below ``n``."""
    return -(-n // step) * step


def pow2(n: int) -> int:
    """The least power of two that is not below ``n``."""
    return 1 << max(n - 1, 0).bit_length()


def coefficient(e: Index, s: Symbol) -> int | None:
    """``k`` when ``e = k*s + rest`` and the rest does not contain ``s``; None when ``e`` is not linear in it."""
    _, terms = terms_of(e)
    if any(s in symbols_of(atom) for atom in terms if atom is not s):
        return None
    return terms.get(s, 0)


def linearize(indices: Iterable[Index], shape: Iterable[Index]) -> Index:
    """The row-major flat index of a multi-index."""
    flat: Index = 0
    for i, extent in zip(indices, shape, strict=True):
        flat = add(mul(flat, extent), i)
    return flat


def delinearize(flat: Index, shape: tuple[Index, ...]) -> tuple[Index, ...]:
    """The row-major multi-index of a flat index known to be in range. The inverse of :func:`linearize`."""
    result: list[Index] = []
    rest = flat
    for position in range(len(shape) - 1, -1, -1):
        extent = shape[position]
        if position == 0:
            result.append(rest)
        else:
            result.append(mod(rest, extent))
            rest = floordiv(rest, extent)
    if shape and shape[0] == 1:
        result[-1] = 0
    return tuple(reversed(result))


def needs_int64(*extremes: Index) -> bool:
    """True when any of the expressions can pass the range of a signed 32-bit integer."""
    for e in extremes:
        lo, hi = bounds(e)
        if lo is None or hi is None or hi > INT32_MAX or lo < -INT32_MAX - 1:
            return True
    return False


def divisions_in(e: Index) -> set[Expr]:
    """Every quotient and remainder in ``e``."""
    match e:
        case Sum():
            return {d for atom, _ in e.terms for d in divisions_in(atom)}
        case FloorDiv() | Mod():
            return {e} | divisions_in(e.value) | divisions_in(e.divisor)
        case Extremum():
            return divisions_in(e.a) | divisions_in(e.b)
        case Product():
            return {d for f in e.factors for d in divisions_in(f)}
    return set()
