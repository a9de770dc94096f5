# SPDX-License-Identifier: Apache-2.0
"""Sums of outer products of groups of rows by Hopper's pipeline: a batch of matmuls, each over rows of its own."""

from __future__ import annotations

from dataclasses import replace

from fusec.errors import LoweringError
from fusec.ir.index import Index, Symbol, mul, symbol
from fusec.ir.nodes import Value
from fusec.passes.families.gemm.tiles import tiled
from fusec.passes.families.grouped.outer import OuterProducts, lower_outer
from fusec.passes.families.grouped.schedule.outer import GpuOuterSchedule, HopperOuterSchedule
from fusec.passes.lower.context import LoweredGroup, LoweringContext
from fusec.passes.lower.epilogue import epilogue_stores
from fusec.tile.expand import in_tile
from fusec.tile.fetch import fetch_of
from fusec.tile.nodes import Iter
from fusec.tile.scalar import Apply, Load, ScalarExpr, loads, reindex
from fusec.tile.templates import GemmNest, HopperGemm, TemplateOperand, TiledAxis


def lower_hopper_outer(context: LoweringContext, schedule: HopperOuterSchedule) -> LoweredGroup:
    """The kernel, whose body is Triton's. LoweringError for operands that a TMA copy can't fetch."""
    s = schedule
    nest = _HopperOuter(context, s).nest()
    lowered = lower_outer(context, GpuOuterSchedule(s.m, s.n, s.k, s.pipeline.group, s.launch))
    kernel = replace(lowered.kernel, template=HopperGemm(nest, s.pipeline))
    return replace(lowered, kernel=kernel, schedule=s.describe())


class _HopperOuter(OuterProducts):
    def __init__(self, context: LoweringContext, schedule: HopperOuterSchedule) -> None:
        super().__init__(context)
        s, p = schedule, self.problem
        if p.bits != 16 or not isinstance(self.rows, int):
            raise LoweringError(f"Hopper's pipeline adds up no outer products of {p.bits} bits, or of symbolic rows")
        self.schedule, depth = schedule, self.rows
        row_tiles, column_tiles = -(-p.p // s.m), -(-p.q // s.n)
        mo, no, self.step = (
            symbol("mo", 0, row_tiles - 1),
            symbol("no", 0, column_tiles - 1),
            symbol("k0", 0, depth - 1),
        )
        self.row_tiles, self.column_tiles = Iter(mo, row_tiles), Iter(no, column_tiles)
        cluster = s.pipeline.cluster_m, s.pipeline.cluster_n
        self.row = tiled("row", "mi", p.p, s.m, mul(mo, s.m), cluster[0])
        self.column = tiled("column", "ni", p.q, s.n, mul(no, s.n), cluster[1])
        self.depth = tiled("k", "ki", depth, s.k, self.step, 1)

    def nest(self) -> GemmNest:
        s, op = self.schedule, self.op
        total = Load(self.context.tile("acc", self.wide, s.m, s.n), (self.row.inner.var, self.column.inner.var))
        left = self._fetched(op.operands[0], self.row, 0)
        right = self._fetched(op.operands[1], self.column, 1)
        rounded = total if op.result.type.dtype is total.dtype else Apply("cast", (total,), op.result.type.dtype)
        point = (self.g, self.i, self.j)
        whole: dict[Symbol, Index] = {self.i: self.row.whole.var, self.j: self.column.whole.var}
        domain = self.row.whole, self.column.whole
        stores = epilogue_stores(self.context, "grouped", (op,), point, whole, domain, (rounded,))
        if any(load.gathers for store in stores for load in loads(store.value)):
            raise LoweringError("an epilogue that reads at loaded subscripts")
        batch = Iter(self.g, self.problem.groups)
        axes = self.row, self.column, self.depth
        return GemmNest(
            *(batch, self.row_tiles, self.column_tiles, *axes, self.step, left, (right,), (total,), tuple(stores)),
            tf32=False,
            rows=(self.first_of(self.g), self.end_of(self.g)),
        )

    def _fetched(self, value: Value, axis: TiledAxis, side: int) -> TemplateOperand:
        at: dict[Symbol, Index] = {self.k: self.depth.whole.var, (self.i, self.j)[side]: axis.whole.var}
        element: ScalarExpr = reindex(self.element(value, (self.k, (self.i, self.j)[side])), at)
        axes = (axis, self.depth) if side == 0 else (self.depth, axis)
        block = in_tile(element, *axes)
        fetch = fetch_of(block, (axes[0].inner, axes[1].inner)) if isinstance(block, Load) else None
        if fetch is None or fetch.transposed == (side == 1):
            raise LoweringError(f"{value} can't be fetched by TMA")
        return TemplateOperand(element)
