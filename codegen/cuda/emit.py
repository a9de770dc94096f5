# SPDX-License-Identifier: Apache-2.0
"""Which emitter writes a kernel of the tile IR."""

from __future__ import annotations

from typing import assert_never

from fusec.codegen.cuda.attention import emit_hopper_attention
from fusec.codegen.cuda.blocks import emit_blocks
from fusec.codegen.cuda.grouped_windows import emit_grouped_windows
from fusec.codegen.cuda.hopper import emit_hopper_gemm
from fusec.codegen.cuda.mma import emit_mma_gemm
from fusec.codegen.cuda.mma_attention import emit_mma_attention
from fusec.codegen.cuda.skinny import emit_skinny_gemm
from fusec.codegen.cuda.source import KernelSource
from fusec.codegen.cuda.tiled import emit_tiled_gemm
from fusec.codegen.cuda.wide import emit_wide_rows
from fusec.target.gpu import GpuTarget
from fusec.tile.kernel import Kernel
from fusec.tile.templates import (
    GroupedConvolution,
    HopperAttention,
    HopperGemm,
    MmaAttention,
    MmaGemm,
    SimtGemm,
    SkinnyGemm,
)


def emit_kernel(kernel: Kernel, target: GpuTarget) -> KernelSource:
    """The kernel as CUDA C++ for a target. LoweringError for what no emitter can say."""
    match kernel.template:
        case SimtGemm():
            return emit_tiled_gemm(kernel, kernel.template)
        case MmaGemm():
            return emit_mma_gemm(kernel, kernel.template)
        case SkinnyGemm():
            return emit_skinny_gemm(kernel, kernel.template, target)
        case GroupedConvolution():
            return emit_grouped_windows(kernel, kernel.template, target)
        case HopperGemm():
            return emit_hopper_gemm(kernel, kernel.template, target)
        case MmaAttention():
            return emit_mma_attention(kernel, kernel.template, target)
        case HopperAttention():
            return emit_hopper_attention(kernel, kernel.template, target)
        case None:
            return emit_wide_rows(kernel) if kernel.cluster > 1 else emit_blocks(kernel)
        case _:
            assert_never(kernel.template)
