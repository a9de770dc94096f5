# SPDX-License-Identifier: Apache-2.0
"""Matmuls in tiles, for templates: what SIMT kernels and tensor cores have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fusec.errors import LoweringError
from fusec.ir.index import Index, Symbol, mod, mul, sub, symbol
from fusec.ir.indexing import ceildiv, last
from fusec.ir.nodes import Op
from fusec.ir.types import DType, fixed, i8
from fusec.passes.contraction import allows_tf32
from fusec.passes.families.gemm.matmul import Matmuls
from fusec.passes.lower.blocks import GEMM_BLOCKS
from fusec.passes.lower.context import LoweredGroup, LoweringContext
from fusec.tile.expand import expand
from fusec.tile.nodes import Iter, Store
from fusec.tile.scalar import Buffer, Load, ScalarExpr, loads, reindex
from fusec.tile.templates import GemmNest, GemmTemplate, TemplateOperand, TiledAxis

Description = tuple[tuple[str, int | str], ...]


@dataclass(frozen=True)
class TileSizes:
    """A tile of ``m`` by ``n`` in steps of ``k``. cluster: tiles of rows and of columns that run together, so that some
    of them may lie beyond the end."""

    m: int
    n: int
    k: int
    cluster: tuple[int, int] = (1, 1)


class TiledMatmuls(Matmuls):
    """The parts of a template's loop nest: the grid is batch by row tiles by column tiles, in plain order.

    Batches and rows may be symbolic. LoweringError where columns or K are.
    """

    def __init__(self, context: LoweringContext, sizes: TileSizes) -> None:
        super().__init__(context)
        if self.statistics:
            raise LoweringError("a matmul of tiles reduces no rows of its operands")
        s, rows = sizes, self.axes.extents.m
        columns, depth = fixed((self.axes.extents.n, self.axes.extents.k))
        row_tiles, column_tiles = ceildiv(rows, s.m), -(-columns // s.n)
        mo, no = symbol("mo", 0, last(row_tiles)), symbol("no", 0, column_tiles - 1)
        self.row_tiles, self.column_tiles = Iter.over(mo, row_tiles), Iter(no, column_tiles)
        self.step = symbol("k0", 0, depth - 1)
        self.row = tiled("row", "mi", rows, s.m, mul(mo, s.m), s.cluster[0])
        self.column = tiled("column", "ni", columns, s.n, mul(no, s.n), s.cluster[1])
        self.depth = tiled("k", "ki", depth, s.k, self.step, 1)
        self.whole: dict[Symbol, Index] = {
            self.i: self.row.whole.var,
            self.j: self.column.whole.var,
            self.k: self.depth.whole.var,
        }

    def nest(self, operand: Callable[[Op, int], TemplateOperand]) -> GemmNest:
        """Of the operands that ``operand(op, side)`` gives, sides being 0 and 1."""
        index, shape = (self.row.inner.var, self.column.inner.var), (self.row.inner.extent, self.column.inner.extent)
        left = operand(self.ops[0], 0)
        rights: list[TemplateOperand] = []
        sums: list[Load] = []
        for op in self.ops:
            name = "acc" if len(self.ops) == 1 else f"acc_{op.result.name}"
            sums.append(Load(self.context.tile(name, self.dtype, *shape), index))
            rights.append(operand(op, 1))
        stores = self.results([self.total(op, total) for op, total in zip(self.ops, sums, strict=True)])
        return GemmNest(
            self.batch,
            self.row_tiles,
            self.column_tiles,
            self.row,
            self.column,
            self.depth,
            self.step,
            left,
            tuple(rights),
            tuple(sums),
            tuple(stores),
            self.tf32,
        )

    def finish_template(self, template: GemmTemplate, schedule: Description) -> LoweredGroup:
        """The kernel of a template."""
        lowered = self.context.finish("gemm", expand(template), schedule, GEMM_BLOCKS)
        return replace(lowered, kernel=replace(lowered.kernel, template=template))

    def results(self, totals: Sequence[ScalarExpr]) -> list[Store]:
        """The stores of the group's outputs over the whole rows and columns."""
        return self.stores(self.whole, (self.row.whole, self.column.whole), totals)

    def total(self, op: Op, accumulator: Load) -> ScalarExpr:
        """What the epilogue reads of a matmul."""
        return accumulator

    def over_whole(self, op: Op, side: int) -> ScalarExpr:
        """An element of an operand, over the whole axes."""
        return reindex(self.element(op, side), self.whole)

    def loaded_or_computed(self, op: Op, side: int, dtype: DType, through: bool = False) -> TemplateOperand:
        """A load of the operand's memory, or a tile of ``dtype`` that its value is computed into. through: a tile, also
        of what lies in memory."""
        element = self.over_whole(op, side)
        if isinstance(element, Load) and element.dtype is dtype and not through:
            return TemplateOperand(element)
        if not loads(element):
            raise LoweringError("an operand that is no memory")
        rows, columns = ((self.row, self.depth), (self.depth, self.column))[side]
        shape = rows.inner.extent, columns.inner.extent
        name = self.context.unique(("left", "right")[side])
        return TemplateOperand(element, Buffer(name, dtype, shape, (shape[1], 1), "tile"))

    def multiplied_type(self, eight: bool = False) -> DType:
        """The operands' one type, of 16 bits or of 32 that may be rounded to TF32, which tensor cores multiply. eight:
        also of 8 bits, floats of both kinds side by side; the left operand's."""
        kinds = {v.type.dtype for op in self.ops for v in op.operands}
        self.tf32 = all(map(allows_tf32, self.ops))
        if eight and (kinds == {i8} or all(d.kind == "float8" for d in kinds)):
            return self.ops[0].operands[0].type.dtype
        if len(kinds) > 1 or not all(d.is_float and (d.bits == 16 or (d.bits == 32 and self.tf32)) for d in kinds):
            raise LoweringError(f"tensor cores multiply no {', '.join(map(str, kinds))}, but 16 bits, or 32 as TF32")
        return kinds.pop()


def tiled(name: str, inner: str, extent: Index, tile: int, first: Index, together: int) -> TiledAxis:
    """An axis in tiles, of which so many run together."""
    limit = None if mod(extent, tile * together) == 0 else sub(extent, first)
    whole = Iter.over(symbol(name, 0, sub(extent, 1)), extent)
    return TiledAxis(whole, first, Iter(symbol(inner, 0, tile - 1), tile, limit))
