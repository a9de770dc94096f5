# SPDX-License-Identifier: Apache-2.0
"""What a score costs per key: integers stay index arithmetic, and what no key changes is computed once a row."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from math import inf

from fusec.ir.index import Index, Symbol, bounds, sub, symbols_of
from fusec.ir.indexing import coefficient, needs_int64, substitute
from fusec.ir.types import f32
from fusec.tile.integers import applied
from fusec.tile.scalar import (
    Apply,
    Buffer,
    Const,
    IndexValue,
    Load,
    ScalarExpr,
    loads,
    rewrite_upward,
    symbols_in,
    walk,
)

_EXACT = 2**24
"""Integers up to this are float32 numbers."""
_MODERATE = 2.0**60
"""A product of two numbers up to this is finite."""
_NORMAL = 2.0**-126
_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}


def as_indices(e: ScalarExpr) -> ScalarExpr:
    """Integer arithmetic on indices as one index, where 32 bits hold it: ``i64(a) - i64(b) ⇒ a - b``."""
    return rewrite_upward(e, _as_index)


def _as_index(e: Apply) -> ScalarExpr:
    if not e.dtype.is_integer or len(e.args) > 2 or not all(isinstance(a, IndexValue | Const) for a in e.args):
        return e
    parts = [a.index if isinstance(a, IndexValue) else int(a.value.real) for a in e.args]  # type: ignore[union-attr]
    made = applied(e.op, parts)
    return e if made is None else IndexValue(made, e.dtype)


def over_offsets(e: ScalarExpr, key: Symbol, offset: Buffer) -> ScalarExpr:
    """``f32(base + k*key) ⇒ f32(base) + k*offset``, where both are exact: a conversion a block of keys, not one a key.

    ``offset`` stands for the key's offset in its block, as a number.
    """

    def change(e: Apply) -> ScalarExpr:
        if e.op != "cast" or e.dtype is not f32 or not isinstance(e.args[0], IndexValue):
            return e
        index = e.args[0].index
        step = None if isinstance(index, int) else coefficient(index, key)
        base = substitute(index, {key: 0}) if step else 0
        if not step or not all(_is_exact(i) for i in (index, base)):
            return e
        moved: ScalarExpr = Load(offset, ())
        if step != 1:
            moved = Apply("mul", (moved, Const(float(step), f32)), f32)
        return Apply("add", (replace(e, args=(replace(e.args[0], index=base),)), moved), f32)

    return rewrite_upward(e, change)


def folded(e: ScalarExpr) -> ScalarExpr:
    """``x * a * b ⇒ x * (a * b)`` and ``x * a / b ⇒ x * (a / b)`` for constants, where that is a normal number."""
    return rewrite_upward(e, _folded)


def _folded(e: Apply) -> ScalarExpr:
    outer = _factor(e)
    inner = _factor(e.args[0]) if outer is not None else None
    if outer is None or inner is None:
        return e
    together = inner * outer
    if not _NORMAL <= abs(together) < 1 / _NORMAL:
        return e
    return Apply("mul", (e.args[0].args[0], Const(together, e.dtype)), e.dtype)  # type: ignore[union-attr]


def _factor(e: ScalarExpr) -> float | None:
    """What a number is multiplied by, if by a constant."""
    if not isinstance(e, Apply) or e.op not in ("mul", "div") or not e.dtype.is_float or e.dtype.bits == 64:
        return None
    by = e.args[1]
    if not isinstance(by, Const) or not isinstance(by.value, int | float):
        return None
    if e.op == "mul":
        return float(by.value)
    return 1.0 / by.value if by.value else None


def spread(e: ScalarExpr, key: Symbol, offset: Buffer, tiles: Collection[Buffer]) -> ScalarExpr:
    """``a * (b + offset) ⇒ a * b + a * offset``, where no key enters a and b: one multiply-add a key.

    Where a and b are known to be moderate, so that no infinity comes of it.
    """

    def change(e: Apply) -> ScalarExpr:
        if e.op != "mul" or e.dtype is not f32:
            return e
        for a, total in (e.args, e.args[::-1]):
            if isinstance(total, Apply) and total.op == "add":
                base, moved = total.args
                still = all(_is_still(x, {key}, {*tiles, offset}) and _is_moderate(x) for x in (a, base))
                if still and any(x.buffer is offset for x in loads(moved)):
                    return Apply("add", (Apply("mul", (a, base), f32), Apply("mul", (a, moved), f32)), f32)
        return e

    return rewrite_upward(e, change)


def compared_to_key(e: ScalarExpr, key: Symbol) -> ScalarExpr:
    """``key - row + c > 0 ⇒ key > row - c``: what a key is compared to is the same for all keys.

    A distance has two such ends: ``abs(key - row) <= c ⇒ (key <= row + c) & (key >= row - c)``.
    """

    def change(e: Apply) -> ScalarExpr:
        ends = _ends_of_distance(e)
        if ends is not None:
            return Apply("logical_and", (change(ends[0]), change(ends[1])), e.dtype)
        parts = [_integer(a) for a in e.args]
        if e.op not in _MIRRORED or len(parts) != 2 or any(p is None for p in parts):
            return e
        difference = sub(parts[0], parts[1])  # type: ignore[arg-type]
        step = None if isinstance(difference, int) else coefficient(difference, key)
        if step not in (1, -1) or needs_int64(difference):
            return e
        rest = substitute(difference, {key: 0})
        bound = sub(0, rest) if step == 1 else rest
        if needs_int64(bound):
            return e
        kind, op = e.args[0].dtype, e.op if step == 1 else _MIRRORED[e.op]
        return Apply(op, (IndexValue(key, kind), IndexValue(bound, kind)), e.dtype)

    return rewrite_upward(e, change)


def _ends_of_distance(e: Apply) -> tuple[Apply, Apply] | None:
    """``abs(i) <= c`` as two comparisons, where 32 bits hold it; None for anything else."""
    if e.op not in ("le", "lt") or not isinstance(e.args[0], Apply) or e.args[0].op != "abs":
        return None
    (inner,) = e.args[0].args
    distance, most = _integer(inner), _integer(e.args[1])
    if distance is None or not isinstance(most, int) or needs_int64(distance) or needs_int64(most):
        return None
    low, high = (IndexValue(n, inner.dtype) for n in (-most, most))
    return replace(e, args=(inner, high)), Apply(_MIRRORED[e.op], (inner, low), e.dtype)


def _integer(e: ScalarExpr) -> Index | None:
    if isinstance(e, IndexValue) and e.dtype.is_integer:
        return e.index
    return int(e.value.real) if isinstance(e, Const) and e.dtype.is_integer else None


def bounds_of_keys(e: ScalarExpr, key: Symbol) -> list[Index]:
    """What ``compared_to_key`` left for keys to be compared to, where it is no constant."""
    found: dict[Index, None] = {}
    for n in walk(e):
        if isinstance(n, Apply) and n.op in _MIRRORED and isinstance(n.args[1], IndexValue):
            key_first = n.args[0] == IndexValue(key, n.args[0].dtype)
            bound = n.args[1].index
            if key_first and not isinstance(bound, int) and key not in symbols_of(bound):
                found[bound] = None
    return list(found)


def range_of(e: ScalarExpr) -> tuple[float, float]:
    """The least and greatest value that a scalar may have. (-inf, inf) where little is known, as of what is loaded."""
    match e:
        case Const():
            value = float(e.value.real)
            return (value, value) if value == value else (-inf, inf)
        case IndexValue():
            low, high = bounds(e.index)
            return (-inf if low is None else float(low), inf if high is None else float(high))
        case Load():
            return -inf, inf
    parts = [range_of(a) for a in e.args]
    if any(abs(end) == inf for part in parts for end in part) and e.op != "tanh":
        return -inf, inf
    ends = [end for part in parts for end in part]
    match e.op:
        case "cast" if e.dtype.is_float:
            return parts[0]
        case "neg":
            return -ends[1], -ends[0]
        case "add":
            return ends[0] + ends[2], ends[1] + ends[3]
        case "sub":
            return ends[0] - ends[3], ends[1] - ends[2]
        case "mul":
            ends_of_products = [a * b for a in parts[0] for b in parts[1]]
            return min(ends_of_products), max(ends_of_products)
        case "div" if ends[2] == ends[3] and ends[2]:
            quotients = [a / ends[2] for a in parts[0]]
            return min(quotients), max(quotients)
        case "exp2" if ends[1] < 127:
            return 0.0, 2.0 ** ends[1]
        case "exp" if ends[1] < 88:
            return 0.0, 2.0 ** (ends[1] * 1.4427)
        case "tanh":
            return -1.0, 1.0
        case _:
            return -inf, inf


def _is_moderate(e: ScalarExpr) -> bool:
    low, high = range_of(e)
    return low >= -_MODERATE and high <= _MODERATE


def _is_exact(index: object) -> bool:
    low, high = bounds(index)  # type: ignore[arg-type]
    return low is not None and high is not None and low >= -_EXACT and high <= _EXACT


def constants_of(e: ScalarExpr, varying: Collection[Symbol], tiles: Collection[Buffer]) -> list[ScalarExpr]:
    """The largest parts, with some arithmetic or a load in them, that no varying symbol or tile enters.

    Those that a float32 variable holds.
    """
    found: list[ScalarExpr] = []
    seen: set[int] = set()
    waiting = [e]
    while waiting:
        part = waiting.pop()
        if id(part) in seen or not isinstance(part, Apply | Load):
            continue
        seen.add(id(part))
        is_float = part.dtype.is_float and part.dtype.bits < 64
        if is_float and any(isinstance(n, IndexValue | Load) for n in walk(part)) and _is_still(part, varying, tiles):
            found.append(part)
        elif isinstance(part, Apply):
            waiting.extend(reversed(part.args))
    return list(dict.fromkeys(found))


def _is_still(e: ScalarExpr, varying: Collection[Symbol], tiles: Collection[Buffer]) -> bool:
    return not symbols_in(e) & set(varying) and not any(x.buffer in tiles for x in loads(e))
