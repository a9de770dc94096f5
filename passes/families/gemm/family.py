"""Matrix products, with what comes before and after them."""

from __future__ import annotations

from collections.abc import Sequence

from fusec.passes.families.family import CpuMachine, CpuMember, Family, GpuMember, foreign
from fusec.passes.families.gemm.along import lower_along
from fusec.passes.families.gemm.apart import operands_first
from fusec.passes.families.gemm.cpu import lower_gemm
from fusec.passes.families.gemm.cpu_candidates import product_schedules
from fusec.passes.families.gemm.gpu_candidates import gpu_candidates, lower_on_gpu
from fusec.passes.families.gemm.library import library_alternatives
from fusec.passes.families.gemm.schedule.cpu import GemmSchedule
from fusec.passes.families.gemm.schedule.widening import WideningSchedule
from fusec.passes.families.gemm.widening import lower_widening
from fusec.passes.lower.frame import Frame, LoweredGroup
from fusec.passes.schedule.base import CpuSchedule


def _cpu_candidates(frame: Frame, machine: CpuMachine) -> Sequence[CpuSchedule]:
    return product_schedules(frame, machine.target, machine.threads)


def _cpu_lower(frame: Frame, schedule: CpuSchedule) -> LoweredGroup:
    match schedule:
        case GemmSchedule():
            return lower_along(frame, schedule) if schedule.registers.along else lower_gemm(frame, schedule)
        case WideningSchedule():
            return lower_widening(frame, schedule)
        case _:
            raise foreign("gemm", schedule)


GEMM = Family(
    "gemm",
    CpuMember({"gemm": GemmSchedule, "widening": WideningSchedule}, _cpu_candidates, _cpu_lower),
    GpuMember(gpu_candidates, lower_on_gpu, operands_first, library_alternatives),
)
