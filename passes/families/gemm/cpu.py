# SPDX-License-Identifier: Apache-2.0
"""A matmul with what was fused into its loads and stores."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import prod

from fusec.ir.index import Index, Symbol, add, floordiv, minimum, mod, mul, sub, symbol, symbols_of
from fusec.ir.indexing import ceildiv, delinearize, last, linearize, round_up, slope, substitute
from fusec.ir.nodes import Op
from fusec.ir.types import Dim, contiguous_strides
from fusec.passes.contraction import accumulator_dtype, contraction
from fusec.passes.families.gemm.schedule.cpu import GemmSchedule
from fusec.passes.lower.context import LoweredGroup, LoweringContext, address_step, is_linear
from fusec.passes.lower.epilogue import epilogue_stores
from fusec.passes.lower.sums import in_blocks, in_blocks_of_runs
from fusec.passes.schedule.sums import block_for
from fusec.tile.kernel import Kernel
from fusec.tile.nodes import Alloc, Dot, Grid, Iter, Loop, Map, Statement, Store, statements
from fusec.tile.scalar import Apply, Buffer, Const, Load, ScalarExpr, loads, offset_of, reindex

SHORTEST_RUN = 16
"""Positions along K side by side from which on a left operand of windows is read where it lies."""

ROW_PADDING = 16
"""Elements added to a packed row, so that rows don't fall on the same cache sets."""


def lower_gemm(context: LoweringContext, schedule: GemmSchedule) -> LoweredGroup:
    """Tasks are blocks of rows by blocks of columns; each packs its rows once and walks its columns tile by tile."""
    return Gemm(context, schedule).lower()


class Gemm:
    """One matmul being lowered: its symbols, and the statements for them."""

    def __init__(self, context: LoweringContext, schedule: GemmSchedule) -> None:
        self.context = context
        self.schedule = schedule
        self.ops = context.anchors("dot")
        self.op = self.ops[0]
        self.axes = contraction(self.op)
        self.extents = self.axes.extents
        self.dtype = accumulator_dtype(self.op)
        self.operand = self.op.operands[0].type.dtype if schedule.low_precision else self.dtype
        axes, extents = self.axes, self.extents
        self.b = symbol("b", 0, last(extents.batches))
        self.i = symbol("i", 0, last(extents.m))
        self.j = symbol("j", 0, last(extents.n))
        self.k = symbol("k", 0, last(extents.k))
        s = schedule
        self.mo = symbol("mo", 0, last(ceildiv(extents.m, s.tile_m)))
        self.no = symbol("no", 0, last(ceildiv(extents.n, s.block_n)))
        self.n0 = symbol("n0", 0, max(-(-s.block_n // s.tile_n) - 1, 0))
        self.k0 = symbol("k0", 0, last(ceildiv(extents.k, s.tile_k)))
        self.mi = symbol("mi", 0, s.tile_m - 1)
        self.ni = symbol("ni", 0, s.tile_n - 1)
        self.ki = symbol("ki", 0, max(min(s.tile_k, axes.k) - 1, 0))
        row: Index = add(mul(self.mo, s.tile_m), self.mi)
        column: Index = add(add(mul(self.no, s.block_n), mul(self.n0, s.tile_n)), self.ni)
        self.split = axes.k > s.tile_k
        self.runs: tuple[tuple[int, ...], int] | None = None
        inner0: Index = mul(self.k0, s.tile_k) if self.split else 0
        inner: Index = add(inner0, self.ki)
        self.shift: dict[Symbol, Index] = {self.i: row, self.j: column, self.k: inner}
        self.row_limit = limit_of(extents.m, s.tile_m, mul(self.mo, s.tile_m))
        self.inner_limit = limit_of(extents.k, min(s.tile_k, axes.k), inner0)

    def lower(self) -> LoweredGroup:
        axes, extents, s = self.axes, self.extents, self.schedule
        left, left_code = self._left()
        rights = [self._right(op) for op in self.ops]
        right_code = [code for _, codes in rights for code in codes]
        tiles = -(-s.block_n // s.tile_n)
        column0 = add(mul(self.no, s.block_n), mul(self.n0, s.tile_n))
        stop = minimum(tiles, ceildiv(sub(extents.n, mul(self.no, s.block_n)), s.tile_n))
        accumulators = [self._accumulator(op, tiles) for op in self.ops]
        m = Iter(self.mi, s.tile_m, self.row_limit)
        n = Iter(self.ni, s.tile_n)
        k = Iter(self.ki, min(s.tile_k, axes.k), self.inner_limit)
        dots = [
            part
            for acc, (right, _) in zip(accumulators, rights, strict=True)
            for part in self._sum(Dot(m, n, k, acc, left, right, not self.split, s.registers))
        ]
        allocs = [Alloc(acc.buffer) for acc in accumulators]
        stores = self._stores(accumulators, column0)
        if not self.split:
            tiles_of = apart(allocs, dots, stores) if s.reads_once else [(*allocs, *dots, *stores)]
            body: list[Statement] = [*left_code, *right_code, *(Loop(self.n0, 0, stop, 1, tile) for tile in tiles_of)]
        else:
            steps = ceildiv(extents.k, s.tile_k)
            multiply = Loop(self.k0, 0, steps, 1, (*left_code, *right_code, Loop(self.n0, 0, stop, 1, tuple(dots))))
            zeros = [self._zero(acc.buffer, m) for acc in accumulators]
            body = [*allocs, *zeros, multiply, Loop(self.n0, 0, stop, 1, tuple(stores))]
        grid = Grid(
            (
                Iter.over(self.b, extents.batches),
                Iter.over(self.mo, ceildiv(extents.m, s.tile_m)),
                Iter.over(self.no, ceildiv(extents.n, s.block_n)),
            ),
            tuple(body),
        )
        return self.context.finish("gemm", (grid,), s.describe())

    def _sum(self, dot: Dot) -> list[Statement]:
        if self.runs is None:
            return in_blocks(dot, block_for(self.extents.m, self.extents.n))
        return [self._zero(dot.accumulator.buffer, dot.m), in_blocks_of_runs(dot, *self.runs)]

    def _accumulator(self, op: Op, tiles: int) -> Load:
        """The accumulator of one matmul: a tile of columns, or the task's whole block where K is split."""
        s = self.schedule
        width = tiles * s.tile_n if self.split else s.tile_n
        name = "acc" if len(self.ops) == 1 else f"acc_{op.result.name}"
        buffer = self.context.tile(name, self.dtype, s.tile_m, width)
        column: Index = add(mul(self.n0, s.tile_n), self.ni) if self.split else self.ni
        return Load(buffer, (self.mi, column))

    def _zero(self, acc: Buffer, rows: Iter) -> Map:
        width = acc.shape[1]
        column = symbol("z", 0, last(width))
        zero = Const(0.0 if self.dtype.is_float else 0, self.dtype)
        return Map((rows, Iter.over(column, width)), acc, (self.mi, column), zero)

    def _element(self, op: Op, side: int) -> ScalarExpr:
        """The operand's element at the tight symbols, in the accumulator's dtype."""
        index = self.axes.operand_at(op, side, self.b, self.i, self.j, self.k)
        element = self.context.inliner.at(op.operands[side], index)
        return element if element.dtype == self.operand else Apply("cast", (element,), self.operand)

    def _left(self) -> tuple[Load, list[Statement]]:
        s = self.schedule
        element = reindex(self._element(self.op, 0), self.shift)
        direct = isinstance(element, Load) and is_linear(element, (self.mi, self.ki))
        if direct and not s.pack_left:
            assert isinstance(element, Load)
            return element, []
        self.runs = self._runs(element) if isinstance(element, Load) and not self._is_linear(element) else None
        if self.runs is not None:
            assert isinstance(element, Load)
            return element, []
        depth = min(s.tile_k, self.axes.k)
        rows = Buffer(self.context.unique("left"), self.dtype, (s.tile_m, depth), (depth + ROW_PADDING, 1), "tile")
        load, row = Load(rows, (self.mi, self.ki)), Iter(self.mi, s.tile_m, self.row_limit)
        steps = None if self._is_linear(element) or self.inner_limit is not None else in_runs(self.axes.inner, depth)
        if steps is None:
            return load, [
                Alloc(rows),
                Map((row, Iter(self.ki, depth, self.inner_limit)), rows, (self.mi, self.ki), element),
            ]
        domain, where = steps
        table = {**self.shift, self.k: substitute(self.shift[self.k], {self.ki: where})}
        copy = reindex(self._element(self.op, 0), table)
        return load, [Alloc(rows), Map((row, *domain), rows, (self.mi, where), copy)]

    def _is_linear(self, element: ScalarExpr) -> bool:
        """Whether neighbours along K are as far apart everywhere, in each of what the element is made from."""
        return all(is_linear(x, (self.ki,)) for x in loads(element))

    def _runs(self, element: Load) -> tuple[tuple[int, ...], int] | None:
        """How often, by axis, and how many positions along K lie side by side in each row of windows; None where too
        few do."""
        flat = offset_of(element.buffer, element.index)
        if flat is None or self.split or self.inner_limit is not None:
            return None
        inner = [n for n in self.axes.inner if isinstance(n, int)]
        for count in range(len(inner)):
            outer, run = tuple(inner[:count]), prod(inner[count:])
            parts = [symbol(f"part{axis}", 0, last(extent)) for axis, extent in enumerate(outer)]
            within = symbol("within", 0, run - 1)
            where = add(mul(linearize(parts, outer), run), within)
            if run >= SHORTEST_RUN and slope(substitute(flat, {self.ki: where}), within) == 1:
                return outer, run
        return None

    def _right(self, op: Op) -> tuple[Load, list[Statement]]:
        element = self._element(op, 1)
        if not self.axes.batch and not self.schedule.staged:
            return self._packed_right(op, element), []
        shifted = reindex(element, self.shift)
        direct = (
            isinstance(shifted, Load)
            and address_step(shifted, self.ni) == 1
            and is_linear(shifted, (self.ki,))
            and self.extents.n % self.schedule.tile_n == 0
        )
        if direct:
            assert isinstance(shifted, Load)
            return shifted, []
        return self._staged_right(element)

    def _staged_right(self, element: ScalarExpr) -> tuple[Load, list[Statement]]:
        """The task's columns of a right operand, copied to scratch in panels."""
        s = self.schedule
        depth = min(s.tile_k, self.axes.k)
        width = s.registers.columns
        block = round_up(s.block_n, s.tile_n)
        panels = -(-block // width)
        tile = Buffer(
            self.context.unique("right"), self.dtype, (panels, depth, width), (depth * width, width, 1), "tile"
        )
        p, c = symbol("p", 0, panels - 1), symbol("c", 0, width - 1)
        at_panel: dict[Symbol, Index] = {
            self.j: add(add(mul(self.no, s.block_n), mul(p, width)), c),
            self.k: self.shift[self.k],
        }
        start = add(mul(self.no, s.block_n), mul(p, width))
        limit = limit_of(self.extents.n, block, start)
        steps: tuple[Iter, ...] = (Iter(self.ki, depth, self.inner_limit),)
        position: Index = self.ki
        if not self.split and len(self.axes.inner) > 1:
            steps, position = self._as_it_lies(reindex(element, {self.j: at_panel[self.j]}))
            at_panel[self.k] = position
        copy = Map((*steps, Iter(c, width, limit)), tile, (p, position, c), reindex(element, at_panel))
        local = add(mul(self.n0, s.tile_n), self.ni)
        load = Load(tile, (floordiv(local, width), self.ki, mod(local, width)))
        return load, [Alloc(tile), Loop(p, 0, panels, 1, (copy,))]

    def _packed_right(self, op: Op, element: ScalarExpr) -> Load:
        """The right operand in panels of ``registers.columns`` columns, made by a kernel of its own."""
        width = self.schedule.registers.columns
        depth, n = self.extents.k, self.extents.n
        panels = ceildiv(n, width)
        shape = (panels, depth, width)
        packed = Buffer(
            self.context.unique(f"{op.operands[1].name}_packed"), self.dtype, shape, contiguous_strides(shape)
        )
        p, c = symbol("p", 0, last(panels)), symbol("c", 0, width - 1)
        limit = limit_of(n, width, mul(p, width))
        value = reindex(element, {self.j: add(mul(p, width), c)})
        steps, position = self._as_it_lies(value)
        domain = (*steps, Iter(c, width, limit))
        store = Store(domain, packed, (p, position, c), reindex(value, {self.k: position}))
        read = list(dict.fromkeys(x.buffer for x in loads(value)))
        kernel = Kernel(
            f"{self.context.name}_pack{len(self.context.packs)}",
            "pack",
            (*read, packed),
            1,
            (Grid((Iter.over(p, panels),), (store,)),),
            0,
            2 * packed.most * self.dtype.itemsize,
            sizes=_sizes_in(packed, *read),
        )
        self.context.pack(kernel, read, packed)
        column = self.shift[self.j]
        return Load(packed, (floordiv(column, width), self.shift[self.k], mod(column, width)))

    def _as_it_lies(self, element: ScalarExpr) -> tuple[tuple[Iter, ...], Index]:
        """Iterators over K, those of the largest steps in memory outermost, so that each line is read while it is in
        the cache; and the position along K that they stand for. Axes that follow each other in memory are one iterator:
        square blocks of it are transposed in registers."""
        inner, first = self.axes.inner, next(iter(loads(element)), None)
        extents = [n for n in inner if isinstance(n, int)]
        if len(inner) < 2 or first is None or len(extents) < len(inner):
            return (Iter.over(self.k, self.extents.k),), self.k
        axes = [symbol(f"k{axis}", 0, last(extent)) for axis, extent in enumerate(extents)]
        seen = reindex(first, {self.k: linearize(axes, extents)})
        assert isinstance(seen, Load)
        steps = [address_step(seen, axis) or 0 for axis in axes]
        order = sorted(range(len(axes)), key=lambda axis: -steps[axis])
        runs = [[order[0]]]
        for before, axis in itertools.pairwise(order):
            if steps[before] == steps[axis] * extents[axis]:
                runs[-1].append(axis)
            else:
                runs.append([axis])
        where: dict[int, Index] = {}
        iters = []
        for number, run in enumerate(runs):
            shape = tuple(extents[axis] for axis in run)
            along = symbol(f"k{number}", 0, last(prod(shape)))
            iters.append(Iter(along, prod(shape)))
            where.update(zip(run, delinearize(along, shape), strict=True))
        return tuple(iters), linearize((where[axis] for axis in range(len(extents))), extents)

    def _stores(self, accumulators: list[Load], column0: Index) -> list[Store]:
        axes, s = self.axes, self.schedule
        point = axes.result_at(self.b, self.i, self.j)
        columns = min(s.tile_n, axes.n)
        limit = None if self.extents.n == columns else limit_of(self.extents.n, s.tile_n, column0)
        domain = (Iter(self.mi, s.tile_m, self.row_limit), Iter(self.ni, columns, limit))
        return epilogue_stores(self.context, "gemm", self.ops, point, self.shift, domain, accumulators)


def in_runs(inner: tuple[Dim, ...], depth: int) -> tuple[tuple[Iter, Iter], Index] | None:
    """Two iterators over ``depth`` positions along K, the inner one over K's last axis, and the position that they
    stand for; None where the depth is no multiple of it. What reads windows is then made of whole vectors."""
    run = inner[-1] if inner else 1
    if not isinstance(run, int) or run == 1 or depth % run:
        return None
    part, within = symbol("part", 0, depth // run - 1), symbol("within", 0, run - 1)
    return (Iter(part, depth // run), Iter(within, run)), add(mul(part, run), within)


def apart(allocs: Sequence[Alloc], dots: Sequence[Statement], stores: Sequence[Store]) -> list[tuple[Statement, ...]]:
    """Matmuls of one left operand, each with what is stored of it; those that a store needs together stay so.

    Panels that pass once are then read one after the other as they lie in memory.
    """
    sums = [frozenset({alloc.buffer}) for alloc in allocs]
    uses = {id(store): frozenset(load.buffer for load in loads(store.value)) for store in stores}
    for used in uses.values():
        together = [group for group in sums if group & used]
        if len(together) > 1:
            sums = [group for group in sums if group not in together] + [frozenset().union(*together)]
    return [
        (
            *(alloc for alloc in allocs if alloc.buffer in group),
            *(dot for dot in dots if _sums_of(dot) & group),
            *(store for store in stores if uses[id(store)] & group),
        )
        for group in sums
    ]


def _sums_of(statement: Statement) -> frozenset[Buffer]:
    found = statements((statement,))
    return frozenset(
        s.accumulator.buffer if isinstance(s, Dot) else s.target for s in found if isinstance(s, Dot | Map)
    )


def _sizes_in(*buffers: Buffer) -> tuple[Symbol, ...]:
    """The symbolic extents of some buffers, by name."""
    found = {s for b in buffers for n in (*b.shape, *b.strides) for s in symbols_of(n)}
    return tuple(sorted(found, key=lambda s: s.name))


def limit_of(extent: Index, tile: int, start: Index) -> Index | None:
    """How many points there are from ``start`` on; None where tiles are always whole."""
    return None if extent % tile == 0 else sub(extent, start)
