# SPDX-License-Identifier: Apache-2.0
"""A matmul on a GPU: a block of the result accumulated in registers, with prologue and epilogue."""

from __future__ import annotations

from dataclasses import dataclass

from fusec.errors import LoweringError
from fusec.ir.index import Index, Symbol, add, bounds, floordiv, maximum, minimum, mod, mul, sub, symbol
from fusec.ir.indexing import ceildiv, last, most
from fusec.ir.nodes import Op
from fusec.ir.types import bool_
from fusec.passes.families.gemm.hoist import hoist
from fusec.passes.families.gemm.matmul import Matmuls
from fusec.passes.families.gemm.schedule.gpu import GpuGemmSchedule
from fusec.passes.lower.blocks import GEMM_BLOCKS
from fusec.passes.lower.context import LoweredGroup, LoweringContext, address_step
from fusec.tile.nodes import Alloc, Dot, Grid, Iter, Loop, Map, RegisterTile, Statement, Store
from fusec.tile.scalar import Apply, Const, IndexValue, Load, ScalarExpr, loads, reindex

_NO_REGISTERS = RegisterTile(0, 0)
"""A GPU's accumulators are laid out by its compiler."""


def lower_gemm(context: LoweringContext, schedule: GpuGemmSchedule) -> LoweredGroup:
    """Blocks are ordered in groups of rows, so that neighbours in time share operands in L2."""
    return _Gemm(context, schedule).lower()


class _Gemm:
    def __init__(self, context: LoweringContext, schedule: GpuGemmSchedule) -> None:
        self.context, self.schedule = context, schedule
        self.matmuls = Matmuls(context)
        if self.matmuls.statistics:
            raise LoweringError("a matmul of blocks reduces no rows of its operands")
        n, s = self.matmuls.extents, schedule
        self.row_blocks, self.column_blocks = ceildiv(n.m, s.m), ceildiv(n.n, s.n)
        self.tiles = mul(self.row_blocks, self.column_blocks)
        self.pid = symbol("pid", 0, last(self.tiles))
        self.mi, self.ni = symbol("mi", 0, s.m - 1), symbol("ni", 0, s.n - 1)
        self.ki, self.k0 = symbol("ki", 0, s.k - 1), symbol("k0", 0, last(n.k))
        self.part = symbol("part", 0, s.split - 1)
        self.part_length = mul(ceildiv(n.k, s.split * s.k), s.k)
        mo, no = self._tile()
        self.row0, self.column0 = mul(mo, s.m), mul(no, s.n)
        self.shift: dict[Symbol, Index] = {
            self.matmuls.i: add(self.row0, self.mi),
            self.matmuls.j: add(self.column0, self.ni),
            self.matmuls.k: add(self.k0, self.ki),
        }
        self.m = Iter(self.mi, s.m, None if n.m % s.m == 0 else sub(n.m, self.row0))
        self.n = Iter(self.ni, s.n, None if n.n % s.n == 0 else sub(n.n, self.column0))
        self.depth = Iter(self.ki, s.k, None if n.k % s.k == 0 else sub(n.k, self.k0))

    def _tile(self) -> tuple[Index, Index]:
        """Block number to tile: columns within groups of ``group`` row blocks."""
        group = min(self.schedule.group, most(self.row_blocks))
        if self.column_blocks == 1:
            return self.pid, 0
        per_group = mul(self.column_blocks, group)
        first = mul(floordiv(self.pid, per_group), group)
        inside = mod(self.pid, per_group)
        if self.row_blocks % group == 0:
            return add(first, mod(inside, group)), floordiv(inside, group)
        rows = maximum(minimum(sub(self.row_blocks, first), group), 1)  # at least 1 as it is, which bounds don't show
        return add(first, mod(inside, rows)), floordiv(inside, rows)

    def lower(self) -> LoweredGroup:
        s, matmuls = self.schedule, self.matmuls
        totals, before, loop = self._multiply()
        tiles = self.tiles
        if s.split > 1:
            partials = matmuls.partials(s.split)
            parts = [
                matmuls.part_store(partials, p, self.part, self.shift, self._side(self.m, self.n), x)
                for p, x in enumerate(totals)
            ]
            iters = (Iter.over(self.pid, tiles), Iter(self.part, s.split), matmuls.batch)
            grid = Grid(iters, (*before, loop, *parts))
            return matmuls.finish(grid, partials, s.split, s.describe())
        body = (*before, loop, *self._stores(totals))
        if s.persistent and s.persistent < most(tiles):
            cta = symbol("cta", 0, s.persistent - 1)
            tiles_of_cta = Loop(self.pid, cta, tiles, s.persistent, body)
            grid = Grid((Iter(cta, s.persistent), matmuls.batch), (tiles_of_cta,))
            return self.context.finish("gemm", (grid,), s.describe(), GEMM_BLOCKS)
        grid = Grid((Iter.over(self.pid, tiles), matmuls.batch), body)
        return self.context.finish("gemm", (grid,), s.describe(), GEMM_BLOCKS)

    def _multiply(self) -> tuple[list[Load], list[Statement], Loop]:
        """The accumulators, what sets them up, and the loop over the block's share of K."""
        s, matmuls = self.schedule, self.matmuls
        left = self._operand(matmuls.ops[0], 0)
        totals: list[Load] = []
        before: list[Statement] = [*left.before]
        inside: list[Statement] = [*left.step]
        rows, columns = self._side(self.m, self.n)
        for op in matmuls.ops:
            name = "acc" if len(matmuls.ops) == 1 else f"acc_{op.result.name}"
            shape = (rows.extent, columns.extent)
            acc = self.context.tile(name, matmuls.dtype, *shape)
            index = (rows.var, columns.var)
            zero = Const(0.0 if matmuls.dtype.is_float else 0, matmuls.dtype)
            before += [Alloc(acc), Map((Iter(rows.var, shape[0]), Iter(columns.var, shape[1])), acc, index, zero)]
            right = self._operand(op, 1)
            before += right.before
            totals.append(Load(acc, index))
            a, b = (right.block, left.block) if s.transposed else (left.block, right.block)
            inside += [
                *right.step,
                Dot(rows, columns, self.depth, totals[-1], a, b, False, _NO_REGISTERS, matmuls.tf32),
            ]
        start, stop = matmuls.part_of_depth(self.part, self.part_length, s.split)
        return totals, before, Loop(self.k0, start, stop, s.k, tuple(inside))

    def _side(self, row: Iter, column: Iter) -> tuple[Iter, Iter]:
        """In the order of the block's own rows and columns."""
        return (column, row) if self.schedule.transposed else (row, column)

    def _stores(self, totals: list[Load]) -> list[Store]:
        """The epilogue, a slice of the block's columns after another: a slice takes less memory on its way out."""
        s = self.schedule
        if s.slices == 1:
            return self.matmuls.stores(self.shift, self._side(self.m, self.n), totals)
        width = s.n // s.slices
        stores: list[Store] = []
        for part in range(s.slices):
            if (bounds(self.column0)[0] or 0) + part * width >= self.matmuls.axes.n:
                break
            ni = symbol("ni", 0, width - 1)
            column = add(ni, part * width)
            limit = None if self.n.limit is None else sub(self.n.limit, part * width)
            shift = {**self.shift, self.matmuls.j: add(self.column0, column)}
            sliced = [Load(x.buffer, (self.mi, column)) for x in totals]
            stores += self.matmuls.stores(shift, (self.m, Iter(ni, width, limit)), sliced)
        return stores

    def _operand(self, op: Op, side: int) -> _Operand:
        """A load of the operand's block, or a tile that its prologue is computed into.

        The tile lies as the largest of what it is made from does. Beyond the end of K it is zero.
        """
        element = self.matmuls.element(op, side)
        if isinstance(element, Load):
            loaded = reindex(element, self.shift)
            assert isinstance(loaded, Load)
            return _Operand(loaded)
        if not loads(element):
            raise LoweringError("an operand that is no memory")
        free, dtype = (self.m, self.n)[side], op.operands[side].type.dtype
        k = self.matmuls.k
        block = {s: i for s, i in self.shift.items() if s is not k}
        element, before = hoist(self.context, reindex(element, block), free, k)
        element = reindex(element, {k: self.shift[k]})
        domain = (free, self.depth) if self._lies_along(element, free) else (self.depth, free)
        tile = self.context.tile(("left", "right")[side], dtype, domain[0].extent, domain[1].extent)
        where = (domain[0].var, domain[1].var)
        if self.depth.limit is not None:
            live = Apply("lt", (IndexValue(self.ki), IndexValue(self.depth.limit)), bool_)
            zero = Const(0.0 if dtype.is_float else 0, element.dtype)
            element = Apply("select", (live, element, zero), element.dtype)
        value = element if element.dtype == dtype else Apply("cast", (element,), dtype)
        return _Operand(Load(tile, where), tuple(before), (Alloc(tile), Map(domain, tile, where, value)))

    def _lies_along(self, element: ScalarExpr, free: Iter) -> bool:
        """Whether neighbours along K are neighbours in the largest of what the element is made from."""
        read = [x for x in loads(element) if x.buffer.space == "parameter"]
        largest = max(read, key=lambda x: x.buffer.most, default=None)
        return largest is None or address_step(largest, self.ki) == 1 or address_step(largest, free.var) != 1


@dataclass(frozen=True)
class _Operand:
    """A block of an operand, the code that comes before the loop over K, and the code of a step."""

    block: Load
    before: tuple[Statement, ...] = ()
    step: tuple[Statement, ...] = ()
