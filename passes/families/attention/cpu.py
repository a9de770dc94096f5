# SPDX-License-Identifier: Apache-2.0
"""Attention as one online loop: scores, softmax and the second dot, a block of keys at a time.

Queries lie on vector lanes: the scores' tile is [keys, queries] and the accumulator [value size, queries], so the
softmax's maximum and sum are lane by lane and both dots read keys and values where they lie.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

from fusec.ir.index import Index, Symbol, add, minimum, mul, sub, symbol
from fusec.ir.indexing import ceildiv, last, most, substitute
from fusec.ir.types import DType, bool_, i64, most_of
from fusec.passes.contraction import accumulator_dtype, contraction
from fusec.passes.families.attention.bounds import KeyTest, key_tests
from fusec.passes.families.attention.elements import AttentionParts, Elements, attention_parts, find_elements
from fusec.passes.families.attention.found_keys import FoundKeys, KeyFinder
from fusec.passes.families.attention.schedule.cpu import AttentionSchedule
from fusec.passes.families.gemm.cpu import limit_of
from fusec.passes.lower.combine import ONE_ROW, Parts, combine
from fusec.passes.lower.context import LoweredGroup, LoweringContext, address_step, element_flops, is_linear
from fusec.passes.lower.epilogue import epilogue_stores
from fusec.passes.lower.mask import KeyRange, key_range, live_conditions, without_factor
from fusec.passes.lower.online import OnlineState, Score, online_softmax
from fusec.passes.lower.sums import in_blocks
from fusec.passes.schedule.sums import block_for
from fusec.tile.attention import mean_of
from fusec.tile.nodes import Alloc, Dot, Grid, Iter, Loop, Map, Statement, Store
from fusec.tile.scalar import Apply, Buffer, Const, IndexValue, Load, ScalarExpr, loads, reindex, with_loads_replaced

MANY_QUERIES = 64
"""For so many a block of keys is worth copying: it takes a twentieth of the time that they take to use it."""

RECOMPUTE_FLOPS = 8
"""A score change of at most this many flops is computed twice rather than stored between max and exp."""


def is_stored(score: ScalarExpr) -> bool:
    """Whether a changed score is stored between max and exp.

    A product is: together with the subtraction it would be one multiply-add, which is not the product that the maximum
    was found of.
    """
    return element_flops(score) > RECOMPUTE_FLOPS or (isinstance(score, Apply) and score.op == "mul")


def lower_attention(context: LoweringContext, schedule: AttentionSchedule) -> LoweredGroup:
    """Grid points are heads (and all other outer axes) by blocks of queries."""
    return _Attention(context, schedule).lower()


def elements_of(context: LoweringContext) -> tuple[AttentionParts, Elements]:
    """The parts of a group's attention, and one element of each."""
    parts = attention_parts(context.op)
    return parts, find_elements(context.inliner, parts)


def start_of(e: Elements, row_max: Load) -> tuple[ScalarExpr, ScalarExpr]:
    """What a query's maximum, held in ``row_max``, and its sum of exponentials start from: those of its sink alone."""
    dtype = row_max.dtype
    if e.sink is None:
        return Const(-inf, dtype), Const(0.0, dtype)
    sink = e.sink if e.sink.dtype == dtype else Apply("cast", (e.sink,), dtype)
    none = Apply("eq", (row_max, Const(-inf, dtype)), bool_)
    weight = Apply("select", (none, Const(0.0, dtype), Const(1.0, dtype)), dtype)
    return sink, weight


def keys_seen(context: LoweringContext) -> int | None:
    """The most keys that a mask leaves a block of queries; None where extents are not known."""
    match, e = elements_of(context)
    queries, keys = match.value_dot.result.type.shape[e.query_axis], contraction(match.value_dot).extents.k
    if not isinstance(queries, int) or not isinstance(keys, int):
        return None
    blocks = -(-queries // _SEEN)
    number = symbol("block", 0, last(blocks))
    found = key_range(e.score, e.point[e.query_axis], e.key_symbol, (queries, _SEEN), (keys, _SEEN), number)
    return min(-(-found.longest(number, blocks) // _SEEN) * _SEEN, keys)


_SEEN = 64
"""Queries and keys in a block, to find how many keys a mask leaves."""


class _Attention:
    def __init__(self, context: LoweringContext, schedule: AttentionSchedule) -> None:
        self.context, self.schedule = context, schedule
        self.match, self.e = elements_of(context)
        match = self.match
        self.dtype: DType = accumulator_dtype(match.score_dot)
        self.exact = gives_rows(match)
        self.factor = factor_of(self.match, self.e, self._cast(self.e.score))
        shape = match.value_dot.result.type.shape
        e, s = self.e, schedule
        self.queries, self.values = shape[e.query_axis], shape[e.value_axis]
        self.keys = contraction(match.value_dot).extents.k
        self.depth = contraction(match.score_dot).extents.k
        self.qo = symbol("qo", 0, last(ceildiv(self.queries, s.queries)))
        self.qi = symbol("qi", 0, s.queries - 1)
        self.k0, self.part = symbol("k0", 0, last(self.keys)), symbol("part", 0, s.split - 1)
        self.kj = symbol("kj", 0, s.keys - 1)
        self.dv = symbol("dv", 0, last(self.values))
        self.shift: dict[Symbol, Index] = {
            e.point[e.query_axis]: add(mul(self.qo, s.queries), self.qi),
            e.key_symbol: add(self.k0, self.kj),
            e.point[e.value_axis]: self.dv,
        }
        self.lanes = Iter(self.qi, s.queries)
        self.live_lanes = Iter(self.qi, s.queries, limit_of(self.queries, s.queries, mul(self.qo, s.queries)))
        self.block = Iter(self.kj, s.keys, limit_of(self.keys, s.keys, self.k0))

    def tile(self, name: str, *extents: Index) -> Buffer:
        return self.context.tile(name, self.dtype, *most_of(extents))

    def lower(self) -> LoweredGroup:
        s, e = self.schedule, self.e
        one = Iter.over(self.dv, self.values)
        depth = Iter.over(e.depth, self.depth)
        q = self.tile("queries", self.depth, s.queries)
        row_max, row_sum = self.tile("row_max", s.queries), self.tile("row_sum", s.queries)
        out = self.tile("acc", self.values, s.queries)
        zero = Const(0.0, self.dtype)
        begin = first_state(e, Load(row_max, (self.qi,)), self.part if s.split > 1 else None)
        first_max, first_sum = (reindex(x, self.shift) for x in begin)
        span = self._key_range()
        setup: list[Statement] = [
            Alloc(q),
            *self._clear(q, depth),
            Map((depth, self.live_lanes), q, (e.depth, self.qi), self._cast(reindex(e.query, self.shift))),
            Alloc(row_max),
            Map((self.lanes if e.sink is None else self.live_lanes,), row_max, (self.qi,), first_max),
            Alloc(row_sum),
            Map((self.lanes if e.sink is None else self.live_lanes,), row_sum, (self.qi,), first_sum),
            Alloc(out),
            Map((one, self.lanes), out, (self.dv, self.qi), zero),
        ]
        start, stop = self._share(span)
        found = find_keys(self.context, e, self.shift, self.live_lanes, self.keys, s.keys)
        setup += found.code if found is not None else ()
        within = found.bounds if found is not None else None
        step = Loop(self.k0, start, stop, s.keys, tuple(self._step(q, row_max, row_sum, out)), within)
        others = [
            Iter.over(p, n)
            for a, (p, n) in enumerate(zip(e.point, self.match.value_dot.result.type.shape, strict=True))
            if a not in (e.query_axis, e.value_axis)
        ]
        blocks = Iter.over(self.qo, ceildiv(self.queries, s.queries))
        if s.split == 1:
            grid = Grid((*others, blocks), (*setup, step, *self._stores(out, row_max, row_sum)))
            return replace(self.context.finish("attention", (grid,), s.describe()), skipped=span.skipped)
        parts = Parts(self.context, s.split, tuple(others), self.queries, one.extent, self.dtype, factor=self.factor)
        loads = (*(Load(b, (self.qi,)) for b in (row_max, row_sum)), Load(out, (self.dv, self.qi)))
        row = self.shift[e.point[e.query_axis]]
        leave = part_stores(parts, parts.at(self.part, row), self.live_lanes, one, loads)
        grid = Grid((*others, blocks, Iter(self.part, s.split)), (*setup, step, *leave))
        lowered = finish_parts(self.context, self.match, e, parts, grid, one, s.describe())
        return replace(lowered, skipped=span.skipped)

    def _clear(self, q: Buffer, depth: Iter) -> list[Statement]:
        """Lanes beyond the last query at 0: what else they hold may be subnormal, which some CPUs multiply slowly."""
        if self.live_lanes.limit is None:
            return []
        return [Map((depth, self.lanes), q, (depth.var, self.qi), Const(0.0, self.dtype))]

    def _share(self, span: KeyRange) -> tuple[Index, Index]:
        """The keys of a task: where they are shared out, an even part of those its queries see, in whole blocks."""
        s = self.schedule
        if s.split == 1:
            return span.start, span.stop
        share = mul(ceildiv(sub(span.stop, span.start), s.keys * s.split), s.keys)
        start = add(span.start, mul(self.part, share))
        return start, minimum(span.stop, add(start, share))

    def _key_range(self) -> KeyRange:
        e, s = self.e, self.schedule
        return key_range(
            e.score, e.point[e.query_axis], e.key_symbol, (self.queries, s.queries), (self.keys, s.keys), self.qo
        )

    def _step(self, q: Buffer, row_max: Buffer, row_sum: Buffer, out: Buffer) -> list[Statement]:
        s, e = self.schedule, self.e
        scores = self.tile("scores", s.keys, s.queries)
        raw = Load(scores, (self.kj, self.qi))
        key, stage_key = self._operand(e.key, "key_block", self.kj, e.depth, self.block, Iter.over(e.depth, self.depth))
        value, stage_value = self._operand(
            e.value, "value_block", self.kj, self.dv, self.block, Iter.over(self.dv, self.values)
        )
        code: list[Statement] = [*stage_key, Alloc(scores)]
        depth = Iter.over(e.depth, self.depth)
        dot = Dot(self.block, self.lanes, depth, raw, key, Load(q, (e.depth, self.qi)), True, s.scores)
        code += in_blocks(dot, block_for(self.queries, self.keys))
        changed = self._changed(raw)
        base = changed if self.factor == 1.0 else without_factor(changed, most=1.0)[0]
        here = _reads_tiles_alone(base)
        if not here or is_stored(base):
            code.append(Map((self.block, self.lanes if here else self.live_lanes), scores, (self.kj, self.qi), base))
            base = raw
        at = (self.qi,)
        own = [Load(self.tile(n, s.queries), at) for n in ("block_max", "shift", "scale")]
        own.append(Load(self.tile("grown", 1), (0,)))
        state = OnlineState(Load(row_max, at), Load(row_sum, at), *own)
        acc = Load(out, (self.dv, self.qi))
        rows = Iter.over(self.dv, self.values)
        score = Score(base, self.factor, self.exact)
        code += online_softmax(self.block, self.lanes, score, raw, state, acc, rows)
        code += stage_value
        code.append(Dot(rows, self.lanes, self.block, acc, value, raw, False, s.values))
        return code

    def _changed(self, raw: Load) -> ScalarExpr:
        """The score as the user changes it, over the raw score in its tile."""
        shifted = reindex(self.e.score, self.shift)
        buffer = self.e.raw_score
        return self._cast(with_loads_replaced(shifted, buffer, raw))

    def _cast(self, element: ScalarExpr) -> ScalarExpr:
        return element if element.dtype == self.dtype else Apply("cast", (element,), self.dtype)

    def _operand(
        self, element: ScalarExpr, name: str, row: Symbol, column: Symbol, rows: Iter, columns: Iter
    ) -> tuple[Load, list[Statement]]:
        """Keys or values: read in place where they are plain memory of the right dtype, else copied to scratch.

        Rows far apart, as those of heads beside each other are, fall on few sets of L1: many queries have them copied.
        """
        shifted = self._cast(reindex(element, self.shift))
        if isinstance(shifted, Load) and is_linear(shifted, (row, column)):
            step = address_step(shifted, row)
            far = isinstance(step, int) and abs(step) > 2 * most(columns.extent)
            if not far or self.schedule.queries < MANY_QUERIES:
                return shifted, []
        tile = self.tile(name, rows.extent, columns.extent)
        return Load(tile, (row, column)), [Alloc(tile), Map((rows, columns), tile, (row, column), shifted)]

    def _stores(self, out: Buffer, *rows: Buffer) -> list[Store]:
        row_max, row_sum = (Load(b, (self.qi,)) for b in rows)
        mean = mean_of(Load(out, (self.dv, self.qi)), row_sum, guarded=self.match.guarded)
        domain = (self.live_lanes, Iter.over(self.dv, self.values))
        stores = attention_stores(self.context, self.match, self.e.point, self.shift, domain, mean)
        state = row_max, row_sum
        return [*stores, *row_stores(self.context, self.match, self.e, self.shift, self.live_lanes, state)]


def data_tests(e: Elements, head: Symbol | None = None) -> list[KeyTest]:
    """What a mask made of data says of keys; see :func:`key_tests`."""
    return key_tests(live_conditions(e.score), e.point[e.query_axis], e.key_symbol, head)


def find_keys(
    context: LoweringContext, e: Elements, shift: dict[Symbol, Index], queries: Iter, keys: Index, step: int
) -> FoundKeys | None:
    """Code that finds which keys a mask made of data leaves to these queries; None where the mask doesn't tell."""
    tests = data_tests(e)
    if not tests:
        return None
    return KeyFinder(tests, e.key_symbol, shift, queries, keys, step, context.unique).find()


def attention_stores(
    context: LoweringContext,
    match: AttentionParts,
    point: tuple[Symbol, ...],
    shift: dict[Symbol, Index],
    domain: tuple[Iter, ...],
    mean: ScalarExpr,
) -> list[Store]:
    """The stores of every output but rows' own; ``mean`` is the attention's result at ``point`` after ``shift``."""
    others = [v for v in (match.row_max, match.row_sum) if v is not None]
    return epilogue_stores(context, "attention", [match.value_dot], point, shift, domain, [mean], others)


def row_stores(
    context: LoweringContext,
    match: AttentionParts,
    e: Elements,
    shift: dict[Symbol, Index],
    rows: Iter,
    state: tuple[Load, Load],
) -> list[Store]:
    """The stores of each row's maximum and sum of exponentials, which ``state`` holds, where they are results.

    Where all scores of a row are -inf the sum is NaN, and so is the maximum of scores of which one is NaN.
    """
    row_max, row_sum = state
    dtype, nothing = row_max.dtype, Const(nan, row_max.dtype)
    hidden, full = (Apply("eq", (row_max, Const(x, dtype)), bool_) for x in (-inf, inf))
    broken = Apply("ne", (row_sum, row_sum), bool_)
    largest = Apply("select", (full, row_max, nothing), dtype)
    values = (
        (match.row_max, Apply("select", (broken, largest, row_max), dtype)),
        (match.row_sum, Apply("select", (hidden, nothing, row_sum), dtype)),
    )
    stores: list[Store] = []
    for value, element in values:
        if value is not None:
            has_axis = value.type.rank == len(e.row)
            at = [i for a, i in enumerate(e.row) if has_axis or a != match.axis]
            stores.append(Store((rows,), context.buffers[value], tuple(substitute(i, shift) for i in at), element))
    return stores


def factor_of(match: AttentionParts, e: Elements, score: ScalarExpr) -> float:
    """A constant factor of all scores, by which a row's maximum is multiplied late.

    1 where the maximum meets others: a sink, or where it is a result. A factor above 1 is none: the scores may overflow
    by it, and are NaN then.
    """
    return 1.0 if e.sink is not None or gives_rows(match) else without_factor(score, most=1.0)[1]


def gives_rows(match: AttentionParts) -> bool:
    """Whether a row's maximum or sum of exponentials is a result, too."""
    return match.row_max is not None or match.row_sum is not None


def first_state(e: Elements, row_max: Load, part: Symbol | None) -> tuple[ScalarExpr, ScalarExpr]:
    """:meth:`Elements.start`; of parts of the keys only the first has the sink."""
    sink, row_sum = start_of(e, row_max)
    if e.sink is not None and part is not None:
        first = Apply("eq", (IndexValue(part), Const(0, i64)), bool_)
        sink = Apply("select", (first, sink, Const(-inf, row_max.dtype)), row_max.dtype)
    return sink, row_sum


def part_stores(
    parts: Parts, at: tuple[Index, ...], rows: Iter, value: Iter, state: tuple[Load, ...]
) -> tuple[Store, ...]:
    """What a task leaves of its part of the keys; ``state`` is row_max, row_sum and the sums of values."""
    row_max, row_sum, out = state
    return (
        Store((rows,), parts.row_max, at, row_max),
        Store((rows,), parts.row_sum, at, row_sum),
        Store((rows, value), parts.out, (*at, value.var), out),
    )


def finish_parts(
    context: LoweringContext,
    match: AttentionParts,
    e: Elements,
    parts: Parts,
    grid: Grid,
    value: Iter,
    details: tuple[tuple[str, int | str], ...],
) -> LoweredGroup:
    """The kernel whose tasks leave parts, and the one that combines them, a row of the result at a time."""
    queries = match.value_dot.result.type.shape[e.query_axis]
    number = symbol("row", 0, last(queries))
    code, mean, state = combine(parts, number, value, guarded=match.guarded)
    shift: dict[Symbol, Index] = {e.point[e.query_axis]: number, e.point[e.value_axis]: value.var}
    stores = attention_stores(context, match, e.point, shift, (ONE_ROW, value), mean)
    stores += row_stores(context, match, e, shift, ONE_ROW, state)
    combined = Grid((*parts.others, Iter.over(number, queries)), (*code, *stores))
    return context.finish_in_two("attention", (grid,), parts.buffers, "row", (combined,), details, warps=0)


def _reads_tiles_alone(element: ScalarExpr) -> bool:
    """True when no bias or mask is loaded, which has no elements for queries beyond the last."""
    return all(x.buffer.space == "tile" for x in loads(element))
