# SPDX-License-Identifier: Apache-2.0
"""Index arithmetic on loaded values: what a view does to a gather's subscript, as scalar expressions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from fusec.ir.index import Expr, Extremum, FloorDiv, Index, Mod, Product, Sum, Symbol, symbols_of
from fusec.ir.types import i64
from fusec.tile.scalar import Apply, Const, IndexValue, Load, ScalarExpr, Subscript, rewrite


def fill_symbols(element: ScalarExpr, loaded: Mapping[Symbol, ScalarExpr]) -> ScalarExpr:
    """The expression with index symbols that stand for loaded values replaced by those values."""

    def change(node: ScalarExpr) -> ScalarExpr | None:
        match node:
            case IndexValue(index, dtype) if not loaded.keys().isdisjoint(symbols_of(index)):
                number = as_scalar(index, loaded)
                return number if dtype == i64 else Apply("cast", (number,), dtype)
            case Load(buffer, index):
                filled = tuple(_subscript(i, loaded) for i in index)
                return Load(buffer, filled) if any(a is not b for a, b in zip(filled, index)) else None
        return None

    return rewrite(element, change)


def _subscript(i: Subscript, loaded: Mapping[Symbol, ScalarExpr]) -> Subscript:
    if not isinstance(i, int | Expr):
        return fill_symbols(i, loaded)
    if isinstance(i, int) or loaded.keys().isdisjoint(symbols_of(i)):
        return i
    return loaded[i] if isinstance(i, Symbol) else as_scalar(i, loaded)


def as_scalar(e: Index, loaded: Mapping[Symbol, ScalarExpr]) -> ScalarExpr:
    """An index expression over loaded values as arithmetic on i64."""
    if isinstance(e, int):
        return Const(e, i64)
    if loaded.keys().isdisjoint(symbols_of(e)):
        return IndexValue(e)
    match e:
        case Symbol():
            value = loaded[e]
            return value if value.dtype == i64 else Apply("cast", (value,), i64)
        case Sum():
            terms = [_times(as_scalar(atom, loaded), k) for atom, k in e.terms]
            if e.constant:
                terms.append(Const(e.constant, i64))
            return reduce(lambda a, b: Apply("add", (a, b), i64), terms)
        case FloorDiv():
            return Apply("floordiv", (as_scalar(e.value, loaded), as_scalar(e.divisor, loaded)), i64)
        case Mod():
            return Apply("remainder", (as_scalar(e.value, loaded), as_scalar(e.divisor, loaded)), i64)
        case Extremum():
            name = "maximum" if e.largest else "minimum"
            return Apply(name, (as_scalar(e.a, loaded), as_scalar(e.b, loaded)), i64)
        case Product():
            return reduce(lambda a, b: Apply("mul", (a, b), i64), [as_scalar(f, loaded) for f in e.factors])
        case _:
            raise AssertionError(type(e))


def _times(value: ScalarExpr, k: int) -> ScalarExpr:
    return value if k == 1 else Apply("mul", (value, Const(k, i64)), i64)
