# SPDX-License-Identifier: Apache-2.0
"""Where the values that a consumer reads are 0 whatever the scores: what a mask of indices, or of data, leaves out.

A condition is one of them where the value is 0 as soon as the choice that it makes is made the other way. That is found
by computing the value with numbers, and with *some* finite number for what is data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from fusec.ir.index import Index, Symbol, bounds
from fusec.ir.types import bool_
from fusec.passes.families.attention.bounds import key_tests
from fusec.passes.families.attention.found_keys import SCANNED, FoundKeys, KeyFinder
from fusec.passes.families.scores.elements import ScoreElements
from fusec.passes.lower.context import LoweringContext
from fusec.passes.lower.mask import KeyRange, Live, range_of, to_index
from fusec.tile.nodes import Iter
from fusec.tile.scalar import Apply, Const, IndexValue, Load, ScalarExpr, loads, rewrite, symbols_in, walk


class _Some:
    """A finite number that is not known."""


_SOME = _Some()
_Number = float | _Some | None
"""A number, some finite number, or None: anything, NaN as well."""


def zero_conditions(value: ScalarExpr) -> list[Live]:
    """What must hold for a value not to be 0, as far as the expression's shape tells."""
    found: list[Live] = []
    for node in walk(value):
        for live, instead in _choices(node):
            if live not in found and _is_zero(value, node, instead):
                found.append(live)
    return found


def common_conditions(e: ScoreElements) -> list[Live]:
    """What must hold for anything other than 0 to be consumed: of indices and data, not of the products."""
    raws = {p.raw for p in e.products}
    found = [zero_conditions(score) for score in e.scores]
    outer = [c for c in found[0] if not any(load.buffer in raws for load in loads(c.condition))]
    return [c for c in outer if all(c in others for others in found[1:])]


def range_of_columns(conditions: list[Live], e: ScoreElements, rows: int, columns: int, block: Symbol) -> KeyRange:
    """The columns that a block of rows visits, as far as indices tell.

    Blocks that indices leave whole are known where data are not asked: then data are asked there, and indices are not.
    """
    of_indices = [c for c in conditions if not loads(c.condition)]
    extents = (e.rows, rows), (e.columns, columns)
    found = range_of(of_indices, e.row, e.column, *extents, block)
    if len(of_indices) == len(conditions):
        return found
    together = range_of(conditions, e.row, e.column, *extents, block)
    return together if (together.start, together.stop) != (found.start, found.stop) else found


def find_columns(
    context: LoweringContext,
    e: ScoreElements,
    conditions: list[Live],
    shift: dict[Symbol, Index],
    rows: Iter,
    step: int,
    within: tuple[Index, Index] | None = None,
    scanned: int = SCANNED,
) -> FoundKeys | None:
    """Code that finds which columns a mask made of data leaves to a block of rows; None where the mask doesn't tell.
    For ``within`` and ``scanned`` see :class:`KeyFinder`.

    Values are 0 elsewhere where what is read of a row, or of a column, is finite. A row of attention that sees no key
    has an infinite maximum: its weights are NaN.
    """
    tests = key_tests(conditions, e.row, e.column)
    if not tests:
        return None
    read = {load for score in e.scores for load in loads(score) if load.buffer.space == "parameter"}
    finite = [x for x in read if x.dtype.is_float and not {e.row, e.column} <= symbols_in(x)]
    finite.sort(key=lambda load: (load.buffer.name, str(load.index)))
    known = finite, within, scanned
    return KeyFinder(tests, e.column, shift, rows, e.columns, step, context.unique, *known).find()


def _choices(node: ScalarExpr) -> list[tuple[Live, ScalarExpr]]:
    """The conditions of a choice, with what the choice is where they don't hold."""
    match node:
        case Apply("select", (condition, a, b), _):
            return [(Live(condition, True, True), b), (Live(condition, False, True), a)]
        case Apply("cast" | "copy", (Apply() as condition,), dtype) if condition.dtype is bool_ and dtype is not bool_:
            return [(Live(condition, True, True), Const(0.0 if dtype.is_float else 0, dtype))]
        case _:
            return []


def _is_zero(value: ScalarExpr, node: ScalarExpr, instead: ScalarExpr) -> bool:
    if _number(instead, {}) is _SOME:
        return False
    changed = rewrite(value, lambda n: instead if n is node or n == node else None)
    return _number(changed, {}) == 0.0


def _number(e: ScalarExpr, known: dict[int, _Number]) -> _Number:
    if id(e) not in known:
        known[id(e)] = _compute(e, known)
    return known[id(e)]


def _compute(e: ScalarExpr, known: dict[int, _Number]) -> _Number:
    match e:
        case Const(value, _) if isinstance(value, bool | int | float):
            return None if math.isnan(value) else float(value)
        case Load() | IndexValue():
            return _SOME
        case Apply("select", (_, a, b), _):
            x, y = _number(a, known), _number(b, known)
            if x is None or y is None:
                return None
            return x if x == y else _SOME if _is_finite(x) and _is_finite(y) else None
        case Apply("cast" | "copy", (a,), _):
            return _number(a, known)
        case Apply("exp" | "exp2" | "pow") if not loads(e) and _number(e.args[-1], known) is _SOME:
            return _of_index(e)
        case Apply(op, args, _):
            return _apply(op, [_number(a, known) for a in args])
        case _:
            return None


def _of_index(e: Apply) -> _Number:
    """A power that is made of indices: some number where its bounds say that it does not overflow."""
    index = to_index(e.args[-1])
    bases = {"exp": math.e, "exp2": 2.0}
    base = bases.get(e.op) if e.op in bases else e.args[0].value if isinstance(e.args[0], Const) else None
    ends = bounds(index) if index is not None else (None, None)
    if not isinstance(base, float) or base <= 0 or ends[0] is None or ends[1] is None:
        return None
    return _SOME if max(abs(math.log2(base) * end) for end in ends if end is not None) < _LARGEST_POWER else None


_LARGEST_POWER = 126
"""Powers of two that any float has, but f16, which kernels hold in f32."""


def _apply(op: str, args: list[_Number]) -> _Number:
    if any(a is None for a in args):
        return None
    if all(isinstance(a, float) for a in args) and op in _EXACT:
        return _exactly(op, [a for a in args if isinstance(a, float)])
    match op, args:
        case "mul", [a, b]:
            return 0.0 if (a == 0.0 and _is_finite(b)) or (b == 0.0 and _is_finite(a)) else _finite(a, b)
        case "div", [a, b]:
            if isinstance(b, float) and math.isinf(b) and _is_finite(a):
                return 0.0
            return 0.0 if a == 0.0 and b is _SOME else _finite(a, b) if b != 0.0 else None
        case "add" | "sub", [a, b]:
            for number, sign in ((a, 1.0), (b, -1.0 if op == "sub" else 1.0)):
                if isinstance(number, float) and math.isinf(number):
                    return sign * number if _is_finite(a) != _is_finite(b) else None
            return _SOME
        case "maximum" | "minimum", [a, b]:
            lowest = -math.inf if op == "maximum" else math.inf
            return b if a == lowest else a if b == lowest else _finite(a, b)
        case _:
            return _finite(*args)


def _is_finite(a: _Number) -> bool:
    return a is _SOME or (isinstance(a, float) and math.isfinite(a))


def _finite(*args: _Number) -> _Number:
    return _SOME if all(map(_is_finite, args)) else None


def _exactly(op: str, args: list[float]) -> _Number:
    try:
        value = _EXACT[op](*args)
    except (ArithmeticError, ValueError):
        return None
    return None if math.isnan(value) else value


def _quotient(a: float, b: float) -> float:
    return a / b


_EXACT: Mapping[str, Callable[..., float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": _quotient,
    "neg": lambda a: -a,
    "abs": abs,
    "maximum": max,
    "minimum": min,
    "exp": math.exp,
    "exp2": lambda a: 2.0**a,
    "tanh": math.tanh,
    "erf": math.erf,
    "sqrt": math.sqrt,
}
"""Of numbers, infinities as well; an error is no number."""
