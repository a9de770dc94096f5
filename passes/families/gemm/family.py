# SPDX-License-Identifier: Apache-2.0
"""Matmuls, with what comes before and after them."""

from __future__ import annotations

from collections.abc import Sequence

from fusec.passes.families.family import CpuMachine, CpuMember, Family, GpuMember, foreign
from fusec.passes.families.gemm.along import lower_along
from fusec.passes.families.gemm.apart import operands_first
from fusec.passes.families.gemm.cpu import lower_gemm
from fusec.passes.families.gemm.cpu_candidates import gemm_schedules
from fusec.passes.families.gemm.eight_bits import eight_bits_first
from fusec.passes.families.gemm.gpu_candidates import gpu_candidates, lower_on_gpu
from fusec.passes.families.gemm.library import library_alternatives
from fusec.passes.families.gemm.library_convolution import library_convolution
from fusec.passes.families.gemm.library_eight_bits import library_in_eight_bits
from fusec.passes.families.gemm.match import match_gemms
from fusec.passes.families.gemm.mixed import lower_mixed
from fusec.passes.families.gemm.schedule.cpu import GemmSchedule
from fusec.passes.families.gemm.schedule.mixed import MixedGemmSchedule
from fusec.passes.families.gemm.windows import operands_in_order
from fusec.passes.lower.context import LoweredGroup, LoweringContext
from fusec.passes.lower.pieces import Alternative
from fusec.passes.schedule.base import CpuSchedule
from fusec.target.gpu import GpuTarget


def _cpu_candidates(context: LoweringContext, machine: CpuMachine) -> Sequence[CpuSchedule]:
    return gemm_schedules(context, machine.target, machine.threads)


def _cpu_lower(context: LoweringContext, schedule: CpuSchedule) -> LoweredGroup:
    match schedule:
        case GemmSchedule():
            return lower_along(context, schedule) if schedule.registers.along else lower_gemm(context, schedule)
        case MixedGemmSchedule():
            return lower_mixed(context, schedule)
        case _:
            raise foreign("gemm", schedule)


def _library(context: LoweringContext, target: GpuTarget) -> list[Alternative]:
    found = library_convolution(context, target) or library_in_eight_bits(context, target)
    return found or library_alternatives(context, target)


def _pieces(context: LoweringContext) -> list[Alternative]:
    return [*operands_in_order(context), *operands_first(context), *eight_bits_first(context)]


GEMM = Family(
    "gemm",
    match_gemms,
    CpuMember({"gemm": GemmSchedule, "mixed": MixedGemmSchedule}, _cpu_candidates, _cpu_lower),
    GpuMember(gpu_candidates, lower_on_gpu, _pieces, _library),
)
