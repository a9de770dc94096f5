# SPDX-License-Identifier: Apache-2.0
"""A matmul in SIMT arithmetic on a GPU, for any element type: operands may be computed in the prologue."""

from __future__ import annotations

from fusec.errors import LoweringError
from fusec.ir.nodes import Op
from fusec.passes.families.gemm.schedule.tiled import TiledGemmSchedule
from fusec.passes.families.gemm.tiles import TiledMatmuls, TileSizes
from fusec.passes.lower.context import LoweredGroup, LoweringContext
from fusec.tile.templates import SimtGemm, TemplateOperand


def lower_tiled_gemm(context: LoweringContext, schedule: TiledGemmSchedule) -> LoweredGroup:
    """The matmul's grid in plain order, batch by row tiles by column tiles; the emitter walks it."""
    s = schedule
    matmuls = TiledMatmuls(context, TileSizes(s.m, s.n, s.k))
    if len(matmuls.ops) > 1:
        raise LoweringError(f"{len(matmuls.ops)} matmuls side by side in SIMT arithmetic")
    matmuls.tf32 = False

    def operand(op: Op, side: int) -> TemplateOperand:
        return matmuls.loaded_or_computed(op, side, matmuls.dtype)

    return matmuls.finish_template(SimtGemm(matmuls.nest(operand), s.registers), s.describe())
