# SPDX-License-Identifier: Apache-2.0
"""A score space on a GPU: a block of rows against blocks of columns, values on the space in registers.

Score tiles are [rows, columns], whichever operands of the dots these are; the backward of attention for its keys and
values has keys as rows and queries as columns (Dao, *FlashAttention-2*, 2023).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from math import prod

from fusec.errors import LoweringError
from fusec.ir.index import Index, Symbol, add, bounds, minimum, mul, sub, symbol
from fusec.ir.indexing import ceildiv, last, most, substitute
from fusec.ir.types import DType, bool_, f32
from fusec.passes.contraction import accumulator_dtype, allows_tf32
from fusec.passes.cost.lanes import points_work
from fusec.passes.families.attention.found_keys import SCANNED_BY_BLOCKS
from fusec.passes.families.scores.elements import (
    ScoreElements,
    ScoreProduct,
    StoredScore,
    find_elements,
    scores_parts,
)
from fusec.passes.families.scores.powers import by_powers_of_two
from fusec.passes.families.scores.schedule.gpu import GpuScoresSchedule
from fusec.passes.families.scores.schedule.size import ScoresSize, padded
from fusec.passes.families.scores.shared import shared_part
from fusec.passes.families.scores.stores import scores_stores
from fusec.passes.families.scores.zeros import common_conditions, find_columns, range_of_columns
from fusec.passes.lower.blocks import SCORES_BLOCKS
from fusec.passes.lower.context import LoweredGroup, LoweringContext
from fusec.passes.lower.distances import by_rows_and_columns
from fusec.passes.lower.limits import block_in_tile, zero_beyond
from fusec.passes.lower.mask import KeyRange, held_in_f32, without_conditions
from fusec.passes.lower.quotients import by_reciprocals
from fusec.tile.nodes import Alloc, Dot, Grid, Iter, Loop, Map, Reduce, RegisterTile, Statement, Store
from fusec.tile.scalar import (
    Apply,
    Buffer,
    Const,
    Load,
    ScalarExpr,
    loads,
    reindex,
    rewrite,
    symbols_in,
    with_loads_replaced,
)

_NO_REGISTERS = RegisterTile(0, 0)


def lower_scores(context: LoweringContext, schedule: GpuScoresSchedule) -> LoweredGroup:
    """Grid points are blocks of rows, those with the most columns first, by all axes that the parts share."""
    return _Scores(context, schedule).lower()


def scores_size(context: LoweringContext, usual: Callable[[Index], int] = most) -> ScoresSize:
    """What its schedule depends on; ``usual`` gives the number to take for an extent that is symbolic."""
    parts = scores_parts(context.op)
    e = find_elements(context.inliner, parts)
    number = symbol("block", 0, last(ceildiv(e.rows, _SEEN)))
    conditions = common_conditions(e)
    span = range_of_columns(conditions, e, _SEEN, _SEEN, number)
    values = [without_conditions(score, span.conditions) for score in e.scores]
    values = [by_reciprocals(value, {e.row}, {e.column}) for value in values]
    if _is_coarse(e):
        values = [by_powers_of_two(value) for value in values]
    work = points_work(
        values,
        {p.raw for p in e.products},
        (e.row, e.column),
    )
    read = {reindex(p.column, {p.depth: 0}): p.extent for p in e.products}
    read |= {reindex(c.column, {c.place: 0}): c.extent for c in e.consumers}
    return ScoresSize(
        prod(usual(n) for _, n in e.others),
        usual(e.rows),
        usual(e.columns),
        tuple(p.extent for p in e.products),
        tuple(c.extent for c in e.consumers),
        sum(read.values()),
        max(v.type.dtype.bits for op in parts.products for v in op.operands),
        span.skipped,
        work.instructions,
        work.specials,
        sum(v.dtype.itemsize for v in _of_points(e)),
    )


def _of_points(e: ScoreElements) -> set[ScalarExpr]:
    """What is read, and what is stored, of each point: a bias, a mask that is data, values that are results."""
    read = {load for score in e.scores for load in loads(score) if load.buffer.space == "parameter"}
    return {load for load in read if {e.row, e.column} <= symbols_in(load)} | {s.score for s in e.stored}


_SEEN = 128
"""Rows and columns of the blocks that are looked at for what a mask hides, whatever the kernel's are."""


class _Scores:
    def __init__(self, context: LoweringContext, schedule: GpuScoresSchedule) -> None:
        self.context, self.schedule = context, schedule
        self.parts = scores_parts(context.op)
        self.e: ScoreElements = find_elements(context.inliner, self.parts)
        for op in (*self.parts.products, *self.parts.ends):
            if accumulator_dtype(op) is not f32:
                raise LoweringError(f"scores of {accumulator_dtype(op)} on a GPU")
        e, s = self.e, schedule
        self.conditions = common_conditions(e)
        self.blocks = ceildiv(e.rows, s.rows)
        self.row_block = symbol("row_block", 0, last(self.blocks))
        self.number = symbol("ro", 0, last(self.blocks))
        self.ri, self.cj = symbol("ri", 0, s.rows - 1), symbol("cj", 0, s.columns - 1)
        self.c0 = symbol("c0", 0, last(e.columns))
        span = self.span
        backwards = most(self.blocks) > 1 and _grows(span, self.number, most(self.blocks))
        self.order: dict[Symbol, Index] = {
            self.number: sub(sub(self.blocks, 1), self.row_block) if backwards else self.row_block
        }
        first = mul(self.order[self.number], s.rows)
        self.shift: dict[Symbol, Index] = {e.row: add(first, self.ri), e.column: add(self.c0, self.cj)}
        self.rows = Iter(self.ri, s.rows)
        self.live_rows = Iter(self.ri, s.rows, None if e.rows % s.rows == 0 else sub(e.rows, first))
        self.block_limit = None if e.columns % s.columns == 0 else sub(e.columns, self.c0)
        self.coarse = _is_coarse(e)
        self._of_rows: dict[ScalarExpr, Load] = {}
        self._held: dict[ScalarExpr, Load] = {}
        self.setup: list[Statement] = []

    def tile(self, name: str, *shape: int, dtype: DType = f32) -> Buffer:
        return self.context.tile(name, dtype, *shape)

    @cached_property
    def span(self) -> KeyRange:
        """The columns that a block of rows visits."""
        e, s = self.e, self.schedule
        return range_of_columns(self.conditions, e, s.rows, s.columns, self.number)

    def lower(self) -> LoweredGroup:
        s, e = self.schedule, self.e
        sums = [self.tile("acc", s.rows, padded(c.extent)) for c in e.consumers]
        for out, consumer in zip(sums, e.consumers, strict=True):
            place = self._inner(consumer.extent)
            where = (self.rows, Iter(place.var, place.extent))
            self.setup += [Alloc(out), Map(where, out, (self.ri, place.var), Const(0.0, f32))]
        rows = [self._row_operand(p) for p in e.products]
        accumulators = [
            Load(out, (self.ri, self._inner(c.extent).var)) for out, c in zip(sums, e.consumers, strict=True)
        ]
        self.sums = [Load(self.tile("row_sum", s.rows), (self.ri,)) for _ in e.sums]
        for held in self.sums:
            self.setup += [Alloc(held.buffer), Map((self.rows,), held.buffer, (self.ri,), Const(0.0, f32))]
        found = None
        if not e.stored:  # else all columns are written
            span = self.span
            past = minimum(mul(ceildiv(span.stop, s.columns), s.columns), e.columns)
            ends = substitute(span.start, self.order), substitute(past, self.order)
            known = ends, SCANNED_BY_BLOCKS
            found = find_columns(self.context, e, self.conditions, self.shift, self.live_rows, s.columns, *known)
        within = None if found is None else found.bounds
        self.setup += () if found is None else found.code
        loops = [replace(self._loop(*bounds_, rows, accumulators), within=within) for bounds_ in self._loops()]
        loops += self._unvisited()
        held_in = accumulators, self.sums
        stores = scores_stores(self.context, self.parts, e, self.shift, self.live_rows, self._places(), *held_in)
        grid = Grid(
            (*(Iter.over(p, n) for p, n in e.others), Iter.over(self.row_block, self.blocks)),
            (*self.setup, *loops, *stores),
        )
        lowered = self.context.finish("scores", (grid,), s.describe(), SCORES_BLOCKS)
        return replace(lowered, skipped=self.span.skipped)

    def _places(self) -> list[tuple[Symbol, Iter]]:
        """Each consumer's own axis in a block."""
        return [(c.place, self._inner(c.extent)) for c in self.e.consumers]

    def _inner(self, extent: int) -> Iter:
        """An axis of operands' rows; one for all that are as long."""
        wide = padded(extent)
        return Iter(symbol(f"d{extent}", 0, wide - 1), wide, None if wide == extent else extent)

    def _loops(self) -> list[tuple[Index, Index, bool, bool]]:
        """Bounds of the columns' loops, whether the mask is taken to hold, and whether blocks may be cut short."""
        span, limited = self.span, self.block_limit is not None
        stop, columns = span.stop, self.schedule.columns
        if isinstance(stop, int) and isinstance(self.e.columns, int):
            stop = min(-(-stop // columns) * columns, self.e.columns)
        if span.full is None or span.full[0] == span.full[1]:
            return [(span.start, stop, False, limited)]
        first, past = span.full
        found = [(first, past, True, False)]
        if first != span.start:
            found.insert(0, (span.start, first, False, limited))
        if past != stop:
            found.append((past, stop, False, limited))
        return found

    def _loop(
        self,
        start: Index,
        stop: Index,
        whole: bool,
        limited: bool,
        rows: Sequence[Load],
        sums: Sequence[Load],
    ) -> Loop:
        """One block of columns after another."""
        step = self._step(whole, self.block_limit if limited else None, rows, sums)
        first, past = substitute(start, self.order), substitute(stop, self.order)
        return Loop(self.c0, first, past, self.schedule.columns, tuple(step))

    def _unvisited(self) -> list[Loop]:
        """Zeros for the stored values at columns that a block of rows does not visit."""
        s, span = self.schedule, self.span
        past = mul(ceildiv(span.stop, s.columns), s.columns)
        columns = Iter(self.cj, s.columns, self.block_limit)
        code = tuple(self._stored(stored, Const(0.0, stored.score.dtype), columns) for stored in self.e.stored)
        ends = [(0, substitute(span.start, self.order)), (substitute(past, self.order), self.e.columns)]
        return [Loop(self.c0, first, end, s.columns, code) for first, end in ends if code and first != end]

    def _stored(self, stored: StoredScore, value: ScalarExpr, columns: Iter) -> Store:
        where = tuple(substitute(i, self.shift) for i in stored.index)
        return Store((self.live_rows, columns), self.context.buffers[stored.op.result], where, value)

    def _row_operand(self, p: ScoreProduct) -> Load:
        """A block of rows of a product, in a tile for all blocks of columns."""
        inner = self._inner(p.extent)
        element = reindex(p.row, {**self.shift, p.depth: inner.var})
        if element not in self._held:
            self._held[element], made = block_in_tile(self.context, "rows", element, self.live_rows, inner)
            self.setup += made
        return self._held[element]

    def _step(self, whole: bool, limit: Index | None, rows: Sequence[Load], sums: Sequence[Load]) -> list[Statement]:
        s, e = self.schedule, self.e
        columns = Iter(self.cj, s.columns, limit)
        blocks = self._column_blocks()
        code: list[Statement] = []
        read: dict[ScalarExpr, Load] = {}

        def column(element: ScalarExpr, inner: Iter, name: str) -> Load:
            if element not in read:
                if isinstance(element, Load) and blocks.count(element) == 1:
                    return element
                read[element], made = block_in_tile(self.context, name, element, columns, inner)
                code.extend(made)
            return read[element]

        raws: dict[Buffer, Load] = {}
        for p, row in zip(e.products, rows, strict=True):
            inner = self._inner(p.extent)
            operand = column(self._column_element(p.column, p.depth, inner), inner, "columns")
            raw = Load(self.tile("scores", s.rows, s.columns), (self.ri, self.cj))
            raws[p.raw] = raw
            code += [
                Alloc(raw.buffer),
                Dot(self.live_rows, columns, inner, raw, row, operand, True, _NO_REGISTERS, self._tf32()),
            ]
        scores, made = self._scores(raws, whole, columns)
        code += made
        for c, score, total in zip(e.consumers, scores, sums, strict=True):
            inner = self._inner(c.extent)
            operand = column(self._column_element(c.column, c.place, inner), inner, "values")
            code.append(Dot(self.live_rows, inner, columns, total, score, operand, False, _NO_REGISTERS, self._tf32()))
        return code

    def _tf32(self) -> bool:
        return all(allows_tf32(op) for op in (*self.parts.products, *self.parts.consumers))

    def _column_element(self, element: ScalarExpr, own: Symbol, inner: Iter) -> ScalarExpr:
        return reindex(element, {**self.shift, own: inner.var})

    def _column_blocks(self) -> list[ScalarExpr]:
        """What is read of a block of columns, as often as it is."""
        e = self.e
        found = [self._column_element(p.column, p.depth, self._inner(p.extent)) for p in e.products]
        return found + [self._column_element(c.column, c.place, self._inner(c.extent)) for c in e.consumers]

    def _scores(self, raws: dict[Buffer, Load], whole: bool, columns: Iter) -> tuple[list[Load], list[Statement]]:
        """Tiles of what each consumer reads. Where ``whole``, no mask of indices is asked."""
        e = self.e
        values = [self._value(score, raws, whole) for score in e.scores]
        code: list[Statement] = []
        common = shared_part(values)
        if common is not None:
            shared = Load(self.tile("shared", self.schedule.rows, self.schedule.columns), (self.ri, self.cj))
            code += [Alloc(shared.buffer), Map((self.live_rows, columns), shared.buffer, (self.ri, self.cj), common)]
            values = [rewrite(v, lambda n: shared if n == common else None) for v in values]
        found: list[Load] = []
        for held, value in zip(self.sums, values[len(e.consumers) :], strict=False):
            summed = value if value.dtype is f32 else Apply("cast", (value,), f32)
            code.append(Reduce((self.live_rows, columns), held.buffer, (self.ri,), "sum", summed, fresh=False))
        for c, value in zip(e.consumers, values, strict=False):
            tile = self.tile("weights", self.schedule.rows, self.schedule.columns, dtype=c.score.dtype)
            value = zero_beyond(value, columns)
            where = (self.ri, self.cj)
            code += [Alloc(tile), Map((self.live_rows, columns), tile, where, value)]
            found.append(Load(tile, where))
        for stored, value in zip(e.stored, values[len(e.consumers) + len(e.sums) :], strict=True):
            same = [held for c, held in zip(e.consumers, found, strict=True) if c.score == stored.score]
            code.append(self._stored(stored, same[0] if same else value, columns))
        return found, code

    def _value(self, score: ScalarExpr, raws: dict[Buffer, Load], whole: bool) -> ScalarExpr:
        value = without_conditions(score, self.span.conditions) if whole else score
        value = reindex(value, self.shift)
        for raw, load in raws.items():
            value = with_loads_replaced(value, raw, load)
        value = by_rows_and_columns(held_in_f32(value), {self.c0, self.cj})
        value = by_reciprocals(value, {self.ri}, {self.c0, self.cj})
        value = by_powers_of_two(value) if self.coarse else value
        return rewrite(value, self._held_for_rows)

    def _held_for_rows(self, node: ScalarExpr) -> Load | None:
        """What is read and computed of a row alone, in a tile for all blocks of columns."""
        read, found = list(loads(node)), symbols_in(node)
        if node.dtype is bool_ or self.ri not in found or not found.isdisjoint({self.c0, self.cj}):
            return None
        if not read or any(load.buffer.space != "parameter" for load in read):
            return None
        if node not in self._of_rows:
            tile = self.tile("of_rows", self.schedule.rows, dtype=node.dtype)
            self.setup += [Alloc(tile), Map((self.live_rows,), tile, (self.ri,), node)]
            self._of_rows[node] = Load(tile, (self.ri,))
        return self._of_rows[node]


def _is_coarse(e: ScoreElements) -> bool:
    """Whether what is made of the space is rounded to a half type."""
    made = [*(c.score for c in e.consumers), *(s.score for s in e.stored)]
    return all(score.dtype.bits == 16 for score in made)


def _grows(span: KeyRange, block: Symbol, blocks: int) -> bool:
    """Whether the last block of rows visits more columns than the first."""
    count = sub(span.stop, span.start)
    first, past = (bounds(substitute(count, {block: n}))[1] for n in (0, blocks - 1))
    return first is not None and past is not None and past > first
