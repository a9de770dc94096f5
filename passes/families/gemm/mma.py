"""A matrix product for warps' tensor core instructions (sm_80 and later): operands come as they lie, or computed."""

from __future__ import annotations

from fusec.ir.nodes import Op
from fusec.passes.families.gemm.schedule.mma import MmaGemmSchedule
from fusec.passes.families.gemm.tiles import TiledProducts, TileSizes
from fusec.passes.lower.frame import Frame, LoweredGroup
from fusec.tile.nodes import MmaGemm, RegisterTile, TemplateOperand


def lower_mma_gemm(frame: Frame, schedule: MmaGemmSchedule) -> LoweredGroup:
    """The product's grid in plain order, batch by row tiles by column tiles; the emitter walks it.

    LoweringError for operands that tensor cores don't multiply: not of 16 bits, nor of 32 that may be rounded to TF32.
    """
    s = schedule
    products = TiledProducts(frame, TileSizes(s.m, s.n, s.k))
    dtype = products.multiplied_type()

    def operand(op: Op, side: int) -> TemplateOperand:
        return products.loaded_or_computed(op, side, dtype)

    template = MmaGemm(products.nest(operand), RegisterTile(s.warp_m, s.warp_n))
    return products.finish_template(template, s.describe())
