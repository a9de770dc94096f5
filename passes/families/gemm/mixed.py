# SPDX-License-Identifier: Apache-2.0
"""Matmuls of bf16 and i8 in the CPU's units for them: operands keep their low precision, their sums are wide.

A multiplication takes groups of 32 bits along K, so the right operand lies as ``[panel][K / group][column][group]``,
packed once where it is a weight. Rows of the left operand are read where they are, or copied to scratch (where
something is computed in the prologue, or rows or K don't fill tiles). What lies beyond K is zero; beyond the last row
or column, anything.
"""

from __future__ import annotations

from dataclasses import replace

from fusec.ir.index import Index, Symbol, add, floordiv, minimum, mod, mul, sub, symbol
from fusec.ir.indexing import ceildiv, last, round_up, substitute
from fusec.ir.nodes import Op
from fusec.ir.types import bool_, contiguous_strides, i64
from fusec.passes.contraction import contraction
from fusec.passes.families.gemm.cpu import apart, in_runs, limit_of
from fusec.passes.families.gemm.schedule.mixed import SUMS, MixedGemmSchedule, depth_step
from fusec.passes.lower.context import LoweredGroup, LoweringContext, address_step, is_linear
from fusec.passes.lower.epilogue import epilogue_stores
from fusec.tile.kernel import Kernel
from fusec.tile.nodes import Alloc, Dot, Grid, Iter, Loop, Map, Statement, Store
from fusec.tile.scalar import Apply, Buffer, Const, IndexValue, Load, ScalarExpr, loads, reindex

ROW_PADDING = 64
"""Bytes added to a row of scratch, so that rows don't fall on the same cache sets."""


def lower_mixed(context: LoweringContext, schedule: MixedGemmSchedule) -> LoweredGroup:
    """Tasks are blocks of rows by blocks of columns; those that share columns, which stay in L2, follow each other."""
    return _Widening(context, schedule).lower()


def reads_rows_in_place(context: LoweringContext) -> bool:
    """Whether the left operand is in memory with K's elements side by side."""
    op = context.anchors("dot")[0]
    axes = contraction(op)
    i, k = symbol("i", 0, last(axes.extents.m)), symbol("k", 0, last(axes.extents.k))
    b = symbol("b", 0, last(axes.extents.batches))
    element = context.inliner.at(op.operands[0], axes.operand_at(op, 0, b, i, 0, k))
    return _is_direct(element, i, k)


def _is_direct(element: ScalarExpr, row: Symbol, inner: Symbol) -> bool:
    return isinstance(element, Load) and is_linear(element, (row, inner)) and address_step(element, inner) == 1


class _Widening:
    def __init__(self, context: LoweringContext, schedule: MixedGemmSchedule) -> None:
        self.context, self.schedule = context, schedule
        self.ops = context.anchors("dot")
        self.op = self.ops[0]
        self.axes = contraction(self.op)
        self.extents = self.axes.extents
        self.dtype = self.op.operands[0].type.dtype
        self.total = SUMS[self.dtype]
        self.group = 32 // self.dtype.bits
        s, extents = schedule, self.extents
        step = depth_step(self.dtype, s.registers.tiles)
        self.depth = round_up(self.axes.k, step)
        self.parts = self.depth // s.tile_k
        rows, columns = s.registers.rows, s.registers.columns
        self.b = symbol("b", 0, last(extents.batches))
        self.i = symbol("i", 0, last(extents.m))
        self.j = symbol("j", 0, last(extents.n))
        self.k = symbol("k", 0, self.depth - 1)
        self.mo = symbol("mo", 0, last(ceildiv(extents.m, s.tile_m)))
        self.no = symbol("no", 0, last(ceildiv(extents.n, s.block_n)))
        self.k0 = symbol("k0", 0, self.parts - 1)
        self.m0 = symbol("m0", 0, s.tile_m // rows - 1)
        self.n0 = symbol("n0", 0, s.block_n // columns - 1)
        self.mi, self.ni = symbol("mi", 0, rows - 1), symbol("ni", 0, columns - 1)
        self.ki = symbol("ki", 0, s.tile_k - 1)
        self.row: Index = add(mul(self.m0, rows), self.mi)
        self.column: Index = add(mul(self.n0, columns), self.ni)

    def _shift(self, part: Index) -> dict[Symbol, Index]:
        """The tight symbols as block and position in the block, in this part of K."""
        s = self.schedule
        return {
            self.i: add(mul(self.mo, s.tile_m), self.row),
            self.j: add(mul(self.no, s.block_n), self.column),
            self.k: add(mul(part, s.tile_k), self.ki),
        }

    def lower(self) -> LoweredGroup:
        s, extents = self.schedule, self.extents
        accumulators = [self._accumulator(op) for op in self.ops]
        packed = [self._right(op) for op in self.ops]
        hoisted = self.parts > 1 or self._overlaps
        allocs = [Alloc(acc.buffer) for acc in accumulators]
        body: list[Statement] = [*allocs] if hoisted else []
        scratch = self._left_scratch()
        if scratch is not None:
            body.append(Alloc(scratch))
        for tile, copies in packed:
            if tile.space == "tile":
                body += [Alloc(tile), *copies]
        steps: list[tuple[Index, bool, bool]] = [(0, True, self.parts == 1)]
        if self.parts > 2:
            steps.append((self.k0, False, False))
        if self.parts > 1:
            steps.append((self.parts - 1, False, True))
        for part, fresh, ends in steps:
            code = self._copy_left(scratch, part)
            dots = [
                self._dot(acc, self._left(scratch, part), right, part, fresh)
                for acc, (right, _) in zip(accumulators, packed, strict=True)
            ]
            if ends and self._overlaps:
                code.append(self._overlapped(dots, accumulators))
            else:
                stores = self._stores(accumulators) if ends else []
                if s.registers.prefetch_bytes and not hoisted:
                    code += [self._over_blocks(block) for block in apart(allocs, dots, stores)]
                else:
                    code.append(self._over_blocks((*([] if hoisted else allocs), *dots, *stores)))
            body += [Loop(self.k0, 1, self.parts - 1, 1, tuple(code))] if part is self.k0 else code
        grid = Grid(
            (
                Iter.over(self.b, extents.batches),
                Iter.over(self.no, ceildiv(extents.n, s.block_n)),
                Iter.over(self.mo, ceildiv(extents.m, s.tile_m)),
            ),
            tuple(body),
        )
        return self.context.finish("gemm", (grid,), s.describe())

    @property
    def _overlaps(self) -> bool:
        """Whether a block's stores run beside the matmuls of the next one: tiles leave the vector units idle."""
        r, s = self.schedule.registers, self.schedule
        return r.tiles and s.columns_inside and min(s.block_n, self.axes.n) > r.columns

    def _block_counts(self) -> tuple[Index, Index]:
        """Register blocks of the task along rows and columns."""
        s, extents = self.schedule, self.extents
        rows_left = ceildiv(sub(extents.m, mul(self.mo, s.tile_m)), s.registers.rows)
        columns_left = ceildiv(sub(extents.n, mul(self.no, s.block_n)), s.registers.columns)
        return (
            minimum(s.tile_m // s.registers.rows, rows_left),
            minimum(s.block_n // s.registers.columns, columns_left),
        )

    def _over_blocks(self, body: tuple[Statement, ...]) -> Loop:
        """The body at every register block of the task."""
        rows, columns = self._block_counts()
        if self.schedule.columns_inside:
            return Loop(self.m0, 0, rows, 1, (Loop(self.n0, 0, columns, 1, body),))
        return Loop(self.n0, 0, columns, 1, (Loop(self.m0, 0, rows, 1, body),))

    def _overlapped(self, dots: list[Dot], accumulators: list[Load]) -> Loop:
        """Every register block of the task; those of a row of blocks are stored one later, the last one by itself."""
        rows, columns = self._block_counts()
        before = symbol("p0", 0, max(self.schedule.block_n // self.schedule.registers.columns - 2, 0))
        first, *others = (_moved(dot, {self.n0: add(before, 1)}) for dot in dots)
        stores = tuple(self._stores(accumulators, before))
        body: tuple[Statement, ...] = (
            *(_moved(dot, {self.n0: 0}) for dot in dots),
            Loop(before, 0, sub(columns, 1), 1, (replace(first, beside=stores), *others)),
            Loop(self.n0, sub(columns, 1), columns, 1, tuple(self._stores(accumulators))),
        )
        return Loop(self.m0, 0, rows, 1, body)

    def _row_limit(self, rows: int, start: Index) -> Index | None:
        return limit_of(self.extents.m, rows, add(mul(self.mo, self.schedule.tile_m), start))

    def _accumulator(self, op: Op) -> Load:
        """The sums of a register block, or of the whole task where K comes in parts."""
        r, s = self.schedule.registers, self.schedule
        name = "acc" if len(self.ops) == 1 else f"acc_{op.result.name}"
        if self.parts == 1:
            buffer = self.context.tile(name, self.total, r.rows, r.columns)
            return Load(buffer, (self.mi, self.ni))
        stride = s.block_n + ROW_PADDING // self.total.itemsize
        buffer = Buffer(self.context.unique(name), self.total, (s.tile_m, s.block_n), (stride, 1), "tile")
        return Load(buffer, (self.row, self.column))

    def _dot(self, acc: Load, left: Load, right: Buffer, part: Index, fresh: bool) -> Dot:
        r, s = self.schedule.registers, self.schedule
        rows = Iter(self.mi, r.rows, self._row_limit(r.rows, mul(self.m0, r.rows)))
        k = Iter(self.ki, s.tile_k)
        depth = add(mul(part, s.tile_k), self.ki)
        column = self.column if right.space == "tile" else add(mul(self.no, s.block_n), self.column)
        at = (floordiv(column, r.columns), floordiv(depth, self.group), mod(column, r.columns), mod(depth, self.group))
        registers = replace(r, streamed="b" if s.columns_inside else "a") if r.tiles else r
        return Dot(rows, Iter(self.ni, r.columns), k, acc, left, Load(right, at), fresh, registers)

    # operands

    def _element(self, op: Op, side: int) -> ScalarExpr:
        """The operand's element at the tight symbols, in its own type."""
        index = self.axes.operand_at(op, side, self.b, self.i, self.j, self.k)
        return self.context.inliner.at(op.operands[side], index)

    def _padded(self, element: ScalarExpr, depth: Index) -> ScalarExpr:
        """The element, and 0 beyond the end of K."""
        if self.depth == self.axes.k:
            return element
        inside = Apply("lt", (IndexValue(depth), Const(self.axes.k, i64)), bool_)
        return Apply("select", (inside, element, Const(0, element.dtype)), element.dtype)

    def _left_scratch(self) -> Buffer | None:
        s = self.schedule
        if not s.pack_left:
            return None
        stride = s.tile_k + ROW_PADDING // self.dtype.itemsize
        return Buffer(self.context.unique("left"), self.dtype, (s.tile_m, s.tile_k), (stride, 1), "tile")

    def _left(self, scratch: Buffer | None, part: Index) -> Load:
        if scratch is not None:
            return Load(scratch, (self.row, self.ki))
        element = self._element(self.op, 0)
        assert isinstance(element, Load)
        return _load_at(element, self._shift(part))

    def _copy_left(self, scratch: Buffer | None, part: Index) -> list[Statement]:
        """The task's rows, in this part of K, copied to scratch."""
        if scratch is None:
            return []
        s = self.schedule
        row = symbol("r", 0, s.tile_m - 1)
        depth = add(mul(part, s.tile_k), self.ki)
        element = self._padded(self._element(self.op, 0), self.k)
        at = {self.i: add(mul(self.mo, s.tile_m), row)}
        value = reindex(element, {**at, self.k: depth})
        rows = Iter(row, s.tile_m, self._row_limit(s.tile_m, 0))
        linear = all(is_linear(x, (self.ki,)) for x in loads(value))
        steps = None if linear or self.depth != self.axes.k else in_runs(self.axes.inner, s.tile_k)
        if steps is None:
            return [Map((rows, Iter(self.ki, s.tile_k)), scratch, (row, self.ki), value)]
        domain, where = steps
        value = reindex(element, {**at, self.k: add(mul(part, s.tile_k), where)})
        return [Map((rows, *domain), scratch, (row, where), value)]

    def _right(self, op: Op) -> tuple[Buffer, list[Statement]]:
        """The right operand in panels: packed by a kernel of its own, or, with batch axes, by each task."""
        width = self.schedule.registers.columns
        if self.axes.batch:
            return self._staged_right(op, width)
        panels = ceildiv(self.extents.n, width)
        shape = (panels, self.depth // self.group, width, self.group)
        name = self.context.unique(f"{op.operands[1].name}_packed")
        packed = Buffer(name, self.dtype, shape, contiguous_strides(shape))
        p = symbol("p", 0, last(panels))
        parts = self._panel(op, p, mul(p, width))
        stores = tuple(Store(domain, packed, index, value) for domain, index, value in parts)
        read = list(dict.fromkeys(x.buffer for _, _, value in parts for x in loads(value)))
        kernel = Kernel(
            f"{self.context.name}_pack{len(self.context.packs)}",
            "pack",
            (*read, packed),
            1,
            (Grid((Iter.over(p, panels),), stores),),
            0,
            2 * packed.most * self.dtype.itemsize,
        )
        self.context.pack(kernel, read, packed)
        return packed, []

    def _staged_right(self, op: Op, width: int) -> tuple[Buffer, list[Statement]]:
        s = self.schedule
        panels = s.block_n // width
        tile = self.context.tile("right", self.dtype, panels, self.depth // self.group, width, self.group)
        p = symbol("p", 0, panels - 1)
        parts = self._panel(op, p, add(mul(self.no, s.block_n), mul(p, width)))
        stop = minimum(panels, ceildiv(sub(self.extents.n, mul(self.no, s.block_n)), width))
        return tile, [Loop(p, 0, stop, 1, tuple(Map(domain, tile, index, value) for domain, index, value in parts))]

    def _panel(self, op: Op, p: Symbol, start: Index) -> list[tuple[tuple[Iter, ...], tuple[Index, ...], ScalarExpr]]:
        """How a panel of columns from ``start`` on is filled: domain, position and value.

        K's whole groups are copied as they are; only one that K ends in is tested for its end, and zeros follow.
        """
        width, whole, used = self.schedule.registers.columns, self.axes.k // self.group, -(-self.axes.k // self.group)
        c, r = symbol("c", 0, width - 1), symbol("r", 0, self.group - 1)
        limit = limit_of(self.extents.n, width, start)
        element = self._element(op, 1)
        values = (element, self._padded(element, self.k), Const(0, element.dtype))
        ends = (0, whole, used, self.depth // self.group)
        parts: list[tuple[tuple[Iter, ...], tuple[Index, ...], ScalarExpr]] = []
        for value, first, end in zip(values, ends[:-1], ends[1:], strict=True):
            if first == end:
                continue
            q = symbol("q", 0, end - first - 1)
            at = add(q, first)
            moved = reindex(value, {self.j: add(start, c), self.k: add(mul(at, self.group), r)})
            parts.append(((Iter(q, end - first), Iter(c, width, limit), Iter(r, self.group)), (p, at, c, r), moved))
        return parts

    def _stores(self, accumulators: list[Load], block: Symbol | None = None) -> list[Store]:
        """Stores of the block of columns ``n0``, or of a ``block`` that is not the last one."""
        axes, r, s = self.axes, self.schedule.registers, self.schedule
        point = axes.result_at(self.b, self.i, self.j)
        columns = min(r.columns, axes.n)
        start = add(mul(self.no, s.block_n), mul(self.n0, r.columns))
        whole = self.extents.n == columns or block is not None
        limit = None if whole else limit_of(self.extents.n, r.columns, start)
        rows = Iter(self.mi, r.rows, self._row_limit(r.rows, mul(self.m0, r.rows)))
        shift, sums = self._shift(0), accumulators
        if block is not None:
            shift = {symbol: substitute(value, {self.n0: block}) for symbol, value in shift.items()}
            sums = [_load_at(load, {self.n0: block}) for load in sums]
        return epilogue_stores(
            self.context, "gemm", self.ops, point, shift, (rows, Iter(self.ni, columns, limit)), sums
        )


def _load_at(load: Load, table: dict[Symbol, Index]) -> Load:
    found = reindex(load, table)
    assert isinstance(found, Load)
    return found


def _moved(dot: Dot, table: dict[Symbol, Index]) -> Dot:
    """The matmul of another block."""
    return replace(
        dot, accumulator=_load_at(dot.accumulator, table), a=_load_at(dot.a, table), b=_load_at(dot.b, table)
    )
