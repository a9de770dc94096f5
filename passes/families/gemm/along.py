# SPDX-License-Identifier: Apache-2.0
"""A matmul whose right operand is read where it lies, its elements along K side by side.

So ``torch.nn.Linear`` keeps a weight. Nothing is packed, and it does not matter who writes the weight, or when.
"""

from __future__ import annotations

from fusec.ir.index import Symbol, add, minimum, mul, sub
from fusec.ir.indexing import ceildiv
from fusec.ir.nodes import Op
from fusec.passes.families.gemm.cpu import ROW_PADDING, Gemm, apart, limit_of
from fusec.passes.families.gemm.schedule.cpu import GemmSchedule
from fusec.passes.lower.context import LoweredGroup, LoweringContext, address_step, is_linear
from fusec.passes.lower.sums import in_blocks
from fusec.tile.nodes import Alloc, Dot, Grid, Iter, Loop, Map, Statement
from fusec.tile.scalar import Buffer, Load, reindex


def lower_along(context: LoweringContext, schedule: GemmSchedule) -> LoweredGroup:
    """Tasks are blocks of columns; each reads its columns from end to end, and multiplies them with all rows."""
    return _Along(context, schedule).lower()


class _Along(Gemm):
    def lower(self) -> LoweredGroup:
        s, extents = self.schedule, self.extents
        left, left_code = self._left()
        column0 = add(mul(self.no, s.block_n), mul(self.n0, s.tile_n))
        m = Iter(self.mi, s.tile_m, self.row_limit)
        n = Iter(self.ni, s.tile_n, limit_of(extents.n, s.tile_n, column0))
        k = Iter.over(self.ki, self.axes.k)
        accumulators = [self._accumulator(op, 1) for op in self.ops]
        allocs = [Alloc(acc.buffer) for acc in accumulators]
        made: list[Statement] = []
        dots: list[Statement] = []
        for op, acc in zip(self.ops, accumulators, strict=True):
            right, code = self._columns(op, n)
            made += code
            dots += in_blocks(Dot(m, n, k, acc, left, right, True, s.registers))
        stores = self._stores(accumulators, column0)
        tiles = -(-s.block_n // s.tile_n)
        stop = minimum(tiles, ceildiv(sub(extents.n, mul(self.no, s.block_n)), s.tile_n))
        bodies = [(*allocs, *made, *dots, *stores)] if made else apart(allocs, dots, stores)
        grid = Grid(
            (
                Iter.over(self.mo, ceildiv(extents.m, s.tile_m)),
                Iter.over(self.no, ceildiv(extents.n, s.block_n)),
            ),
            (*left_code, *(Loop(self.n0, 0, stop, 1, body) for body in bodies)),
        )
        return self.context.finish("gemm", (grid,), s.describe())

    def _left(self) -> tuple[Load, list[Statement]]:
        element = reindex(self._element(self.op, 0), self.shift)
        if isinstance(element, Load) and _side_by_side(element, self.mi, self.ki):
            return element, []
        rows = self._scratch("left", self.schedule.tile_m)
        domain = (Iter(self.mi, self.schedule.tile_m, self.row_limit), Iter.over(self.ki, self.axes.k))
        return Load(rows, (self.mi, self.ki)), [Alloc(rows), Map(domain, rows, (self.mi, self.ki), element)]

    def _columns(self, op: Op, n: Iter) -> tuple[Load, list[Statement]]:
        """The tile's columns where they lie; where they are computed, in scratch."""
        element = reindex(self._element(op, 1), self.shift)
        if isinstance(element, Load) and _side_by_side(element, self.ni, self.ki):
            return element, []
        columns = self._scratch(op.operands[1].name, self.schedule.tile_n)
        domain = (n, Iter.over(self.ki, self.axes.k))
        return Load(columns, (self.ni, self.ki)), [Alloc(columns), Map(domain, columns, (self.ni, self.ki), element)]

    def _scratch(self, name: str, count: int) -> Buffer:
        """Memory for all of K of so many rows or columns."""
        depth = self.axes.k
        return Buffer(self.context.unique(name), self.operand, (count, depth), (depth + ROW_PADDING, 1), "tile")


def _side_by_side(load: Load, row: Symbol, inner: Symbol) -> bool:
    return is_linear(load, (row, inner)) and address_step(load, inner) == 1
