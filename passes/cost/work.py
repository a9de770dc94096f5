# SPDX-License-Identifier: Apache-2.0
"""What one point of a kernel's grid does: seconds of multiplying and of elementwise code on a core, and its nest."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from itertools import zip_longest
from math import ceil, log2
from typing import assert_never

from fusec.ir.index import Expr, Index, Symbol, symbols_of
from fusec.ir.indexing import coefficient, most, round_up, substitute
from fusec.ir.monoid import MONOIDS, monoid_of
from fusec.ir.types import bf16
from fusec.passes.cost.copies import copying
from fusec.passes.cost.instructions import INSTRUCTIONS, instructions, lanes_of, row_instructions
from fusec.passes.cost.traffic import Nest, Repeat, Touch
from fusec.target.cpu import CpuTarget
from fusec.target.rates import Rates, unit_of
from fusec.tile.nodes import (
    Alloc,
    Block,
    Choose,
    Dot,
    Grid,
    If,
    Iter,
    Let,
    Loop,
    Map,
    Reduce,
    Scan,
    SoftmaxExp,
    Statement,
    Store,
)
from fusec.tile.scalar import Apply, Load, ScalarExpr, loads, offset_of

STATEMENT = 12
"""Instructions around a statement's loops."""

ITERATION = 1.0
"""Instructions of an iteration of a loop, counters and branches; more than one of them may be done in a cycle."""

UNROLLED, OUTER_ITERATION = 8, 2.0
"""So many vectors of an innermost loop are written out; the loop around it then has these instructions an iteration."""

POWER, SHORT_POWER = 8, 5
"""Of a power of two for one vector of weights, to all digits and to those of bf16."""

PAIRED = 3
"""Of rounding a vector of weights to bf16 and storing it with its neighbour."""

SEEN = 0.5
"""Of the terms that a mask may hide: which it does is known when it is read."""

ADDED_UP = 4.0
"""Of adding up the lanes of one sum, where k lies on them: four sums by 15 shuffles and additions."""

LATENCY = 4
"""Cycles of a multiply-add, over the two that may start in a cycle: so many times two sums must be under way."""

Values = Mapping[Symbol, Index]


@dataclass(frozen=True)
class Work:
    """Seconds of multiplying and of elementwise code.

    They follow each other, also where stores are spread among the matmuls on tiles: those hold the scheduler's
    positions while they wait. 512×768×3072 with gelu takes as much longer than alone as gelu by itself. touched: the
    nest of memory accesses.
    """

    multiply: float
    vectors: float
    touched: Nest

    @property
    def seconds(self) -> float:
        return self.multiply + self.vectors


class Counter:
    """Counts the work of blocks on one core. halves: the kernel multiplies bf16."""

    def __init__(self, target: CpuTarget, rates: Rates, halves: bool) -> None:
        self.target, self.rates, self.halves = target, rates, halves

    def block(self, block: Block, values: Values) -> Work:
        """A block's work where outer symbols have these values."""
        found: list[Work] = []
        known = set[Load]()
        for s, behind in zip_longest(block, block[1:]):
            if isinstance(s, Store) and s.beside:
                found.append(self._pointwise(s, values, known))
            else:
                known = set()
                found.append(self.statement(s, values))
            if isinstance(s, Store) and isinstance(behind, Store) and behind.beside:
                known.update(loads(s.value))
        return Work(
            sum(w.multiply for w in found),
            sum(w.vectors for w in found),
            [node for w in found for node in w.touched],
        )

    def statement(self, statement: Statement, values: Values) -> Work:
        match statement:
            case Loop():
                return self._loop(statement, values)
            case If():
                return self.block(statement.body, values)
            case Map() | Store():
                return self._pointwise(statement, values)
            case Reduce():
                return self._reduce(statement, values)
            case Scan():
                return self._scan(statement, values)
            case SoftmaxExp():
                return self._softmax_exp(statement, values)
            case Dot():
                return self._dot(statement, values)
            case Alloc() | Choose() | Let():
                return Work(0.0, 0.0, ())
            case Grid():
                raise AssertionError("a grid within a grid")
            case _:
                assert_never(statement)

    def _loop(self, loop: Loop, values: Values) -> Work:
        start, stop = (_number(i, values) for i in (loop.start, loop.stop))
        times = max(0, -(-(stop - start) // loop.step))
        if times == 0:
            return Work(0.0, 0.0, ())
        middle = start + times // 2 * loop.step
        inside = self.block(loop.body, {**values, loop.var: middle})
        each = self._instructions(STATEMENT / 4 + ITERATION)
        touched = _starting(inside.touched, loop.var, symbols_of(loop.start))
        return Work(
            times * inside.multiply,
            times * (inside.vectors + each),
            (Repeat(loop.var, times, touched, loop.start, loop.step),),
        )

    def _pointwise(self, s: Map | Store, values: Values, known: Set[Load] = frozenset()) -> Work:
        if not s.domain:
            return Work(0.0, self._instructions(STATEMENT), ())
        domain = _lanes_last(s)
        counts = [_count(it, values) for it in domain]
        stored = s.target.dtype
        lanes = lanes_of(s.value, stored, self.target)
        others = [it.var for it in domain[:-1]]
        inner = _vectors(counts[-1], lanes)
        iterations, vectors = _iterations(counts), _iterations(counts) * inner
        done = copying(s, [_count(it, values) for it in s.domain], self.target)
        if done is None:
            lane = domain[-1].var
            each = instructions(s.value, lane, self.target, stored, others, halves=self.halves, known=known)
            done = vectors * (each + len(s.prefetch))
            done += iterations * OUTER_ITERATION if inner <= UNROLLED else vectors * ITERATION + iterations * STATEMENT
            done += iterations * row_instructions(s.value, s.index, domain[-1].var) if iterations > 1 else 0.0
        touched = [_touch(Load(s.target, s.index), domain, counts), *self._loads(s.value, domain, counts)]
        return Work(0.0, self._instructions(done + _around(vectors)), touched)

    def _reduce(self, s: Reduce, values: Values) -> Work:
        counts = [_count(it, values) for it in s.domain]
        lanes = lanes_of(s.value, s.target.dtype, self.target)
        lane = s.domain[-1]
        retained = {v for i in s.index for v in symbols_of(i)}
        across = lane.var in retained
        combine = 1.0 if s.loose else INSTRUCTIONS.get(MONOIDS[s.op].combine, 1)
        computed = instructions(s.value, lane.var, self.target, s.target.dtype, halves=self.halves) - 1
        each = computed + combine + ITERATION / 4
        inner = _vectors(counts[-1], lanes)
        vectors = _product(counts[:-1]) * inner
        joined = (2 if inner <= UNROLLED else 4) + (2 if inner <= UNROLLED else 3) * log2(max(lanes, 2))
        ends = 0.0 if across else joined * _product(n for it, n in zip(s.domain[:-1], counts) if it.var in retained)
        touched = [*self._read(s, counts), _touch(Load(s.target, s.index), s.domain, counts)]
        vectors *= SEEN if s.branches else 1.0
        rows = _product(n for it, n in zip(s.domain, counts) if it is not lane and (not across or it.var in retained))
        return Work(0.0, self._instructions(vectors * each + ends + _around(inner) * rows), touched)

    def _scan(self, s: Scan, values: Values) -> Work:
        counts = [_count(it, values) for it in s.domain]
        dtype, lane = s.carry.dtype, s.domain[-1]
        lanes = lanes_of(s.value, dtype, self.target)
        along = lane.var is s.along
        lanes = 1 if along and s.factor is not None else lanes
        combine = INSTRUCTIONS.get(monoid_of(s.op).combine, 1) + (s.factor is not None)
        times = log2(lanes) + 1 if along and lanes > 1 else 1.0
        computed = sum(instructions(v, lane.var, self.target, dtype, halves=self.halves) for v in s.values)
        vectors = _product(counts[:-1]) * _vectors(counts[-1], lanes)
        done = vectors * (computed + times * (combine + along) + 2 + ITERATION)
        touched = [touch for value in s.values for touch in self._loads(value, s.domain, counts)]
        touched += [_touch(x, s.domain, counts) for x in (Load(s.target, s.index), s.carry)]
        return Work(0.0, self._instructions(done + STATEMENT), touched)

    def _read(self, s: Reduce, counts: list[int]) -> list[Touch]:
        """What a sum reads: where it branches all of what decides, and a part of the terms'."""
        if not (s.branches and isinstance(s.value, Apply)):
            return self._loads(s.value, s.domain, counts)
        seen, *terms = s.value.args
        read = [t for term in terms for t in self._loads(term, s.domain, counts)]
        return [*self._loads(seen, s.domain, counts), *(replace(t, bytes=SEEN * t.bytes) for t in read)]

    def _loads(self, value: ScalarExpr, domain: tuple[Iter, ...], counts: list[int]) -> list[Touch]:
        return [_touch(load, domain, counts) for load in loads(value)]

    def _instructions(self, count: float) -> float:
        return count / self.rates.vector

    def _dot(self, dot: Dot, values: Values) -> Work:
        m, n, k = (_count(it, values) for it in (dot.m, dot.n, dot.k))
        r = dot.registers
        rows, columns = _padded(m, r.rows, min(r.rows, 16) if r.tiles else 1), ceil(n / r.columns) * r.columns
        dtype = dot.a.dtype
        rate = self.rates.matmul(dtype, r.tiles) * (1.0 if r.tiles else self._issue(dot))
        blocks = ceil(m / r.rows) * ceil(n / r.columns)
        seconds = 2.0 * rows * columns * k / rate + blocks * self.rates.ends.get(unit_of(dtype, r.tiles), 0.0)
        touched = _dot_nest(dot, m, n, k)
        sums = m * n * dot.accumulator.dtype.itemsize / (self.target.vector_bits // 8)
        moved = self._instructions((0 if r.tiles else 1) * sums + (0 if dot.fresh else sums))
        others = [self.statement(s, values) for s in dot.beside]
        added = self._instructions(ADDED_UP * m * n) if r.along else 0.0
        vectors = added + sum(w.vectors for w in others)
        touched = [*touched, *(node for w in others for node in w.touched)]
        return Work(seconds + moved, self._instructions(STATEMENT) + vectors, touched)

    def _softmax_exp(self, s: SoftmaxExp, values: Values) -> Work:
        domain = (s.keys, s.queries)
        counts = [_count(it, values) for it in domain]
        stored, lanes = s.weights.dtype, self.target.lanes(s.row_sum.dtype.bits)
        shifted_scaled_and_added = 3.0
        score = instructions(s.score, s.queries.var, self.target, s.row_sum.dtype, halves=self.halves) - 1
        power, retained = (SHORT_POWER, PAIRED) if stored is bf16 else (POWER, 1)
        each = score + shifted_scaled_and_added + power + retained + ITERATION / 4
        touched = [*self._loads(s.score, domain, counts), *(_touch(x, domain, counts) for x in (s.weights, s.row_sum))]
        vectors = counts[0] * _vectors(counts[1], lanes)
        return Work(0.0, self._instructions(vectors * each + STATEMENT), touched)

    def _issue(self, dot: Dot) -> float:
        """The share of the multiplication rate that this register tile reaches, a large one being the measure.

        Each step of k loads ``vectors`` and broadcasts ``rows`` values for ``rows * vectors`` multiplications, two
        loads and two multiplications in a cycle; fewer sums than a multiplication takes half cycles wait for it.
        """
        r = dot.registers
        vectors = r.columns if r.along else max(1, r.columns // self.target.lanes(dot.accumulator.dtype.bits))
        multiplies = r.rows * vectors
        return min(1.0, multiplies / (2 * LATENCY), multiplies / (1.25 * (vectors + r.rows)))


def _starting(nest: Nest, var: Symbol, start: set[Symbol]) -> Nest:
    """The nest of a loop's body where the loop starts at an expression of other symbols: those move what it touches."""
    if not start:
        return nest
    found: list[Touch | Repeat] = []
    for node in nest:
        if isinstance(node, Repeat):
            found.append(replace(node, body=_starting(node.body, var, start)))
        else:
            found.append(replace(node, depends=node.depends | start) if var in node.depends else node)
    return found


def _dot_nest(dot: Dot, m: int, n: int, k: int) -> Nest:
    """Blocks of columns outside, blocks of rows inside, all of k in each."""
    r = dot.registers
    item = dot.a.dtype.itemsize
    own = (dot.m.var, dot.n.var, dot.k.var)

    streamed = {"": None, "a": dot.a, "b": dot.b}[r.streamed]

    def touch(load: Load, nbytes: float, *along: Symbol) -> Touch:
        outer = _symbols(load) - set(own)
        depends = frozenset((*outer, *along))
        return Touch(load.buffer, nbytes, depends, load is streamed, load.index, (dot.m, dot.n, dot.k))

    rows, columns = min(r.rows, max(m, 1)), min(r.columns, max(n, 1))
    body: Nest = (
        touch(dot.b, columns * k * item, dot.n.var),
        touch(dot.a, rows * k * item, dot.m.var),
        touch(dot.accumulator, rows * columns * dot.accumulator.dtype.itemsize, dot.m.var, dot.n.var),
    )
    if m > rows:
        body = (Repeat(dot.m.var, m / rows, body),)
    return (Repeat(dot.n.var, n / columns, body),) if n > columns else body


def _touch(load: Load, domain: tuple[Iter, ...], counts: list[int]) -> Touch:
    """The bytes of a load over a domain: an element for each value of the iterators that its position depends on."""
    symbols = _symbols(load)
    count = _product(n for it, n in zip(domain, counts) if it.var in symbols)
    inside = {it.var for it in domain}
    nbytes = min(count, load.buffer.most) * load.buffer.dtype.itemsize
    return Touch(load.buffer, float(nbytes), frozenset(symbols - inside), index=load.index, domain=domain)


def _symbols(load: Load) -> set[Symbol]:
    found: set[Symbol] = set()
    for i in load.index:
        if isinstance(i, int | Expr):
            found |= symbols_of(i)
        else:
            found |= {s for inner in loads(i) for s in _symbols(inner)}
    return found


def _lanes_last(s: Map | Store) -> tuple[Iter, ...]:
    """The domain as its code runs through it: elements that are adjacent in the target lie on lanes."""
    flat = offset_of(s.target, s.index)
    assert flat is not None
    if len(s.domain) < 2 or coefficient(flat, s.domain[-1].var) in (1, -1):
        return s.domain
    for number, it in enumerate(s.domain[:-1]):
        if it.extent >= 8 and coefficient(flat, it.var) == 1:
            return (*s.domain[:number], *s.domain[number + 1 :], it)
    return s.domain


def _count(it: Iter, values: Values) -> int:
    if it.limit is None:
        return it.extent
    return max(0, min(it.extent, _number(it.limit, values)))


def _number(index: Index, values: Values) -> int:
    """An index where symbols have these values, those without one the largest."""
    found = substitute(index, dict(values)) if isinstance(index, Expr) else index
    return found if isinstance(found, int) else most(found)


def _vectors(count: int, lanes: int) -> int:
    return -(-count // lanes)


def _iterations(counts: list[int]) -> float:
    """How often the innermost loop is started."""
    return _product(counts[:-1])


def _around(vectors: float) -> float:
    """Instructions around the loops of a statement of so many vectors; few of them are written out."""
    return OUTER_ITERATION if vectors <= UNROLLED else STATEMENT


def _product(counts: object) -> float:
    total = 1.0
    for n in counts:  # type: ignore[attr-defined]
        total *= n
    return total


def _padded(rows: int, tile: int, step: int) -> float:
    """Rows in units of whole register tiles; the last, smaller one takes more than its share."""
    full, rest = divmod(rows, tile)
    rest = round_up(rest, step)
    return full * tile + (rest if step > 1 else 0.5 * (rest + tile)) * (rest > 0)
