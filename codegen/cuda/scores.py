"""What a score costs per key: integers stay index arithmetic, and what no key changes is computed once a block."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from fusec.ir.index import Symbol, bounds, coefficient, mul, needs_int64, sub, substitute
from fusec.ir.types import f32
from fusec.tile.scalar import Apply, Buffer, Const, IndexValue, Load, ScalarExpr, loads, symbols_in, walk

_EXACT = 2**24
"""Integers up to this are float32 numbers."""


def as_indices(e: ScalarExpr) -> ScalarExpr:
    """Sums, differences and multiples of indices as one index, where 32 bits hold it: ``i64(a) - i64(b) ⇒ a - b``."""
    if not isinstance(e, Apply):
        return e
    args = tuple(map(as_indices, e.args))
    if e.dtype.is_integer and all(isinstance(a, IndexValue | Const) for a in args) and len(args) <= 2:
        parts = [a.index if isinstance(a, IndexValue) else int(a.value.real) for a in args]  # type: ignore[union-attr]
        made = None
        match e.op:
            case "add":
                made = parts[0] + parts[1]
            case "sub":
                made = sub(parts[0], parts[1])
            case "neg":
                made = sub(0, parts[0])
            case "mul" if any(isinstance(p, int) for p in parts):
                made = mul(parts[0], parts[1])
        if made is not None and not needs_int64(made):
            return IndexValue(made, e.dtype)
    return replace(e, args=args)


def over_places(e: ScalarExpr, key: Symbol, place: Buffer) -> ScalarExpr:
    """``f32(base + k*key) ⇒ f32(base) + k*place``, where both are exact: a conversion a block of keys, not one a key.

    ``place`` stands for the key's place in its block, as a number.
    """
    if not isinstance(e, Apply):
        return e
    if e.op == "cast" and e.dtype is f32 and isinstance(e.args[0], IndexValue):
        index = e.args[0].index
        step = None if isinstance(index, int) else coefficient(index, key)
        base = substitute(index, {key: 0}) if step else 0
        if step and all(_is_exact(i) for i in (index, base)):
            moved: ScalarExpr = Load(place, ())
            if step != 1:
                moved = Apply("mul", (moved, Const(float(step), f32)), f32)
            return Apply("add", (replace(e, args=(replace(e.args[0], index=base),)), moved), f32)
    return replace(e, args=tuple(over_places(a, key, place) for a in e.args))


def _is_exact(index: object) -> bool:
    low, high = bounds(index)  # type: ignore[arg-type]
    return low is not None and high is not None and low >= -_EXACT and high <= _EXACT


def constants_of(e: ScalarExpr, varying: Collection[Symbol], tiles: Collection[Buffer]) -> list[ScalarExpr]:
    """The largest float32 parts with some arithmetic or a load in them that no varying symbol or tile enters."""
    if not any(isinstance(n, Apply | Load) for n in walk(e)):
        return []
    still = not symbols_in(e) & set(varying) and not any(x.buffer in tiles for x in loads(e))
    if still and e.dtype is f32 and any(isinstance(n, IndexValue | Load) for n in walk(e)):
        return [e]
    found = [part for a in e.args for part in constants_of(a, varying, tiles)] if isinstance(e, Apply) else []
    return list(dict.fromkeys(found))
