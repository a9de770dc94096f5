# SPDX-License-Identifier: Apache-2.0
"""Attention on a GPU: a block of queries against blocks of keys, the softmax online.

Scores are [queries, keys]; exponentials are powers of two, with log2(e) folded into the scores' scale
(Dao, *FlashAttention-2*, 2023). Where there are few queries, blocks share out the keys and a second kernel combines
what they found (Dao et al., *Flash-Decoding*, 2023).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from math import ceil, inf, log2, prod

from fusec.errors import LoweringError
from fusec.ir.index import Index, Symbol, add, maximum, minimum, mul, sub, symbol, symbols_of
from fusec.ir.indexing import ceildiv, last, most, pow2, substitute
from fusec.ir.types import bool_, f16, f32, i32, i64
from fusec.passes.contraction import accumulator_dtype, allows_tf32, contraction
from fusec.passes.cost.lanes import score_work
from fusec.passes.families.attention.bounds import KeyTest
from fusec.passes.families.attention.cpu import (
    attention_stores,
    data_tests,
    elements_of,
    gives_rows,
    row_stores,
    start_of,
)
from fusec.passes.families.attention.elements import Elements, score_over
from fusec.passes.families.attention.found_keys import SCANNED_BY_BLOCKS, FoundKeys, KeyFinder
from fusec.passes.families.attention.queries import Rows, index_of_row, other_axes, rows_of
from fusec.passes.families.attention.schedule.gpu import GpuAttentionSchedule
from fusec.passes.families.attention.schedule.size import AttentionSize
from fusec.passes.lower.blocks import ATTENTION_BLOCKS, ROW_BLOCKS
from fusec.passes.lower.combine import LOG2E, Parts, combine, exp2_of, exp_of, finite_or_zero, times
from fusec.passes.lower.context import LoweredGroup, LoweringContext
from fusec.passes.lower.distances import by_rows_and_columns
from fusec.passes.lower.limits import block_in_tile, zero_beyond
from fusec.passes.lower.mask import (
    KeyRange,
    key_range,
    live_conditions,
    may_be_huge,
    without_conditions,
    without_factor,
)
from fusec.passes.lower.quotients import by_reciprocals
from fusec.tile.attention import half, mean_of
from fusec.tile.nodes import Alloc, Dot, Grid, Iter, Loop, Map, Reduce, RegisterTile, Statement, Store
from fusec.tile.scalar import (
    Apply,
    Buffer,
    Const,
    IndexValue,
    Load,
    ScalarExpr,
    loads,
    reads_memory,
    reindex,
    symbols_in,
    walk,
    with_loads_replaced,
)
from fusec.tile.templates import AttentionNest, KeyLoop

_SEEN = 128
"""Queries and keys of the blocks that are looked at for what a mask hides, whatever the kernel's are."""

LARGE = 2.0**27
"""The size of a maximum, in units of log2, from which on its product is too far from that of its score."""

_COMBINED = 1 << 11
"""Elements of parts that one block of the reduction kernel puts together."""

_NO_REGISTERS = RegisterTile(0, 0)

State = tuple[Load, Buffer, Buffer, Buffer]
"""The queries; of each of them the maximum, the sum of exponentials and the sum of values so far."""


def lower_attention(context: LoweringContext, schedule: GpuAttentionSchedule, *, bounded: bool = True) -> LoweredGroup:
    """Grid points are blocks of queries, the last (under a causal mask the longest) first, by heads and outer axes.

    With ``schedule.split`` parts of the keys, the kernel leaves a maximum, a sum and a weighted sum of values for each
    part, and a reduction kernel combines them. Keys that a mask made of data empties are left out where ``bounded``.
    """
    return _Attention(context, schedule, bounded).lower()


def attention_nest(context: LoweringContext, schedule: GpuAttentionSchedule) -> AttentionNest:
    """The record that :func:`lower_attention_nest` gives, alone."""
    return _Attention(context, schedule, bounded=False).nest()


def lower_attention_nest(
    context: LoweringContext, schedule: GpuAttentionSchedule
) -> tuple[LoweredGroup, AttentionNest]:
    """The same kernel, and as a record what it reads, computes and stores, for tensor cores that multiply 16 bits.

    LoweringError where operands are computed or not of 16 bits, for heads of odd sizes, and for a sink.
    """
    attention = _Attention(context, schedule, bounded=False)
    return attention.lower(), attention.nest()


def attention_size(context: LoweringContext, usual: Callable[[Index], int] = most) -> AttentionSize:
    """What its schedule depends on; ``usual`` gives the number to take for an extent that is symbolic."""
    match, e = elements_of(context)
    shape = match.value_dot.result.type.shape
    keys, depth = usual(contraction(match.value_dot).extents.k), contraction(match.score_dot).k
    rows = rows_of(e, shape, depth)
    heads = prod(i.extent if i.limit is None else usual(i.limit) for i in other_axes(e, rows, shape))
    count = usual(rows.count) if rows.heads == 1 else most(rows.count)
    bits = match.score_dot.operands[0].type.dtype.bits
    masked = bool(live_conditions(e.score))
    tests = shared_tests(e, rows)
    bounded = any(t.query is not None for t in tests)
    apart = {s for i in other_axes(e, rows, shape) for s in symbols_of(i.var)}
    uneven = any(not apart.isdisjoint(symbols_in(x)) for t in tests for x in (t.key, t.query) if x is not None)
    queries, columns = rows.queries, contraction(match.value_dot).extents.k
    number = symbol("block", 0, last(ceildiv(queries, _SEEN)))
    span = key_range(e.score, e.point[e.query_axis], e.key_symbol, (queries, _SEEN), (columns, _SEEN), number)
    work = score_work(without_conditions(e.score, span.conditions), e.key_symbol, e.raw_score)
    return AttentionSize(
        heads,
        count,
        rows.heads > 1,
        masked,
        keys,
        depth,
        most(shape[e.value_axis]),
        bits,
        bounded,
        span.skipped,
        work.instructions,
        work.specials,
        *_reads(e),
        uneven,
    )


def _reads(e: Elements) -> tuple[int, int]:
    """Loads of a score that depend on query and key, and on the key alone."""
    found = {load for load in loads(e.score) if load.buffer is not e.raw_score and e.key_symbol in load.symbols}
    points = sum(e.point[e.query_axis] in load.symbols for load in found)
    return points, len(found) - points


def shared_tests(e: Elements, rows: Rows) -> list[KeyTest]:
    """What data say of the keys that a block visits, of one head or of several."""
    return data_tests(e, e.point[rows.axis] if rows.heads > 1 else None)


class _Attention:
    def __init__(self, context: LoweringContext, schedule: GpuAttentionSchedule, bounded: bool) -> None:
        self.context, self.schedule, self.bounded = context, schedule, bounded
        self.match, self.e = elements_of(context)
        match = self.match
        self.dtype = accumulator_dtype(match.score_dot)
        self.tf32 = allows_tf32(match.score_dot), allows_tf32(match.value_dot)
        if self.dtype is not f32:
            raise LoweringError(f"attention of {self.dtype} on a GPU")
        self.shape = match.value_dot.result.type.shape
        e, s = self.e, schedule
        self.keys = contraction(match.value_dot).extents.k
        self.depth = contraction(match.score_dot).k
        values = self.shape[e.value_axis]
        if not isinstance(values, int) or not isinstance(contraction(match.score_dot).extents.k, int):
            raise LoweringError("heads of symbolic extent")
        self.rows, self.values = rows_of(e, self.shape, self.depth), values
        if self.rows.heads > 1 and most(self.rows.count) > s.queries:
            raise LoweringError(f"{self.rows.count} rows that share their keys in a block of {s.queries}")
        self.blocks = ceildiv(self.rows.count, s.queries)
        self.qo, self.query_block = symbol("qo", 0, last(self.blocks)), symbol("query_block", 0, last(self.blocks))
        self.last_first: dict[Symbol, Index] = {
            self.qo: sub(sub(self.blocks, 1), self.query_block) if most(self.blocks) > 1 else 0
        }
        self.qi, self.kj = symbol("qi", 0, s.queries - 1), symbol("kj", 0, s.keys - 1)
        self.k0 = symbol("k0", 0, last(self.keys))
        self.part = symbol("part", 0, s.split - 1)
        wide, deep = _pow2(self.values), _pow2(self.depth)
        self.vi, self.di = symbol("vi", 0, wide - 1), symbol("di", 0, deep - 1)
        first = mul(self.last_first[self.qo], s.queries)
        self.row = add(first, self.qi)
        self.others = other_axes(e, self.rows, self.shape)
        self.shift: dict[Symbol, Index] = {
            **index_of_row(e, self.rows, self.row),
            e.key_symbol: add(self.k0, self.kj),
            e.point[e.value_axis]: self.vi,
            e.depth: self.di,
        }
        self.shared_shift = {**self.shift, **index_of_row(e, self.rows, 0)}
        whole = self.rows.count % s.queries == 0
        self.q = Iter(self.qi, s.queries, None if whole else sub(self.rows.count, first))
        self.block = Iter(self.kj, s.keys, None if self.keys % s.keys == 0 else sub(self.keys, self.k0))
        self.value = Iter(self.vi, wide, None if wide == self.values else self.values)
        self.inner = Iter(self.di, deep, None if deep == self.depth else self.depth)
        self.mean = Buffer("mean", f32, (), (), "tile")

    def tile(self, name: str, *shape: int) -> Buffer:
        return self.context.tile(name, f32, *shape)

    def lower(self) -> LoweredGroup:
        s, e = self.schedule, self.e
        rows = Iter(self.qi, s.queries)
        query, query_code = self._operand(e.query, "queries", self.shift, self.q, self.inner, stage=True)
        row_max, row_sum = self.tile("row_max", s.queries), self.tile("row_sum", s.queries)
        out = self.tile("acc", s.queries, self.value.extent)
        row = (self.qi,)
        first_max, first_sum = self._start(Load(row_max, row))
        setup: list[Statement] = [
            *query_code,
            Alloc(row_max),
            Map((rows if e.sink is None else self.q,), row_max, row, first_max),
            Alloc(row_sum),
            Map((rows,), row_sum, row, first_sum),
            Alloc(out),
            Map((rows, Iter(self.vi, self.value.extent)), out, (self.qi, self.vi), Const(0.0, f32)),
        ]
        found = self._find_keys()
        setup += found.code if found is not None else ()
        state = (query, row_max, row_sum, out)
        whole_first = sorted(
            self.loops, key=lambda loop: loop is not self.loops[self.whole]
        )  # whose names are shortest
        steps = {loop.raw: self._loop_of(loop, state) for loop in whole_first}
        loops = [steps[loop.raw] for loop in self.loops]
        if found is not None:
            loops = [replace(loop, within=found.bounds) for loop in loops]
        code = (*setup, *loops)
        blocks = Iter.over(self.query_block, self.blocks)
        if s.split == 1:
            mean = mean_of(Load(out, (self.qi, self.vi)), Load(row_sum, row), guarded=self.match.guarded)
            stores = [replace(s, value=with_loads_replaced(s.value, self.mean, mean)) for s in self.stores]
            stores += self._row_stores(self.shift, self.q, (Load(row_max, row), Load(row_sum, row)))
            grid = Grid((*self.others, blocks), (*code, *stores))
            lowered = self.context.finish("attention", (grid,), s.describe(), ATTENTION_BLOCKS)
            return replace(self._beside_rows(lowered), skipped=self.span.skipped)
        parts = Parts(self.context, s.split, self.others, self.rows.count, self.values)
        at = parts.at(self.part, self.row)
        leave = (
            Store((self.q,), parts.row_max, at, Load(row_max, row)),
            Store((self.q,), parts.row_sum, at, Load(row_sum, row)),
            Store((self.q, self.value), parts.out, (*at, self.vi), Load(out, (self.qi, self.vi))),
        )
        grid = Grid((*self.others, blocks, Iter(self.part, s.split)), (*code, *leave))
        combining = (self._combine(parts),)
        traits = ATTENTION_BLOCKS, ROW_BLOCKS
        lowered = self.context.finish_in_two(
            "attention", (grid,), parts.buffers, "row", combining, s.describe(), traits=traits
        )
        return replace(self._beside_rows(lowered), skipped=self.span.skipped)

    def _beside_rows(self, lowered: LoweredGroup) -> LoweredGroup:
        """A row's maximum and sum don't ask for more exact functions than the results beside them."""
        own = {self.match.row_max, self.match.row_sum}
        dtypes = [v.type.dtype for v in self.context.body.outputs if v not in own and v.type.dtype.is_float]
        final = max(dtypes, key=lambda d: d.bits, default=None)
        return replace(lowered, kernel=replace(lowered.kernel, final=final))

    def _combine(self, parts: Parts) -> Grid:
        """The reduction kernel: some rows of the result from their parts."""
        count = self.rows.count
        most_rows = max(1, _COMBINED // (pow2(parts.count) * self.value.extent))
        each = min(pow2(max(count, 1)), 1 << (most_rows.bit_length() - 1)) if isinstance(count, int) else 1
        blocks = ceildiv(count, each)
        number, ri = symbol("row", 0, last(blocks)), symbol("ri", 0, each - 1)
        row = number if each == 1 else add(mul(number, each), ri)
        whole = isinstance(count, int) and count % each == 0
        rows = Iter(ri, each, None if whole else sub(count, mul(number, each)))
        code, mean, state = combine(parts, row, self.value, guarded=self.match.guarded, rows=rows)
        shift = {**self.shift, **index_of_row(self.e, self.rows, row)}
        stores = [*self._stores(shift, rows, mean), *self._row_stores(shift, rows, state)]
        return Grid((*self.others, Iter.over(number, blocks)), (*code, *stores))

    @cached_property
    def span(self) -> KeyRange:
        """The keys that a block of queries visits."""
        return self._key_range(self.e.score)

    @cached_property
    def stores(self) -> list[Store]:
        """The results, over the weighted mean of values."""
        return self._stores(self.shift, self.q, Load(self.mean, ()))

    def nest(self) -> AttentionNest:
        """What tensor cores' kernels are told, as a record."""
        e, loops = self.e, self.loops
        if e.sink is not None:
            raise LoweringError("logits beside those of the keys")
        if gives_rows(self.match):
            raise LoweringError("a row's maximum and sum as results")
        plain = Iter(self.kj, self.schedule.keys)
        partial = any(loop.limit is not None for loop in loops)
        return AttentionNest(
            self.others,
            Iter.over(self.query_block, self.blocks),
            self.q,
            self.block if partial else plain,
            self.inner,
            self.value,
            self.k0,
            half(reindex(e.query, self.shift), self.inner, "queries", eight=True),
            half(reindex(e.key, self.shared_shift), self.inner, "keys", eight=True),
            half(reindex(e.value, self.shared_shift), self.value, "values"),
            tuple(loops),
            self.whole,
            self.mean,
            self.match.guarded,
            tuple(self.stores),
        )

    @cached_property
    def whole(self) -> int:
        """The position of the loop whose blocks no mask touches; of the only one, where there is no other."""
        return min(range(len(self.loops)), key=lambda n: _effort(self.loops[n]))

    @cached_property
    def loops(self) -> list[KeyLoop]:
        """The masked steps before the whole blocks of keys, those blocks without the mask, the masked steps after."""
        span = self.span
        if span.full is None or span.full[0] == span.full[1]:
            return [self._key_loop(span.start, span.stop, self.e.score, self.block.limit)]
        first, last = span.full
        plain = without_conditions(self.e.score, span.conditions)
        loops = [self._key_loop(first, last, plain, None)]
        if first != span.start:
            loops.insert(0, self._key_loop(span.start, first, self.e.score, self.block.limit))
        if last != span.stop:
            loops.append(self._key_loop(last, span.stop, self.e.score, self.block.limit))
        return loops

    def _key_loop(self, start: Index, stop: Index, score: ScalarExpr, limit: Index | None) -> KeyLoop:
        """Where the scores are a dot alone, their scale and log2(e) are one multiply-add with the maximum; with
        masks and biases, whose size nothing bounds, the maximum is subtracted first."""
        start, stop = substitute(start, self.last_first), substitute(stop, self.last_first)
        s = self.schedule
        if s.split > 1 and not self.tests:
            share = mul(ceildiv(self.keys, s.keys * s.split), s.keys)
            start = maximum(start, mul(self.part, share))
            stop = minimum(stop, mul(add(self.part, 1), share))
        scores = self.tile("scores", s.queries, s.keys)
        changed = self._changed(score, Load(scores, (self.qi, self.kj)))
        huge = may_be_huge(changed)
        base, factor = (changed, 1.0) if huge else without_factor(changed)
        return KeyLoop(start, stop, limit, scores, base, factor, huge)

    def _loop_of(self, loop: KeyLoop, state: State) -> Loop:
        return Loop(self.k0, loop.start, loop.stop, self.schedule.keys, tuple(self._step(loop, *state)))

    def _start(self, row_max: Load) -> tuple[ScalarExpr, ScalarExpr]:
        """Of the parts of the keys only the first has the sink."""
        sink, row_sum = (reindex(x, self.shift) for x in start_of(self.e, row_max))
        if self.e.sink is not None and self.schedule.split > 1:
            first = Apply("eq", (IndexValue(self.part), Const(0, i64)), bool_)
            sink = Apply("select", (first, sink, Const(-inf, f32)), f32)
        return sink, row_sum

    def _find_keys(self) -> FoundKeys | None:
        """The keys that a mask made of data leaves; None where there is no such mask."""
        e, s = self.e, self.schedule
        tests = self.tests
        if not tests:
            return None
        span = self.span
        past = minimum(mul(ceildiv(span.stop, s.keys), s.keys), self.keys)
        within = substitute(span.start, self.last_first), substitute(past, self.last_first)
        known = (), within, SCANNED_BY_BLOCKS
        unique = self.context.unique
        found = KeyFinder(tests, e.key_symbol, self.shift, self.q, self.keys, s.keys, unique, *known).find()
        return found if s.split == 1 else found.part_of(IndexValue(self.part, i32), s.split, s.keys, unique)

    @cached_property
    def tests(self) -> list[KeyTest]:
        return shared_tests(self.e, self.rows) if self.bounded else []

    def _key_range(self, score: ScalarExpr) -> KeyRange:
        e, s = self.e, self.schedule
        block = s.queries if self.rows.heads == 1 else most(self.rows.queries)
        query = e.point[e.query_axis]
        return key_range(score, query, e.key_symbol, (self.rows.queries, block), (self.keys, s.keys), self.qo)

    def _step(self, loop: KeyLoop, query: Load, row_max: Buffer, row_sum: Buffer, out: Buffer) -> list[Statement]:
        """One block of keys."""
        s, e, scores = self.schedule, self.e, loop.raw
        rows, keys = Iter(self.qi, s.queries), Iter(self.kj, s.keys, loop.limit)
        key, key_code = self._operand(e.key, "key_block", self.shared_shift, keys, self.inner)
        value, value_code = self._operand(e.value, "value_block", self.shared_shift, keys, self.value)
        weights = self.tile("weights", s.queries, s.keys)
        names = ("top", "block_max", "shift", "scale")
        top, block_max, shift, scale = (self.tile(n, s.queries) for n in names)
        index, row = (self.qi, self.kj), (self.qi,)
        raw, weight = Load(scores, index), Load(weights, index)
        at = {b: Load(b, row) for b in (row_max, row_sum, top, block_max, shift, scale)}
        higher = Apply("maximum", (at[row_max], times(at[top], loop.factor)), f32)
        product, product_code = self._products(loop, at[top], at[shift])
        power = exp_of(raw, at[shift]) if product is None else exp2_of(Apply("mul", (raw, product[0]), f32), product[1])
        power = zero_beyond(power, keys)
        domain = (rows, keys)
        acc = Load(out, (self.qi, self.vi))
        code: list[Statement] = [
            *key_code,
            Alloc(scores),
            Dot(self.q, keys, self.inner, raw, query, key, True, _NO_REGISTERS, self.tf32[0]),
        ]
        if loop.score != raw:
            # what a mask or a bias reads is not there for queries beyond the last
            reads = reads_memory(loop.score)
            code.append(Map((self.q if reads else rows, keys), scores, index, loop.score))
        return [
            *code,
            Alloc(top),
            Reduce(domain, top, row, "max", raw),
            Alloc(block_max),
            Map((rows,), block_max, row, higher),
            Alloc(shift),
            Map((rows,), shift, row, finite_or_zero(at[block_max])),
            Alloc(scale),
            Map((rows,), scale, row, exp_of(at[row_max], at[shift])),
            Map((rows,), row_max, row, at[block_max]),
            *product_code,
            Alloc(weights),
            Map((rows, Iter(self.kj, s.keys)), weights, index, power),
            Map((rows,), row_sum, row, Apply("mul", (at[row_sum], at[scale]), f32)),
            Reduce((rows, Iter(self.kj, s.keys)), row_sum, row, "sum", weight, fresh=False),
            Map((rows, Iter(self.vi, self.value.extent)), out, (self.qi, self.vi), Apply("mul", (acc, at[scale]), f32)),
            *value_code,
            Dot(rows, self.value, keys, acc, weight, value, False, _NO_REGISTERS, self.tf32[1]),
        ]

    def _products(self, loop: KeyLoop, top: Load, shift: Load) -> tuple[tuple[Load, Load] | None, list[Statement]]:
        """What a row's scores are multiplied by and what is then subtracted, for exponents that are a multiply-add.

        The maximum's product, rounded, is far from the exact one where it is LARGE. There scores are multiplied by a
        power of two, which is exact; those of a block without the maximum weigh nothing. None where the maximum is
        subtracted first.
        """
        if loop.subtracts_first:
            return None, []
        s, rows = self.schedule, (Iter(self.qi, self.schedule.queries),)
        by, less = (Load(self.tile(name, s.queries), (self.qi,)) for name in ("by", "in_log2"))
        power = 2.0 ** ceil(log2(loop.scale))

        def constant(value: float) -> Const:
            return Const(value, f32)

        in_log2 = times(shift, LOG2E)
        large = Apply("ge", (Apply("abs", (in_log2,), f32), constant(LARGE)), bool_)
        here = Apply("ge", (times(top, loop.factor), shift), bool_)
        exact = Apply("select", (here, times(top, power), constant(inf)), f32)
        code: list[Statement] = [
            Alloc(by.buffer),
            Map(rows, by.buffer, (self.qi,), Apply("select", (large, constant(power), constant(loop.scale)), f32)),
            Alloc(less.buffer),
            Map(rows, less.buffer, (self.qi,), Apply("select", (large, exact, in_log2), f32)),
        ]
        return (by, less), code

    def _changed(self, score: ScalarExpr, raw: Load) -> ScalarExpr:
        changed = score_over(raw, reindex(score, self.shift), self.e.raw_score)
        changed = by_rows_and_columns(changed, {self.kj, self.k0})
        half = self.match.value_dot.result.type.dtype.bits == 16
        return by_reciprocals(changed, {self.qi}, {self.kj, self.k0}) if half else changed

    def _operand(
        self,
        element: ScalarExpr,
        name: str,
        shift: dict[Symbol, Index],
        rows: Iter,
        columns: Iter,
        *,
        stage: bool = False,
    ) -> tuple[Load, list[Statement]]:
        """A block of an operand: read where it is used, or first into a tile (``stage``, or one that is computed).
        Floats of 8 bits are multiplied as f16, which holds them."""
        shifted = reindex(element, shift)
        if shifted.dtype.kind == "float8":
            shifted = Apply("cast", (shifted,), f16)
        if isinstance(shifted, Load) and not shifted.gathers and not stage:
            return shifted, []
        return block_in_tile(self.context, name, shifted, rows, columns)

    def _stores(self, shift: dict[Symbol, Index], rows: Iter, mean: ScalarExpr) -> list[Store]:
        return attention_stores(self.context, self.match, self.e.point, shift, (rows, self.value), mean)

    def _row_stores(self, shift: dict[Symbol, Index], rows: Iter, state: tuple[Load, Load]) -> list[Store]:
        return row_stores(self.context, self.match, self.e, shift, rows, state)


def _effort(loop: KeyLoop) -> tuple[bool, int]:
    return loop.limit is not None, sum(1 for _ in walk(loop.score))


def _pow2(n: int) -> int:
    return max(16, pow2(n))
