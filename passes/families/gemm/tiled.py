"""A matrix product in SIMT arithmetic on a GPU, for any element type: operands may be computed in the prologue."""

from __future__ import annotations

from fusec.errors import LoweringError
from fusec.ir.nodes import Op
from fusec.passes.families.gemm.schedule.tiled import TiledGemmSchedule
from fusec.passes.families.gemm.tiles import TiledProducts, TileSizes
from fusec.passes.lower.context import LoweredGroup, LoweringContext
from fusec.tile.templates import SimtGemm, TemplateOperand


def lower_tiled_gemm(context: LoweringContext, schedule: TiledGemmSchedule) -> LoweredGroup:
    """The product's grid in plain order, batch by row tiles by column tiles; the emitter walks it."""
    s = schedule
    products = TiledProducts(context, TileSizes(s.m, s.n, s.k))
    if len(products.ops) > 1:
        raise LoweringError(f"{len(products.ops)} products side by side in plain arithmetic")
    products.tf32 = False

    def operand(op: Op, side: int) -> TemplateOperand:
        return products.loaded_or_computed(op, side, products.dtype)

    return products.finish_template(SimtGemm(products.nest(operand), s.registers), s.describe())
