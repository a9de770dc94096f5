# SPDX-License-Identifier: Apache-2.0
"""A score space on a CPU: rows on vector lanes, a block of columns at a time.

Score tiles are [columns, rows] and accumulators [elements of a result's row, rows], as attention has them, so all
products read columns where they lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from fusec.ir.index import Index, Symbol, add, mul, symbol
from fusec.ir.indexing import ceildiv, last, most
from fusec.ir.types import DType, most_of
from fusec.passes.contraction import accumulator_dtype
from fusec.passes.families.gemm.cpu import limit_of
from fusec.passes.families.scores.elements import ScoreElements, find_elements, scores_parts
from fusec.passes.families.scores.schedule.cpu import CpuScoresSchedule
from fusec.passes.families.scores.shared import shared_part
from fusec.passes.families.scores.stores import scores_stores
from fusec.passes.families.scores.zeros import common_conditions, find_columns, range_of_columns
from fusec.passes.lower.context import LoweredGroup, LoweringContext, address_step, is_linear
from fusec.passes.lower.mask import KeyRange
from fusec.passes.lower.sums import in_blocks
from fusec.passes.schedule.sums import block_for
from fusec.tile.nodes import Alloc, Dot, Grid, Iter, Loop, Map, Reduce, Statement
from fusec.tile.scalar import Apply, Buffer, Const, Load, ScalarExpr, loads, reindex, rewrite, with_loads_replaced

MANY_ROWS = 64
"""For so many a block of columns that lie far apart is worth copying."""


def lower_scores(context: LoweringContext, schedule: CpuScoresSchedule) -> LoweredGroup:
    """Grid points are blocks of rows by all axes that the parts share."""
    return _Scores(context, schedule).lower()


class _Scores:
    def __init__(self, context: LoweringContext, schedule: CpuScoresSchedule) -> None:
        self.context, self.schedule = context, schedule
        self.parts = scores_parts(context.op)
        self.e: ScoreElements = find_elements(context.inliner, self.parts)
        self.dtype: DType = accumulator_dtype(self.parts.products[0])
        e, s = self.e, schedule
        self.conditions = common_conditions(e)
        self.blocks = ceildiv(e.rows, s.rows)
        self.number = symbol("ro", 0, last(self.blocks))
        self.ri, self.cj = symbol("ri", 0, s.rows - 1), symbol("cj", 0, s.columns - 1)
        self.c0 = symbol("c0", 0, last(e.columns))
        first = mul(self.number, s.rows)
        self.shift: dict[Symbol, Index] = {e.row: add(first, self.ri), e.column: add(self.c0, self.cj)}
        self.lanes = Iter(self.ri, s.rows)
        self.live_lanes = Iter(self.ri, s.rows, limit_of(e.rows, s.rows, first))
        self.block = Iter(self.cj, s.columns, limit_of(e.columns, s.columns, self.c0))

    def tile(self, name: str, *extents: Index) -> Buffer:
        return self.context.tile(name, self.dtype, *most_of(extents))

    def row_tile(self, name: str) -> Buffer:
        return self.context.tile(name, self.dtype, self.schedule.rows)

    @cached_property
    def span(self) -> KeyRange:
        """The columns that a block of rows visits."""
        e, s = self.e, self.schedule
        return range_of_columns(self.conditions, e, s.rows, s.columns, self.number)

    def lower(self) -> LoweredGroup:
        e, s = self.e, self.schedule
        setup: list[Statement] = []
        places = [Iter(symbol(f"d{c.extent}", 0, last(c.extent)), c.extent) for c in e.consumers]
        sums: list[Load] = []
        for place in places:
            out = self.tile("acc", place.extent, s.rows)
            sums.append(Load(out, (place.var, self.ri)))
            setup += [Alloc(out), Map((place, self.lanes), out, (place.var, self.ri), Const(0.0, self.dtype))]
        self.sums = [Load(self.row_tile("row_sum"), (self.ri,)) for _ in e.sums]
        for held in self.sums:
            setup += [Alloc(held.buffer), Map((self.lanes,), held.buffer, (self.ri,), Const(0.0, self.dtype))]
        rows = self._row_operands(setup)
        found = find_columns(self.context, e, self.conditions, self.shift, self.live_lanes, s.columns)
        within = None if found is None else found.bounds
        setup += () if found is None else found.code
        step = Loop(self.c0, self.span.start, self.span.stop, s.columns, tuple(self._step(rows, places, sums)), within)
        pairs = [(c.place, place) for c, place in zip(e.consumers, places, strict=True)]
        stores = scores_stores(self.context, self.parts, e, self.shift, self.live_lanes, pairs, sums, self.sums)
        others = (Iter.over(p, n) for p, n in e.others)
        grid = Grid((*others, Iter.over(self.number, self.blocks)), (*setup, step, *stores))
        return replace(self.context.finish("scores", (grid,), s.describe()), skipped=self.span.skipped)

    def _row_operands(self, setup: list[Statement]) -> list[Load]:
        """A block of rows of each product, across the lanes; what several products read is there once."""
        held: dict[ScalarExpr, Buffer] = {}
        found: list[Load] = []
        for p in self.e.products:
            depth = Iter(p.depth, p.extent)
            value = self._cast(reindex(p.row, self.shift))
            if value not in held:
                tile = held[value] = self.tile("rows", p.extent, self.schedule.rows)
                where = (p.depth, self.ri)
                setup.append(Alloc(tile))
                if self.live_lanes.limit is not None:  # what else lanes hold may be subnormal, slow to multiply
                    setup.append(Map((depth, self.lanes), tile, where, Const(0.0, self.dtype)))
                setup.append(Map((depth, self.live_lanes), tile, where, value))
            found.append(Load(held[value], (p.depth, self.ri)))
        return found

    def _step(self, rows: Sequence[Load], places: Sequence[Iter], sums: Sequence[Load]) -> list[Statement]:
        s, e = self.schedule, self.e
        code: list[Statement] = []
        read: dict[ScalarExpr, Load] = {}
        raws: dict[Buffer, Load] = {}
        for p, row in zip(e.products, rows, strict=True):
            depth = Iter(p.depth, p.extent)
            column = self._column(p.column, p.depth, depth, code, read)
            raw = raws[p.raw] = Load(self.tile("scores", s.columns, s.rows), (self.cj, self.ri))
            code.append(Alloc(raw.buffer))
            dot = Dot(self.block, self.lanes, depth, raw, column, row, True, s.scores)
            code += in_blocks(dot, block_for(e.rows, e.columns))
        weights = self._weights(raws, code)
        for c, place, weight, total in zip(e.consumers, places, weights, sums, strict=True):
            column = self._column(c.column, c.place, place, code, read)
            code.append(Dot(place, self.lanes, self.block, total, column, weight, False, s.values))
        return code

    def _weights(self, raws: dict[Buffer, Load], code: list[Statement]) -> list[Load]:
        """Tiles of what each consumer reads."""
        values: list[ScalarExpr] = []
        for score in self.e.scores:
            value = reindex(score, self.shift)
            for raw, load in raws.items():
                value = with_loads_replaced(value, raw, load)
            values.append(self._cast(value))
        common = shared_part(values)
        if common is not None:
            kept = self._put(common, "shared", code)
            values = [rewrite(v, lambda n: kept if n == common else None) for v in values]
        count = len(self.e.consumers)
        for held, value in zip(self.sums, values[count:], strict=True):
            here = all(map(_is_tile, loads(value)))
            domain = self.block, self.lanes if here else self.live_lanes
            code.append(Reduce(domain, held.buffer, (self.ri,), "sum", value, fresh=False))
        values = values[:count]
        return [v if isinstance(v, Load) and _is_tile(v) else self._put(v, "weights", code) for v in values]

    def _put(self, value: ScalarExpr, name: str, code: list[Statement]) -> Load:
        """A value at each point of a block in a tile. No bias or mask is there for rows beyond the last."""
        tile = self.tile(name, self.schedule.columns, self.schedule.rows)
        here = all(map(_is_tile, loads(value)))
        where = (self.cj, self.ri)
        code += [Alloc(tile), Map((self.block, self.lanes if here else self.live_lanes), tile, where, value)]
        return Load(tile, where)

    def _cast(self, element: ScalarExpr) -> ScalarExpr:
        return element if element.dtype == self.dtype else Apply("cast", (element,), self.dtype)

    def _column(
        self, element: ScalarExpr, own: Symbol, inner: Iter, code: list[Statement], read: dict[ScalarExpr, Load]
    ) -> Load:
        """A block of columns' elements: read in place where they are plain memory of the right dtype, else copied.

        Those far apart, as heads beside each other have them, fall on few sets of L1: many rows have them copied.
        """
        shifted = self._cast(reindex(element, {**self.shift, own: inner.var}))
        if isinstance(shifted, Load) and is_linear(shifted, (self.cj, inner.var)):
            step = address_step(shifted, self.cj)
            far = isinstance(step, int) and abs(step) > 2 * most(inner.extent)
            if not far or self.schedule.rows < MANY_ROWS:
                return shifted
        key = reindex(shifted, {inner.var: own})
        if key not in read:
            tile = self.tile("columns", self.schedule.columns, inner.extent)
            where = (self.cj, inner.var)
            code += [Alloc(tile), Map((self.block, inner), tile, where, shifted)]
            read[key] = Load(tile, where)
            return read[key]
        return Load(read[key].buffer, (self.cj, inner.var))


def _is_tile(load: Load) -> bool:
    return load.buffer.space == "tile"
