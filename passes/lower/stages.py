# SPDX-License-Identifier: Apache-2.0
"""Rows in stages: while a row is stored, the rows behind it are reduced, each one reduction less far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fusec.ir.index import Index, Symbol, add, minimum, mul, sub, symbol
from fusec.ir.indexing import substitute
from fusec.ir.monoid import MONOIDS, ReduceOp
from fusec.tile.nodes import Alloc, Block, Iter, Loop, Map, Reduce, Statement, Store
from fusec.tile.scalar import Buffer, Const, Load, ScalarExpr, reindex, rewrite

LANES = 64
"""Results that a reduction keeps side by side while its row comes in blocks."""

BLOCK = 2 * LANES
"""Elements of each row that are worked on in turn."""

LONGEST = 64 * LANES
"""Elements of a row from which so few sums would add up too many numbers one by one."""

_KNOWN: tuple[ReduceOp, ...] = ("sum", "max", "min")


@dataclass(frozen=True, eq=False)
class Stages:
    """A row's reductions to one number each, in order, and the store of what they lead to.

    While a row is stored, reduction ``i`` of ``count`` works on the row ``count - i`` rows behind.
    """

    row: Symbol
    along: Iter
    reduces: tuple[Reduce, ...]
    store: Store

    @property
    def count(self) -> int:
        return len(self.reduces)


def find_stages(row: Symbol, statements: Sequence[Statement], along: Iter) -> Stages | None:
    """The statements of a row as stages; None where they are none: reductions to floats, then one store past the
    caches."""
    *reduces, store = (s for s in statements if not isinstance(s, Alloc))
    if not (isinstance(store, Store) and store.non_temporal and store.domain == (along,) and reduces):
        return None
    if along.limit is not None or along.extent % BLOCK != 0 or not BLOCK < along.extent <= LONGEST:
        return None
    found = tuple(s for s in reduces if isinstance(s, Reduce) and _is_whole(s, along))
    return Stages(row, along, found, store) if len(found) == len(reduces) else None


def _is_whole(s: Reduce, along: Iter) -> bool:
    """Whether all of the row is reduced to one float."""
    return s.domain == (along,) and s.op in _KNOWN and s.fresh and not s.loose and s.target.dtype.is_float


def in_stages(stages: Stages, rows: tuple[Index, Index]) -> Block:
    """The statements for every row from the first of ``rows`` up to the second.

    One phase after the other, what is reduced of a row waits for the cache alone, and memory for it. In the last rows'
    turns the reductions have no rows left: they take the last one again.
    """
    start, stop = rows
    writer = _Writer(stages, sub(stop, 1))
    first = tuple(writer.whole_row(start, number) for number in range(stages.count))
    step = (*writer.cleared(), *writer.blocks(), *writer.results_move_on())
    return (*writer.allocs(), *first, Loop(stages.row, start, stop, 1, step))


class _Writer:
    """``results[i][age]``: what reduction ``i`` made, ``age`` rows ago; ``partial[i]``: what it has of the row at
    hand."""

    def __init__(self, stages: Stages, last: Index) -> None:
        self.stages, self.last = stages, last
        targets = [s.target for s in stages.reduces]
        self.number = {t: i for i, t in enumerate(targets)}
        self.results = [
            [_scratch(t, f"{t.name}_{age}", 1) for age in range(stages.count - i)] for i, t in enumerate(targets)
        ]
        self.partial = [_scratch(t, f"{t.name}_lanes", LANES) for t in targets]

    def allocs(self) -> Block:
        return tuple(Alloc(b) for b in (*(b for made in self.results for b in made), *self.partial))

    def whole_row(self, start: Index, number: int) -> Loop:
        """The reductions that a row behind the first has gone through before the first is stored, each in one piece."""
        count = self.stages.count
        row, which = self._other(number), minimum(add(start, number), self.last)

        def age(i: int) -> int:
            return count - 1 - number - i

        body = tuple(
            replace(s, target=self.results[i][age(i)], value=self._value(s.value, {self.stages.row: row}, age))
            for i, s in enumerate(self.stages.reduces[: count - number])
        )
        return Loop(row, which, add(which, 1), 1, body)

    def cleared(self) -> Block:
        lane = _iter("lane", LANES)
        pairs = zip(self.stages.reduces, self.partial, strict=True)
        return tuple(Map((lane,), b, (lane.var,), Const(MONOIDS[s.op].identity(b.dtype), b.dtype)) for s, b in pairs)

    def blocks(self) -> Block:
        """A block of each row behind, each in its stage, then one of the row that is stored: what is loaded at an
        address that differs by whole pages from one just stored to would wait."""
        stages, block = self.stages, _iter("block", self.stages.along.extent // BLOCK)
        rows = [self._other(stages.count - i) for i in range(stages.count)]
        reduced = (self._reduced(i, row, block.var) for i, row in enumerate(rows))
        body: Block = (Loop(block.var, 0, block.extent, 1, (*reduced, self._stored(block.var))),)
        for i, row in enumerate(rows):
            which = minimum(add(stages.row, stages.count - i), self.last)
            body = (Loop(row, which, add(which, 1), 1, body),)
        return body

    def _reduced(self, number: int, row: Symbol, block: Symbol) -> Reduce:
        s, part, lane = self.stages.reduces[number], _iter("part", BLOCK // LANES), _iter("lane", LANES)
        element = add(mul(block, BLOCK), add(mul(part.var, LANES), lane.var))
        value = self._value(s.value, {self.stages.row: row, self.stages.along.var: element}, lambda i: number - 1 - i)
        return Reduce((part, lane), self.partial[number], (lane.var,), s.op, value, fresh=False)

    def _stored(self, block: Symbol) -> Store:
        store, count, element = self.stages.store, self.stages.count, _iter("element", BLOCK)
        at: dict[Symbol, Index] = {self.stages.along.var: add(mul(block, BLOCK), element.var)}
        far = {**at, self.stages.row: add(self.stages.row, count)}
        return replace(
            store,
            domain=(element,),
            index=tuple(substitute(i, at) for i in store.index),
            value=self._value(store.value, at, lambda i: count - 1 - i),
            prefetch=tuple(x for load in store.prefetch if isinstance(x := reindex(load, far), Load)),
        )

    def results_move_on(self) -> Block:
        body: list[Statement] = []
        for s, made, partial in zip(self.stages.reduces, self.results, self.partial, strict=True):
            for older, newer in zip(made[:0:-1], made[-2::-1], strict=True):
                body.append(Map((_iter("one", 1),), older, (0,), Load(newer, (0,))))
            lane = _iter("lane", LANES)
            body.append(Reduce((lane,), made[0], (0,), s.op, Load(partial, (lane.var,))))
        return tuple(body)

    def _value(self, e: ScalarExpr, at: dict[Symbol, Index], age: Callable[[int], int]) -> ScalarExpr:
        """The value at another position. ``age``: how many rows ago the result of a reduction was made that it
        reads."""

        def change(node: ScalarExpr) -> ScalarExpr | None:
            if isinstance(node, Load) and (i := self.number.get(node.buffer)) is not None:
                return Load(self.results[i][age(i)], (0,))
            return None

        return rewrite(reindex(e, at), change)

    def _other(self, number: int) -> Symbol:
        """A row behind, as a symbol of its own: no index of it leaves its buffer."""
        row = self.stages.row
        return symbol(f"{row.name}_{number}", row.lo, row.hi)


def _scratch(like: Buffer, name: str, size: int) -> Buffer:
    return Buffer(name, like.dtype, (size,), (1,), "tile")


def _iter(name: str, extent: int) -> Iter:
    return Iter(symbol(name, 0, extent - 1), extent)
