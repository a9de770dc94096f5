# SPDX-License-Identifier: Apache-2.0
"""Code that finds the keys that a mask made of data leaves to a block of queries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

from fusec.ir.index import Index, Symbol, add, floordiv, mul, sub, symbol
from fusec.ir.indexing import last, most, pow2
from fusec.ir.types import DType, bool_, i32, i64
from fusec.passes.families.attention.bounds import MIRRORED, Extreme, KeyTest
from fusec.passes.lower.mask import to_index
from fusec.tile.nodes import Alloc, Iter, Loop, Map, Reduce, Statement
from fusec.tile.scalar import Apply, Buffer, Const, IndexValue, Load, ScalarExpr, reindex, symbols_in

SCANNED, SCANNED_BY_BLOCKS = 1024, 4096
"""Keys that are looked at together: by a task on a CPU, and by a block of a GPU, whose threads wait once for all of
them."""

_SIDES: dict[str, tuple[tuple[str, int], ...]] = {
    "eq": (("first", 0), ("past", 1)),
    "lt": (("past", 0),),
    "le": (("past", 1),),
    "gt": (("first", 1),),
    "ge": (("first", 0),),
}
"""What a comparison of a key's number with another says: an end of the keys, and how far it is beyond the number."""

Bounds = tuple[Load, Load]
"""Scalars: a key, which is a multiple of the tile, and one past the last."""


@dataclass(frozen=True)
class FoundKeys:
    """``code`` sets the ``bounds`` of the keys that may count."""

    code: tuple[Statement, ...]
    bounds: Bounds

    def part_of(self, number: ScalarExpr, count: int, tile: int, unique: Callable[[str], str]) -> FoundKeys:
        """The keys of part ``number`` of so many, equal parts of what is found, in whole tiles."""
        first, past = self.bounds
        some = Apply("maximum", (Apply("sub", (past, first), i32), Const(0, i32)), i32)
        tiles = _ceildiv(some, tile)
        share = Apply("mul", (_ceildiv(tiles, count), Const(tile, i32)), i32)
        start = Apply("add", (first, Apply("mul", (number, share), i32)), i32)
        names = [Load(Buffer(unique(name), i32, (), (), "tile"), ()) for name in ("part_first", "part_past")]
        stop = Apply("minimum", (past, Apply("add", (names[0], share), i32)), i32)
        code = [
            s for x, e in zip(names, (start, stop), strict=True) for s in (Alloc(x.buffer), Map((), x.buffer, (), e))
        ]
        return FoundKeys((*self.code, *code), (names[0], names[1]))


class KeyFinder:
    """``shift`` are the block's own symbols; ``key`` of a condition is at ``shift[key]`` there. count: of all keys.

    queries: the block's iterator over queries. tile: keys of a step. unique: makes names for buffers. finite: of a
    query or of a key each, what must be finite for the tests to hold: where it is not, every key counts. within: the
    keys that indices leave, the first and one past the last; no others are looked at. scanned: how many together.

    A test that compares a key's own number (a length, a position) is a bound by itself: no key is looked at for it.
    """

    def __init__(
        self,
        tests: Sequence[KeyTest],
        key: Symbol,
        shift: dict[Symbol, Index],
        queries: Iter,
        count: Index,
        tile: int,
        unique: Callable[[str], str],
        finite: Sequence[ScalarExpr] = (),
        within: tuple[Index, Index] | None = None,
        scanned: int = SCANNED,
    ) -> None:
        self.key, self.finite = key, finite
        self.tests, self.shift, self.queries, self.count, self.tile = tests, shift, queries, count, tile
        self.unique = unique
        self.start, self.stop = within or (0, count)
        self.step = max(tile, min(scanned, pow2(most(count))))
        self.c, self.j = symbol("c", 0, last(count)), symbol("j", 0, self.step - 1)
        self.position = add(self.c, self.j)
        self.at_key: dict[Symbol, Index] = {**shift, key: self.position}
        self.code: list[Statement] = []
        self.extremes: dict[tuple[ScalarExpr, Extreme], Load] = {}

    def find(self) -> FoundKeys:
        """Bounds of all keys that may count."""
        known = [] if self.finite else [b for t in self.tests if (b := self._known(t)) is not None]
        within = None
        if known and len(known) == len(self.tests):
            ends = self._within(known, self.tile)
            return FoundKeys(tuple(self.code), ends)
        if known:
            within = self._within(known, self.step)
        may = self._all([self._holds(t, t.extreme) for t in self.tests])
        for strange in self._not_finite():
            may = Apply("logical_or", (may, strange), bool_)
        first, past = self._bound("first_key", self.count), self._bound("past_key", 0)
        scan = [self._least(first, may, self._tile_of(self.position)), self._greatest(past, may, add(self.position, 1))]
        return FoundKeys((*self.code, replace(self._scan(scan), within=within)), (first, past))

    def _known(self, test: KeyTest) -> tuple[str, ScalarExpr] | None:
        """How a key's number compares with what is the same for all keys, where the test says no more."""
        compare, a, b = test.compare, test.key, test.query
        if b is None:
            if not isinstance(a, Apply) or a.op not in MIRRORED or any(not x.dtype.is_integer for x in a.args):
                return None
            compare, (a, b) = a.op, a.args
            if self.key in symbols_in(b):
                a, b, compare = b, a, MIRRORED[compare]
        if compare not in _SIDES or a.dtype not in (i32, i64) or to_index(a) != self.key or self.key in symbols_in(b):
            return None
        return compare, self._extreme_of(b, test.extreme) if test.query is not None else reindex(b, self.shift)

    def _within(self, known: list[tuple[str, ScalarExpr]], step: int) -> Bounds:
        """The bounds that comparisons of keys' numbers leave, the first a multiple of the step."""
        count = self._index(self.count)
        ends: dict[str, ScalarExpr] = {"first": Const(0, i32), "past": count}
        for compare, number in known:
            # Numbers that no key has are cut off before anything is added to them.
            low, high = (Apply("cast", (self._index(n),), i64) for n in (-1, self.count))
            number = Apply("maximum", (Apply("cast", (number,), i64), low), i64)
            number = Apply("cast", (Apply("minimum", (number, high), i64),), i32)
            for end, more in _SIDES[compare]:
                at = Apply("add", (number, Const(more, i32)), i32) if more else number
                ends[end] = Apply("maximum" if end == "first" else "minimum", (ends[end], at), i32)
        if ends["first"] != Const(0, i32):
            by, first = Const(step, i32), Apply("minimum", (ends["first"], count), i32)
            ends["first"] = Apply("mul", (Apply("floordiv", (first, by), i32), by), i32)
        return self._made("first_key", ends["first"]), self._made("past_key", ends["past"])

    def _extreme_of(self, query: ScalarExpr, extreme: Extreme) -> Load:
        """The least or greatest of the block's queries."""
        found = self.extremes.get((query, extreme))
        if found is None:
            found = self.extremes[query, extreme] = self._scalar(f"{extreme}_of_queries", query.dtype)
            self.code.append(Alloc(found.buffer))
            self.code.append(Reduce((self.queries,), found.buffer, (), extreme, reindex(query, self.shift)))
        return found

    def _holds(self, test: KeyTest, extreme: Extreme) -> ScalarExpr:
        one = reindex(test.key, self.at_key)
        if test.query is None:
            return one
        found = self._extreme_of(test.query, extreme)
        return Apply(test.compare, (one, Apply("cast", (found,), one.dtype)), bool_)

    def _not_finite(self) -> Iterator[ScalarExpr]:
        """Whether the tests don't tell of a key: one for the keys' values, and one for those of the block's queries."""
        of_keys = [e for e in self.finite if self.key in symbols_in(e)]
        of_queries = [e for e in self.finite if self.key not in symbols_in(e)]
        if of_keys:
            yield Apply("logical_not", (self._all([_is_finite(reindex(e, self.at_key)) for e in of_keys]),), bool_)
        if of_queries:
            all_finite = self._all([_is_finite(reindex(e, self.shift)) for e in of_queries])
            found = self._scalar("not_finite", i32)
            here = Apply("select", (all_finite, Const(0, i32), Const(1, i32)), i32)
            self.code += [Alloc(found.buffer), Reduce((self.queries,), found.buffer, (), "max", here)]
            yield Apply("gt", (found, Const(0, i32)), bool_)

    def _all(self, parts: list[ScalarExpr]) -> ScalarExpr:
        first, *rest = parts
        for part in rest:
            first = Apply("logical_and", (first, part), bool_)
        return first

    def _tile_of(self, position: Index) -> Index:
        return mul(floordiv(position, self.tile), self.tile)

    def _index(self, index: Index) -> ScalarExpr:
        return Const(index, i32) if isinstance(index, int) else IndexValue(index, i32)

    def _scalar(self, name: str, dtype: DType) -> Load:
        return Load(Buffer(self.unique(name), dtype, (), (), "tile"), ())

    def _bound(self, name: str, start: Index) -> Load:
        return self._made(name, self._index(start))

    def _made(self, name: str, value: ScalarExpr) -> Load:
        made = self._scalar(name, i32)
        self.code += [Alloc(made.buffer), Map((), made.buffer, (), value)]
        return made

    def _least(self, bound: Load, where: ScalarExpr, value: Index) -> Reduce:
        chosen = Apply("select", (where, self._index(value), self._index(self.count)), i32)
        return Reduce((self._keys(),), bound.buffer, (), "min", chosen, fresh=False)

    def _greatest(self, bound: Load, where: ScalarExpr, value: Index) -> Reduce:
        chosen = Apply("select", (where, self._index(value), Const(0, i32)), i32)
        return Reduce((self._keys(),), bound.buffer, (), "max", chosen, fresh=False)

    def _keys(self) -> Iter:
        whole = self.start == 0 and isinstance(self.stop, int) and self.stop % self.step == 0
        return Iter(self.j, self.step, None if whole else sub(self.stop, self.c))

    def _scan(self, body: list[Reduce]) -> Loop:
        return Loop(self.c, self.start, self.stop, self.step, tuple(body))


def _ceildiv(e: ScalarExpr, by: int) -> ScalarExpr:
    """Of a number that is not negative."""
    more = Apply("add", (e, Const(by - 1, i32)), i32)
    return Apply("floordiv", (more, Const(by, i32)), i32)


def _is_finite(e: ScalarExpr) -> ScalarExpr:
    return Apply("lt", (Apply("abs", (e,), e.dtype), Const(inf, e.dtype)), bool_)
