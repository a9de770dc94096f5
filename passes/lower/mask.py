# SPDX-License-Identifier: Apache-2.0
"""Which blocks of keys a mask leaves anything in, from the mask's index expression by interval analysis.

A score is *masked* where it is -inf, or a constant so low that its exponential is exactly 0 beside any other
score. Blocks in which every score is masked are not visited.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isinf

from fusec.ir.attributes import Scalar
from fusec.ir.index import Index, Symbol, add, bounds, floordiv, maximum, minimum, mod, mul, sub, symbol, symbols_of
from fusec.ir.indexing import most, substitute
from fusec.ir.types import f32
from fusec.tile.scalar import Apply, Const, IndexValue, Load, ScalarExpr, rewrite, walk

Spans = Sequence[tuple[int, int]]
"""First and one past the last key tile of neighbouring query blocks."""

LOWEST_SCORE = -1e30
"""Fill values at or below this are masks. Real scores are far above it, so exp(fill - max) is 0 in f32 and f64."""


@dataclass(frozen=True)
class Live:
    """``condition`` must be ``wanted`` for a score to count; ``exact`` when the fill is -inf."""

    condition: ScalarExpr
    wanted: bool
    exact: bool


@dataclass(frozen=True)
class KeyRange:
    """Keys ``[start, stop)`` that a block of queries visits; ``start`` is a multiple of the key tile.

    ``full``: the part of them, whole tiles, in which the mask hides nothing and no key is beyond the last; None
    where it has no simple bounds. ``conditions`` are the mask's, as :func:`live_conditions` finds them.
    """

    start: Index
    stop: Index
    skipped: float
    full: tuple[Index, Index] | None = None
    conditions: tuple[Live, ...] = ()

    def longest(self, block: Symbol, blocks: int) -> int:
        """The most keys that one of so many blocks of queries visits; extents are known."""
        count = sub(self.stop, self.start)
        numbers = range(blocks) if block in symbols_of(count) else range(min(blocks, 1))
        found = (substitute(count, {block: number}) for number in numbers)
        return max((n for n in found if isinstance(n, int)), default=0)


def live_conditions(score: ScalarExpr) -> list[Live]:
    """What must hold for a score not to be masked, as far as the expression's shape tells."""
    match score:
        case Apply("select", (condition, chosen, other), _):
            if _fill(other) is not None:
                return [Live(condition, True, _fill(other) == -float("inf")), *live_conditions(chosen)]
            if _fill(chosen) is not None:
                return [Live(condition, False, _fill(chosen) == -float("inf")), *live_conditions(other)]
            return []
        case Apply("add", (a, b), _):
            return [
                *(live_conditions(a) if not _makes_nan(b) else []),
                *(live_conditions(b) if not _makes_nan(a) else []),
            ]
        case Apply("sub", (a, _), _) | Apply("cast" | "copy", (a,), _):
            return live_conditions(a)
        case Apply("mul" | "div", (a, Const(value, _)), _) | Apply("mul", (Const(value, _), a), _) if _positive(value):
            return [c for c in live_conditions(a) if c.exact]
        case _:
            return []


def _makes_nan(e: ScalarExpr) -> bool:
    """Whether an expression may be NaN where all that it reads is finite: by arithmetic on an infinite fill."""
    match e:
        case Apply("select" | "add" | "copy" | "cast", args, _):
            return any(_makes_nan(a) for a in args if a.dtype.is_float)
        case Apply("mul" | "div", (a, Const(value, _)), _) | Apply("mul", (Const(value, _), a), _) if _positive(value):
            return _makes_nan(a)
        case Apply():
            return any(isinstance(x, Const) and isinstance(x.value, float) and isinf(x.value) for x in walk(e))
        case _:
            return False


def _fill(e: ScalarExpr) -> float | None:
    """The value of a masking constant, else None."""
    match e:
        case Apply("cast" | "copy", (inner,), _):
            return _fill(inner)
        case Const(value, _) if isinstance(value, float) and value <= LOWEST_SCORE:
            return value
        case _:
            return None


def to_index(e: ScalarExpr) -> Index | None:
    """An integer scalar expression as an index expression, or None where it loads data."""
    match e:
        case IndexValue(index, _):
            return index
        case Const(value, _):
            return value if isinstance(value, int) else None
        case Apply(op, args, _):
            parts = [to_index(a) for a in args]
            known = [p for p in parts if p is not None]
            return _arithmetic(op, known) if len(known) == len(parts) else None
        case _:
            return None


def _arithmetic(op: str, args: list[Index]) -> Index | None:
    match op, args:
        case "add", [a, b]:
            return add(a, b)
        case "sub", [a, b]:
            return sub(a, b)
        case "mul", [a, b]:
            return mul(a, b)
        case "neg", [a]:
            return mul(a, -1)
        case "abs", [a]:
            return maximum(a, mul(a, -1))
        case "cast", [a]:
            return a
        case "floordiv", [a, int() as b] if b > 0:
            return floordiv(a, b)
        case "remainder", [a, int() as b] if b > 0:
            return mod(a, b)
        case "minimum", [a, b]:
            return minimum(a, b)
        case "maximum", [a, b]:
            return maximum(a, b)
        case _:
            return None


def truth(e: ScalarExpr, narrowed: dict[Symbol, Index]) -> bool | None:
    """True or False where the condition is so all over the narrowed ranges, None where it is mixed or unknown."""
    match e:
        case Const(value, _):
            return bool(value)
        case Apply("logical_and" | "bitwise_and", (a, b), _):
            return _both(truth(a, narrowed), truth(b, narrowed))
        case Apply("logical_or" | "bitwise_or", (a, b), _):
            negated = _both(_not(truth(a, narrowed)), _not(truth(b, narrowed)))
            return _not(negated)
        case Apply("logical_not" | "bitwise_not", (a,), _):
            return _not(truth(a, narrowed))
        case Apply("cast", (a,), dtype) if dtype.kind == "bool":
            return truth(a, narrowed)
        case Apply(op, (a, b), _):
            left, right = to_index(a), to_index(b)
            if left is None or right is None:
                return None
            return _compare(op, bounds(substitute(sub(left, right), narrowed)))
        case _:
            return None


def _not(a: bool | None) -> bool | None:
    return None if a is None else not a


def _both(a: bool | None, b: bool | None) -> bool | None:
    if a is False or b is False:
        return False
    return True if a and b else None


def _compare(op: str, difference: tuple[int | None, int | None]) -> bool | None:
    lo, hi = difference
    if lo is None or hi is None:
        return None
    match op:
        case "lt":
            return True if hi < 0 else False if lo >= 0 else None
        case "le":
            return True if hi <= 0 else False if lo > 0 else None
        case "gt":
            return True if lo > 0 else False if hi <= 0 else None
        case "ge":
            return True if lo >= 0 else False if hi < 0 else None
        case "eq":
            return True if lo == hi == 0 else False if hi < 0 or lo > 0 else None
        case "ne":
            return False if lo == hi == 0 else True if hi < 0 or lo > 0 else None
        case _:
            return None


def key_range(
    score: ScalarExpr, query: Symbol, key: Symbol, queries: tuple[Index, int], keys: tuple[Index, int], block: Symbol
) -> KeyRange:
    """The keys that query block ``block`` must visit.

    ``queries`` and ``keys`` are (extent, tile). Everything, unless the mask's emptiness follows a straight line
    in the block's number, as causal, windowed and prefix masks do, and, for finite fills, every row keeps a key.
    Where an extent is symbolic, what is empty in the largest rectangle is so in each smaller one.
    """
    return range_of(live_conditions(score), query, key, queries, keys, block)


def range_of(
    conditions: list[Live],
    query: Symbol,
    key: Symbol,
    queries: tuple[Index, int],
    keys: tuple[Index, int],
    block: Symbol,
) -> KeyRange:
    """:func:`key_range` where what must hold for a score to count is known."""
    longest = (most(queries[0]), queries[1]), (most(keys[0]), keys[1])
    if isinstance(queries[0], int) and isinstance(keys[0], int):
        columns = keys[0]
        return _key_range(conditions, query, key, *longest, block, lambda i: {minimum(i, columns - 1), 0, columns - 1})
    square = queries[0] == keys[0]
    found = _key_range(conditions, query, key, *longest, block, lambda i: {0, i} if square else {0})
    return KeyRange(found.start, minimum(found.stop, keys[0]), found.skipped)


def _key_range(
    conditions: list[Live],
    query: Symbol,
    key: Symbol,
    queries: tuple[int, int],
    keys: tuple[int, int],
    block: Symbol,
    candidates: Callable[[Index], set[Index]],
) -> KeyRange:
    """:func:`range_of` known extents. ``candidates`` are keys that a row may keep one of."""
    extent, tile = keys
    whole_tiles = extent // tile * tile
    if not conditions or extent == 0:
        return KeyRange(0, extent, 0.0, (0, whole_tiles))
    everything = KeyRange(0, extent, 0.0)
    blocks = -(-queries[0] // queries[1])
    spans: list[tuple[int, int]] = []
    for b in range(blocks):
        spans.append(_span(conditions, query, key, queries, keys, b, spans[-2:]))
    if any(lo >= hi for lo, hi in spans):
        return everything
    if not all(c.exact for c in conditions) and not _rows_have_a_key(conditions, query, key, queries[0], candidates):
        return everything
    count = -(-extent // tile)
    stop = _with_prefix([hi for _, hi in spans], queries[1], tile, extent, block, upper=True)
    start = _fit([lo for lo, _ in spans], queries[1], tile, extent, block, upper=False)
    visited = sum((count if stop is None else hi) - (0 if start is None else lo) for lo, hi in spans)
    stop = extent if stop is None else stop
    start = 0 if start is None else start
    fulls: list[tuple[int, int] | None] = []
    for b in range(blocks):
        before = [run for run in fulls[-2:] if run is not None]
        fulls.append(_full(conditions, query, key, queries, keys, b, spans[b], before))
    full = None
    for end in (0, 1):  # where a block has none, its empty run begins or ends its span: whatever keeps bounds simple
        runs = [(min(spans[b][end], extent // tile),) * 2 if run is None else run for b, run in enumerate(fulls)]
        first = _fit([a for a, _ in runs], queries[1], tile, whole_tiles, block, upper=False, top=end == 1)
        last = _with_prefix([z for _, z in runs], queries[1], tile, whole_tiles, block, upper=False)
        if full is None and first is not None and last is not None:
            full = first, last
    return KeyRange(start, stop, 1.0 - visited / (blocks * count), full, tuple(conditions))


_FIRST_TILES = 64
"""How far into a block's keys the first tile without masked scores is looked for."""


def _full(
    conditions: list[Live],
    query: Symbol,
    key: Symbol,
    queries: tuple[int, int],
    keys: tuple[int, int],
    b: int,
    span: tuple[int, int],
    before: Spans,
) -> tuple[int, int] | None:
    """First and one past the last of the first run of key tiles in which nothing is masked; None if there is none."""
    rows = symbol(query.name, b * queries[1], min(queries[0], (b + 1) * queries[1]) - 1)

    def complete(first: int, last: int) -> bool:
        if last * keys[1] > keys[0]:
            return False
        narrowed: dict[Symbol, Index] = {query: rows, key: symbol(key.name, first * keys[1], last * keys[1] - 1)}
        return all(truth(c.condition, narrowed) is c.wanted for c in conditions)

    near = range(span[0], min(span[1], span[0] + _FIRST_TILES))
    first = next((t for t in near if complete(t, t + 1)), None)
    if first is None:
        return None
    return first, _first_not(complete, first, span[1], _expected([z for _, z in before]))


def _expected(before: Sequence[int]) -> tuple[int, ...]:
    """Where a bound may lie that was at these positions for the blocks before: on their line, or as far as the last."""
    return (2 * before[-1] - before[-2], before[-1], before[-1] + 1) if len(before) > 1 else ()


def _first_not(holds: Callable[[int, int], bool], lo: int, hi: int, expected: tuple[int, ...] = ()) -> int:
    """The first position in [lo, hi) where ``holds`` is False, else ``hi``. What holds of a range holds of its parts.

    The positions that are ``expected`` are tried first.
    """
    if lo >= hi or holds(lo, hi):
        return hi
    for key in expected:
        if lo <= key < hi and not holds(key, key + 1) and (key == lo or holds(lo, key)):
            return key
    if hi - lo == 1:
        return lo
    middle = (lo + hi) // 2
    found = _first_not(holds, lo, middle)
    return found if found < middle else _first_not(holds, middle, hi)


def without_conditions(score: ScalarExpr, conditions: tuple[Live, ...]) -> ScalarExpr:
    """The score where all the conditions hold."""
    wanted = {c.condition: c.wanted for c in conditions}

    def change(node: ScalarExpr) -> ScalarExpr | None:
        if isinstance(node, Apply) and node.op == "select" and node.args[0] in wanted:
            taken = node.args[1] if wanted[node.args[0]] else node.args[2]
            return rewrite(taken, change)
        return None

    return rewrite(score, change)


def held_in_f32(score: ScalarExpr) -> ScalarExpr:
    """The score without conversions that change no digit of what a kernel holds: f32, for half types too.

    Casts to a half type, which round, stay.
    """

    def change(node: ScalarExpr) -> ScalarExpr | None:
        match node:
            case Apply("copy", (inner,), _):
                return rewrite(inner, change)
            case Apply("cast", (Apply() | Load() as inner,), dtype) if dtype == f32 and _is_held(inner):
                return rewrite(inner, change)
            case _:
                return None

    return rewrite(score, change)


def _is_held(e: Apply | Load) -> bool:
    return e.dtype == f32 or (isinstance(e, Apply) and e.dtype.is_half)


_HUGE = 1e6
"""From about here on the rounding of a score times log2(e) is no small part of a power's exponent."""


def may_be_huge(score: ScalarExpr) -> bool:
    """Whether finite scores may be far beyond products of queries and keys: by a fill, or a bias that is read."""
    for node in walk(score):
        if isinstance(node, Const) and isinstance(node.value, float) and _HUGE < abs(node.value) < inf:
            return True
        if isinstance(node, Load) and node.buffer.space == "parameter" and node.dtype.is_float:
            return True
    return False


_UP_TO_ONE = ("tanh", "sigmoid", "erf", "sin", "cos")


def without_factor(score: ScalarExpr, most: float = inf) -> tuple[ScalarExpr, float]:
    """``score = base * factor`` with a positive constant factor taken out of products, quotients and -inf masks.

    most: of the factor, and of that of each part of the score. Up to 1 no part overflows that the base does not; nor
    does one of a soft cap, whose base is at most 1.
    """
    match score:
        case Apply("mul", (inner, Const(value, _)), _) | Apply("mul", (Const(value, _), inner), _) if _positive(value):
            base, factor = without_factor(inner, most)
            factor *= float(value.real)
        case Apply("div", (inner, Const(value, _)), _) if _positive(value):
            base, factor = without_factor(inner, most)
            factor /= float(value.real)
        case Apply("select", (condition, inner, fill), dtype) if _fill(fill) == -inf:
            base, factor = without_factor(inner, most)
            return Apply("select", (condition, base, fill), dtype), factor
        case Apply("select", (condition, fill, inner), dtype) if _fill(fill) == -inf:
            base, factor = without_factor(inner, most)
            return Apply("select", (condition, fill, base), dtype), factor
        case _:
            return score, 1.0
    most = 1e30 if isinstance(base, Apply) and base.op in _UP_TO_ONE else most
    return (base, factor) if factor <= most else (score, 1.0)


def _positive(value: Scalar) -> bool:
    return isinstance(value, int | float) and 1e-30 < value < 1e30


def _span(
    conditions: list[Live],
    query: Symbol,
    key: Symbol,
    queries: tuple[int, int],
    keys: tuple[int, int],
    b: int,
    before: Spans,
) -> tuple[int, int]:
    """First and one past the last key tile with something in it, for one query block."""
    rows = symbol(query.name, b * queries[1], min(queries[0], (b + 1) * queries[1]) - 1)
    count = -(-keys[0] // keys[1])

    def empty(first: int, last: int) -> bool:
        columns = symbol(key.name, first * keys[1], min(keys[0], last * keys[1]) - 1)
        narrowed: dict[Symbol, Index] = {query: rows, key: columns}
        return any(truth(c.condition, narrowed) is (not c.wanted) for c in conditions)

    first = _first_not(empty, 0, count, _expected([lo for lo, _ in before]))
    behind = _expected([count - hi for _, hi in before])
    empty_after = _first_not(lambda lo, hi: empty(count - hi, count - lo), 0, count - first, behind)
    return first, count - empty_after


def _rows_have_a_key(
    conditions: list[Live], query: Symbol, key: Symbol, rows: int, candidates: Callable[[Index], set[Index]]
) -> bool:
    def has_key(first: int, last: int) -> bool:
        row: Index = first if last - first == 1 else symbol(query.name, first, last - 1)
        return any(
            all(truth(c.condition, {query: row, key: j}) is c.wanted for c in conditions) for j in candidates(row)
        )

    return _first_not(has_key, 0, rows) == rows


def _with_prefix(
    tiles: list[int], query_tile: int, tile: int, extent: int, block: Symbol, *, upper: bool
) -> Index | None:
    """A bound as :func:`_fit` finds it, or the larger of one and a prefix of the keys, for all blocks the same."""
    found = _fit(tiles, query_tile, tile, extent, block, upper=upper, top=True)
    prefix = tiles[0]
    after = next((b for b, t in enumerate(tiles) if t != prefix), len(tiles))
    if found is not None or prefix > min(tiles):
        return found
    rest = [t if b >= after else None for b, t in enumerate(tiles)]
    line = _fit(rest, query_tile, tile, extent, block, upper=upper, level=False, top=True)
    if line is None:
        return None
    highest = bounds(substitute(line, {block: symbol(block.name, 0, after - 1)}))[1]
    return maximum(line, prefix * tile) if highest is not None and highest <= prefix * tile else None


def _fit(
    tiles: Sequence[int | None],
    query_tile: int,
    tile: int,
    extent: int,
    block: Symbol,
    *,
    upper: bool,
    level: bool = True,
    top: bool = False,
) -> Index | None:
    """A bound in keys, linear in the block's number and clamped, that gives exactly these tiles; None if none does.

    Where a tile is None, any will do. ``level`` allows a bound that is the same for all blocks. ``upper``: any number
    in the last tile will do, else its first. ``top``: the bound ends at ``extent``, as with ``upper`` it always does.
    """
    for slope in (0, query_tile) if level else (query_tile,):
        lo, hi = -(10**12), 10**12
        for b, t in enumerate(tiles):
            if t is None:
                continue
            if upper:
                clamped = t * tile >= extent
                low, high = (t - 1) * tile + 1 - slope * b, t * tile - slope * b
                lo = max(lo, low)
                hi = hi if clamped else min(hi, high)
            else:
                low, high = t * tile - slope * b, (t + 1) * tile - 1 - slope * b
                lo = lo if t == 0 else max(lo, low)
                hi = hi if top and t * tile == extent else min(hi, high)
        if lo > hi:
            continue
        line = add(mul(block, slope), min(hi, max(lo, 0)) if not upper else hi if hi < 10**12 else lo)
        if upper:
            return minimum(line, extent)
        whole = mul(floordiv(maximum(line, 0), tile), tile)
        return minimum(whole, extent) if top else whole
    return None
