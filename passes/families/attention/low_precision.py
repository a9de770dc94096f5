# SPDX-License-Identifier: Apache-2.0
"""Attention whose operands are bf16, multiplied in the CPU's units for it: AMX tiles, or AVX512-BF16.

As in :mod:`fusec.passes.families.attention.cpu` queries lie on lanes: scores are [keys, queries], results [value size,
queries]. Keys are the left operand of the first dot where they lie. A task brings its queries into pairs along the
depth, once, and turns the values of a chunk of keys, so that keys lie side by side; then block after block of its
queries passes these. Weights are rounded into pairs of keys, the right operand of the second dot.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf, prod

from fusec.errors import LoweringError
from fusec.ir.index import Index, Symbol, add, floordiv, maximum, minimum, mod, mul, sub, symbol
from fusec.ir.indexing import ceildiv, last, round_up
from fusec.ir.indexing import substitute as replace_in
from fusec.ir.types import DType, bf16, bool_, f32, fixed, i64
from fusec.passes.contraction import accumulator_dtype, contraction
from fusec.passes.families.attention.cpu import (
    MANY_QUERIES,
    attention_stores,
    elements_of,
    factor_of,
    find_keys,
    finish_parts,
    first_state,
    gives_rows,
    is_stored,
    part_stores,
    row_stores,
)
from fusec.passes.families.attention.elements import AttentionParts, score_over
from fusec.passes.families.attention.found_keys import FoundKeys
from fusec.passes.families.attention.schedule.cpu import LowPrecisionAttentionSchedule
from fusec.passes.families.gemm.cpu import limit_of
from fusec.passes.lower.combine import Parts
from fusec.passes.lower.context import LoweredGroup, LoweringContext, address_step, is_linear
from fusec.passes.lower.mask import KeyRange, key_range, without_conditions, without_factor
from fusec.passes.lower.online import OnlineState, Score, online_softmax
from fusec.target.cpu import CpuTarget
from fusec.tile.attention import mean_of
from fusec.tile.nodes import Alloc, Dot, Grid, If, Iter, Loop, Map, Statement, Store
from fusec.tile.scalar import Apply, Buffer, Const, IndexValue, Load, ScalarExpr, reads_memory, reindex

_LINE = 32
"""Elements of a cache line."""

TILE_DEPTH = 32
"""Of k in one row of an AMX tile of bf16."""


def multiplies_low_precision(match: AttentionParts, target: CpuTarget) -> bool:
    """Whether both dots are of bf16, known in size, and the target multiplies that as it is."""
    dots = (match.score_dot, match.value_dot)
    sizes = [n for e in (contraction(op).extents for op in dots) for n in (e.m, e.n, e.k)]
    return (
        all(v.type.dtype is bf16 for op in dots for v in op.operands)
        and accumulator_dtype(match.score_dot) is f32
        and all(isinstance(n, int) for n in sizes)
        and (target.multiplies(bf16) or target.multiplies_in_tiles(bf16))
        and target.has_avx512
    )


def lower_low_precision_attention(context: LoweringContext, schedule: LowPrecisionAttentionSchedule) -> LoweredGroup:
    """Grid points are heads (and all other outer axes) by tasks of queries."""
    return _LowPrecisionAttention(context, schedule).lower()


class _LowPrecisionAttention:
    def __init__(self, context: LoweringContext, schedule: LowPrecisionAttentionSchedule) -> None:
        self.context, self.s = context, schedule
        self.match, self.e = match, e = elements_of(context)
        s = schedule
        self.shape = match.value_dot.result.type.shape
        self.queries, self.values = fixed((self.shape[e.query_axis], self.shape[e.value_axis]))
        self.keys, self.size = contraction(match.value_dot).k, contraction(match.score_dot).k
        tiles = s.scores.tiles
        self.depth = round_up(self.size, TILE_DEPTH if tiles else 2)
        self.rows = round_up(self.values, 16) if tiles else self.values
        if s.task % s.queries or s.chunk % s.keys:
            raise LoweringError(f"tasks of {s.task} and chunks of {s.chunk} are no whole blocks")
        self.exact = gives_rows(match)
        one = Load(Buffer("scores", f32, (1, 1), (1, 1), "tile"), (0, 0))
        self.factor = factor_of(match, e, score_over(one, e.score, e.raw_score))
        self.per = s.task // s.queries
        self.qo = symbol("qo", 0, last(ceildiv(self.queries, s.task)))
        self.seen = self._span(s.task, s.keys, self.qo)[0] if s.shared else KeyRange(0, self.keys, 0.0)
        self.chunks = -(-self.seen.longest(self.qo, -(-self.queries // s.task)) // s.chunk)
        self.ragged = self.keys % s.keys != 0
        self.qs, self.qi = symbol("qs", 0, self.per - 1), symbol("qi", 0, s.queries - 1)
        self.c0, self.k0 = symbol("c0", 0, (self.chunks - 1) * s.chunk), symbol("k0", 0, last(self.keys))
        self.part = symbol("part", 0, self.chunks - 1)
        self.shares = s.shared and self.chunks > 1
        self.first_key: Index = self.seen.start if self.shares else 0
        self.chunk: Index = self.c0 if self.chunks > 1 else 0
        if self.shares:
            self.chunk = add(self.first_key, mul(self.part, s.chunk))
        self.whole_chunks = self.first_key == 0 and self.keys % s.chunk == 0
        self.kj, self.dv = symbol("kj", 0, s.keys - 1), symbol("dv", 0, self.rows - 1)
        self.di = symbol("di", 0, self.depth - 1)
        self.first: Index = add(mul(self.qo, s.task), mul(self.qs, s.queries))
        self.lanes = Iter(self.qi, s.queries)
        self.live = Iter(self.qi, s.queries, limit_of(self.queries, s.queries, self.first))
        self.block = Iter(self.kj, s.keys)
        self.shift = self._shift(add(self.k0, self.kj))
        self.found = self._find_keys()

    def _find_keys(self) -> FoundKeys | None:
        """The keys that a mask made of data leaves to the task's queries."""
        e, first = self.e, mul(self.qo, self.s.task)
        row = symbol("row", 0, self.s.task - 1)
        rows = Iter(row, self.s.task, limit_of(self.queries, self.s.task, first))
        return find_keys(self.context, e, {e.point[e.query_axis]: add(first, row)}, rows, self.keys, self.s.keys)

    def _shift(self, key: Index) -> dict[Symbol, Index]:
        """The tight symbols as block and position in the block, with this key."""
        e = self.e
        return {
            e.point[e.query_axis]: add(self.first, self.qi),
            e.key_symbol: key,
            e.point[e.value_axis]: self.dv,
        }

    def tile(self, name: str, dtype: DType, *shape: int) -> Buffer:
        return self.context.tile(name, dtype, *shape)

    def lower(self) -> LoweredGroup:
        s, e = self.s, self.e
        code, query = self._queries()
        state, start = self._state()
        code += start
        code += self.found.code if self.found is not None else ()
        spans = self._span(s.queries, s.keys, symbol("q", 0, last(ceildiv(self.queries, s.queries))))
        chunk = self._chunk(spans, query, state)
        if self.chunks > 1 and not self.shares:
            whole = self._span(s.task, s.chunk, self.qo)
            code.append(Loop(self.c0, whole[0].start, whole[0].stop, s.chunk, tuple(chunk)))
        else:
            code += chunk
        others = [
            Iter.over(p, n)
            for a, (p, n) in enumerate(zip(e.point, self.shape, strict=True))
            if a not in (e.query_axis, e.value_axis)
        ]
        tasks = Iter.over(self.qo, ceildiv(self.queries, s.task))
        if self.shares:
            lowered = self._in_parts(tuple(others), tasks, code, state)
        else:
            code.append(self._over_blocks(tuple(self._stores(state))))
            lowered = self.context.finish("attention", (Grid((*others, tasks), tuple(code)),), s.describe())
        return replace(lowered, skipped=spans[0].skipped)

    def _in_parts(
        self,
        others: tuple[Iter, ...],
        tasks: Iter,
        code: list[Statement],
        state: tuple[Buffer, Buffer, Buffer],
    ) -> LoweredGroup:
        """Each task has a chunk of the keys."""
        row_max, row_sum, out = state
        value = Iter(self.dv, self.values)
        parts = Parts(self.context, self.chunks, others, self.queries, self.values, factor=self.factor)
        at = (self.qs, self.qi)
        loads = (Load(row_max, at), Load(row_sum, at), Load(out, (self.qs, self.dv, self.qi)))
        leave = part_stores(parts, parts.at(self.part, add(self.first, self.qi)), self.live, value, loads)
        grid = Grid((*others, tasks, Iter(self.part, self.chunks)), (*code, self._over_blocks(leave)))
        return finish_parts(self.context, self.match, self.e, parts, grid, value, self.s.describe())

    def _over_blocks(self, body: tuple[Statement, ...]) -> Statement:
        """The body for each of the task's blocks of queries."""
        left = ceildiv(sub(self.queries, mul(self.qo, self.s.task)), self.s.queries)
        return Loop(self.qs, 0, minimum(self.per, left), 1, body)

    def _span(self, queries: int, keys: int, block: Symbol) -> tuple[KeyRange, Symbol]:
        e = self.e
        query = e.point[e.query_axis]
        return key_range(e.score, query, e.key_symbol, (self.queries, queries), (self.keys, keys), block), block

    # operands

    def _queries(self) -> tuple[list[Statement], Load]:
        """The task's queries in pairs along the depth."""
        s, e = self.s, self.e
        paired = self.tile("queries", bf16, self.per, self.depth // 2, s.queries, 2)
        code: list[Statement] = [Alloc(paired)]
        pair, unit = symbol("pair", 0, self.depth // 2 - 1), symbol("unit", 0, 1)
        if self.depth != self.size or self.queries % s.task:  # what else memory holds may be subnormal, which is slow
            domain = (Iter(self.qs, self.per), Iter(pair, self.depth // 2), self.lanes, Iter(unit, 2))
            code.append(Map(domain, paired, (self.qs, pair, self.qi, unit), Const(0.0, bf16)))
        element = self._rounded(reindex(e.query, self.shift))
        move: list[Statement] = []
        if not self._is_direct(element, self.qi, e.depth):
            rows = self.tile("query_rows", bf16, s.queries, self.size)
            move += [Alloc(rows), Map((self.live, Iter(e.depth, self.size)), rows, (self.qi, e.depth), element)]
            element = Load(rows, (self.qi, e.depth))
        if self.size % 2 == 0:
            element = reindex(element, {e.depth: add(mul(pair, 2), unit)})
            pairs = (Iter(pair, self.size // 2), self.live, Iter(unit, 2))
            move.append(Map(pairs, paired, (self.qs, pair, self.qi, unit), element))
        else:
            index = (self.qs, floordiv(e.depth, 2), self.qi, mod(e.depth, 2))
            move.append(Map((Iter(e.depth, self.size), self.live), paired, index, element))
        code.append(self._over_blocks(tuple(move)))
        return code, Load(paired, (self.qs, floordiv(self.di, 2), self.qi, mod(self.di, 2)))

    def _keys(self) -> tuple[list[Statement], Load]:
        """Keys where they lie, else in rows of scratch, which are 0 beyond the depth.

        Rows far apart, as those of heads beside each other are, fall on few sets of L1: many queries have them copied.
        """
        e = self.e
        element = self._rounded(reindex(e.key, self.shift))
        usable = not self.ragged and self.depth == self.size and self._is_direct(element, self.kj, e.depth)
        if usable and (self.s.task < MANY_QUERIES or not self._is_far(element)):
            element = reindex(element, {e.depth: self.di})
            assert isinstance(element, Load)
            return [], element
        rows = self.tile("key_rows", bf16, self.s.chunk, self.depth)
        code: list[Statement] = [Alloc(rows)]
        c, ci = self._chunk_keys()
        if self.depth != self.size:
            code.append(Map((Iter(ci, self.s.chunk), Iter(self.di, self.depth)), rows, (ci, self.di), Const(0.0, bf16)))
        value = self._rounded(reindex(e.key, self._shift(add(self.chunk, ci))))
        code.append(Map((c, Iter(e.depth, self.size)), rows, (ci, e.depth), value))
        return code, Load(rows, (add(sub(self.k0, self.chunk), self.kj), self.di))

    def _transposed_values(self) -> tuple[list[Statement], Load]:
        """A chunk's values, keys side by side, those of a step together; 0 beyond the last key."""
        s = self.s
        blocks = s.chunk // s.keys
        transposed = self.tile("transposed", bf16, blocks, self.rows, s.keys)
        ci = symbol("ci", 0, s.keys - 1)
        loop, number, first = self._value_blocks(blocks)
        c = Iter(ci, s.keys, sub(self.keys, first) if self.ragged else None)
        sizes = Iter(self.dv, self.values)
        code: list[Statement] = []
        if self.ragged:
            code.append(Map((sizes, Iter(ci, s.keys)), transposed, (number, self.dv, ci), Const(0.0, bf16)))
        value = self._rounded(reindex(self.e.value, self._shift(add(first, ci))))
        if not isinstance(value, Load):
            rows = self.tile("value_rows", bf16, s.keys, self.values)
            code += [Alloc(rows), Map((c, sizes), rows, (ci, self.dv), value)]
            value = Load(rows, (ci, self.dv))
        code.append(Map((sizes, c), transposed, (number, self.dv, ci), value))
        step = floordiv(sub(self.k0, self.chunk), s.keys)
        return [Alloc(transposed), replace(loop, body=tuple(code))], Load(transposed, (step, self.dv, self.kj))

    def _value_blocks(self, blocks: int) -> tuple[Loop, Index, Index]:
        """A loop over a chunk's blocks of values, the number of the block in it, and the block's first key.

        Where keys that count are found, over the blocks of those.
        """
        size = self.s.keys
        if self.found is None:
            there = blocks if self.whole_chunks else minimum(blocks, ceildiv(sub(self.keys, self.chunk), size))
            number = symbol("vb", 0, blocks - 1)
            return Loop(number, 0, there, 1, ()), number, add(self.chunk, mul(number, size))
        first = symbol("v0", 0, last(self.keys))
        stop = minimum(add(self.chunk, blocks * size), self.keys)
        loop = Loop(first, self.chunk, stop, size, (), self.found.bounds)
        return loop, floordiv(sub(first, self.chunk), size), first

    def _chunk_keys(self) -> tuple[Iter, Symbol]:
        ci = symbol("ci", 0, self.s.chunk - 1)
        return Iter(ci, self.s.chunk, None if self.whole_chunks else sub(self.keys, self.chunk)), ci

    def _is_direct(self, element: ScalarExpr, row: Symbol, inner: Symbol) -> bool:
        return isinstance(element, Load) and is_linear(element, (row, inner)) and address_step(element, inner) == 1

    def _is_far(self, element: ScalarExpr) -> bool:
        step = address_step(element, self.kj) if isinstance(element, Load) else None
        return step is not None and abs(step) > 2 * self.size

    def _rounded(self, element: ScalarExpr) -> ScalarExpr:
        return element if element.dtype is bf16 else Apply("cast", (element,), bf16)

    # the online softmax

    def _state(self) -> tuple[tuple[Buffer, Buffer, Buffer], list[Statement]]:
        """The queries' maxima, sums and results, and their start."""
        s, e = self.s, self.e
        row_max, row_sum = (self.tile(n, f32, self.per, s.queries) for n in ("row_max", "row_sum"))
        out = self.tile("acc", f32, self.per, self.rows, s.queries)
        at = (self.qs, self.qi)
        whole = first_state(e, Load(row_max, at), self.part if self.shares else None)
        first, sums = (reindex(x, self.shift) for x in whole)
        blocks = self.lanes if e.sink is None else self.live
        begin: tuple[Statement, ...] = (
            Map((blocks,), row_max, at, first),
            Map((blocks,), row_sum, at, sums),
            Map((Iter(self.dv, self.rows), self.lanes), out, (self.qs, self.dv, self.qi), Const(0.0, f32)),
        )
        return (row_max, row_sum, out), [Alloc(row_max), Alloc(row_sum), Alloc(out), self._over_blocks(begin)]

    def _chunk(
        self, spans: tuple[KeyRange, Symbol], query: Load, state: tuple[Buffer, Buffer, Buffer]
    ) -> list[Statement]:
        """The task's queries against a chunk of keys."""
        s = self.s
        span, number = spans
        here = {number: add(mul(self.qo, self.per), self.qs)}
        start, stop = replace_in(span.start, here), replace_in(span.stop, here)
        if self.chunks > 1:
            start, stop = maximum(start, self.chunk), minimum(stop, add(self.chunk, s.chunk))
        key_code, key = self._keys()
        value_code, value = self._transposed_values()
        steps = tuple(self._steps(span, here, query, key, value, state))
        within = self.found.bounds if self.found is not None else None
        return [*key_code, *value_code, self._over_blocks((Loop(self.k0, start, stop, s.keys, steps, within),))]

    def _steps(
        self,
        span: KeyRange,
        here: dict[Symbol, Index],
        query: Load,
        key: Load,
        value: Load,
        state: tuple[Buffer, Buffer, Buffer],
    ) -> list[Statement]:
        """One block of keys; without the mask where it hides nothing."""
        masked = tuple(self._step(self.e.score, self.ragged, query, key, value, state))
        free = without_conditions(self.e.score, span.conditions)
        if span.full is None or (free == self.e.score and not self.ragged):
            return list(masked)
        plain = tuple(self._step(free, False, query, key, value, state))
        first, past = (IndexValue(replace_in(i, here)) for i in span.full)
        begins = Apply("ge", (IndexValue(self.k0), first), bool_)
        ends = Apply("lt", (IndexValue(self.k0), past), bool_)
        return [If(Apply("logical_and", (begins, ends), bool_), plain, masked)]

    def _step(
        self,
        score: ScalarExpr,
        ragged: bool,
        query: Load,
        key: Load,
        value: Load,
        state: tuple[Buffer, Buffer, Buffer],
    ) -> list[Statement]:
        s = self.s
        row_max, row_sum, out = state
        scores = self.tile("scores", f32, s.keys, s.queries)
        weights = self.tile("weights", bf16, s.keys // 2, s.queries, 2)
        raw = Load(scores, (self.kj, self.qi))
        code: list[Statement] = [
            Alloc(scores),
            Dot(self.block, self.lanes, Iter(self.di, self.depth), raw, key, query, True, s.scores),
        ]
        element = self._changed(score, raw, ragged, code)
        pairs = Load(weights, (floordiv(self.kj, 2), self.qi, mod(self.kj, 2)))
        at, names = (self.qs, self.qi), ("block_max", "shift", "scale")
        own = [Load(self.tile(n, f32, s.queries), (self.qi,)) for n in names]
        own.append(Load(self.tile("grown", f32, 1), (0,)))
        online = OnlineState(Load(row_max, at), Load(row_sum, at), *own)
        accs, rows = Load(out, (self.qs, self.dv, self.qi)), Iter(self.dv, self.rows)
        changed = Score(element, self.factor, self.exact)
        softmax = online_softmax(self.block, self.lanes, changed, pairs, online, accs, rows, self._next_task())
        code += [Alloc(weights), *softmax]
        code.append(Dot(rows, self.lanes, self.block, accs, value, pairs, False, s.values))
        return code

    def _next_task(self) -> tuple[Load, ...]:
        """A row each of the next task's queries, keys and values, of which a task's steps fetch them all.

        They may lie in another core's cache, and far apart: what reads them first would wait for each.
        """
        s, e = self.s, self.e
        own = e.query_axis, e.value_axis
        heads = [(p, n) for a, (p, n) in enumerate(zip(e.point, self.shape, strict=True)) if a not in own]
        counts = [n for _, n in heads if isinstance(n, int)]
        steps = round_up(self.keys, s.keys)
        if self.shares or self.queries > s.task or len(counts) < len(heads) or prod(counts) < 2:
            return ()
        number: Index = 0
        for (p, _), n in zip(heads, counts, strict=True):
            number = add(mul(number, n), p)
        number = minimum(add(number, 1), prod(counts) - 1)
        following: dict[Symbol, Index] = {}
        for (p, _), n in reversed(list(zip(heads, counts, strict=True))):
            following[p], number = mod(number, n), floordiv(number, n)
        position = add(mul(self.qs, steps), add(self.k0, self.kj))
        of_queries = {e.point[e.query_axis]: minimum(floordiv(mul(position, s.queries), steps), self.queries - 1)}
        of_keys: dict[Symbol, Index] = {e.key_symbol: minimum(floordiv(position, self.per), self.keys - 1)}
        found: list[Load] = []
        for element, row, column, size in (
            (e.query, of_queries, e.depth, self.size),
            (e.key, of_keys, e.depth, self.size),
            (e.value, of_keys, e.point[e.value_axis], self.values),
        ):
            lines = -(-size // _LINE)
            if not isinstance(element, Load) or address_step(element, column) != 1 or 2 * lines > self.per:
                continue
            line = mul(mod(floordiv(self.kj, 2), lines), _LINE)
            read_next = reindex(element, {**following, **row, column: line})
            assert isinstance(read_next, Load)
            found.append(read_next)
        return tuple(found)

    def _changed(self, score: ScalarExpr, raw: Load, ragged: bool, code: list[Statement]) -> ScalarExpr:
        """The score as the user changes it, but for a factor; -inf beyond the last key.

        What costs much, or reads memory, which has nothing for queries beyond the last, takes the raw scores instead.
        """
        changed = score_over(raw, reindex(score, self.shift), self.e.raw_score)
        base = changed if self.factor == 1.0 else without_factor(changed, most=1.0)[0]
        index = (self.kj, self.qi)
        if reads_memory(base):
            keys = Iter(self.kj, self.s.keys, limit_of(self.keys, self.s.keys, self.k0) if ragged else None)
            code.append(Map((keys, self.live), raw.buffer, index, base))
            base = raw
        if ragged:
            there = Apply("lt", (IndexValue(add(self.k0, self.kj)), Const(self.keys, i64)), bool_)
            base = Apply("select", (there, base, Const(-inf, f32)), f32)
        if is_stored(base):
            code.append(Map((self.block, self.lanes), raw.buffer, index, base))
            base = raw
        return base

    def _stores(self, state: tuple[Buffer, Buffer, Buffer]) -> list[Store]:
        *rows, out = state
        row_max, row_sum = (Load(b, (self.qs, self.qi)) for b in rows)
        mean = mean_of(Load(out, (self.qs, self.dv, self.qi)), row_sum, guarded=self.match.guarded)
        domain = (self.live, Iter(self.dv, self.values))
        stores = attention_stores(self.context, self.match, self.e.point, self.shift, domain, mean)
        given = row_max, row_sum
        return [*stores, *row_stores(self.context, self.match, self.e, self.shift, self.live, given)]
