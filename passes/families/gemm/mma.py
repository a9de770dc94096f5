# SPDX-License-Identifier: Apache-2.0
"""A matmul for warps' tensor core instructions (sm_80 and later): operands come as they lie, or computed."""

from __future__ import annotations

from fusec.ir.nodes import Op
from fusec.passes.families.gemm.schedule.mma import MmaGemmSchedule
from fusec.passes.families.gemm.tiles import TiledMatmuls, TileSizes
from fusec.passes.lower.context import LoweredGroup, LoweringContext
from fusec.tile.nodes import RegisterTile
from fusec.tile.templates import MmaGemm, TemplateOperand


def check_mma_gemm(context: LoweringContext, schedule: MmaGemmSchedule) -> None:
    """LoweringError for matmuls that :func:`lower_mma_gemm` refuses, of any sizes."""
    _template(_matmuls(context.fresh(), schedule), schedule)


def lower_mma_gemm(context: LoweringContext, schedule: MmaGemmSchedule) -> LoweredGroup:
    """The matmul's grid in plain order, batch by row tiles by column tiles; the emitter walks it.

    LoweringError for operands that tensor cores don't multiply: not of 16 bits, nor of 32 that may be rounded to TF32.
    """
    matmuls = _matmuls(context, schedule)
    return matmuls.finish_template(_template(matmuls, schedule), schedule.describe())


def _matmuls(context: LoweringContext, s: MmaGemmSchedule) -> TiledMatmuls:
    return TiledMatmuls(context, TileSizes(s.m, s.n, s.k))


def _template(matmuls: TiledMatmuls, s: MmaGemmSchedule) -> MmaGemm:
    dtype = matmuls.multiplied_type()

    def operand(op: Op, side: int) -> TemplateOperand:
        return matmuls.loaded_or_computed(op, side, dtype)

    return MmaGemm(matmuls.nest(operand), RegisterTile(s.warp_m, s.warp_n))
