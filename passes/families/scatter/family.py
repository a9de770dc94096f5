# SPDX-License-Identifier: Apache-2.0
"""Scatters: sums into rows that an index names, with the gathers and maps that make what is added."""

from __future__ import annotations

from fusec.errors import LoweringError
from fusec.ir.attributes import GatherAttributes
from fusec.ir.index import product
from fusec.ir.indexing import most
from fusec.passes.families.family import CpuMachine, CpuMember, Family, GpuMachine, GpuMember, foreign
from fusec.passes.families.scatter.cpu import lower_scatter
from fusec.passes.families.scatter.match import match_scatters
from fusec.passes.families.scatter.schedule.cpu import ScatterSchedule, scatter_schedule
from fusec.passes.lower.context import LoweredGroup, LoweringContext
from fusec.passes.schedule.base import CpuSchedule, GpuSchedule


def _cpu_candidates(context: LoweringContext, machine: CpuMachine) -> list[ScatterSchedule]:
    (op,) = context.anchors("scatter_add")
    base, _, value = op.operands
    axis, shape = op.expect(GatherAttributes).axis, base.type.shape
    return [scatter_schedule(most(product(shape[:axis])), most(shape[axis]), value.type.most, machine.threads)]


def _cpu_lower(context: LoweringContext, schedule: CpuSchedule) -> LoweredGroup:
    if not isinstance(schedule, ScatterSchedule):
        raise foreign("scatter", schedule)
    return lower_scatter(context, schedule)


def _gpu_candidates(context: LoweringContext, machine: GpuMachine) -> list[GpuSchedule]:
    raise LoweringError("scatters on GPUs run through the library")


def _gpu_lower(context: LoweringContext, schedule: GpuSchedule) -> LoweredGroup:
    raise foreign("scatter", schedule)


SCATTER = Family(
    "scatter",
    match_scatters,
    CpuMember({"scatter": ScatterSchedule}, _cpu_candidates, _cpu_lower),
    GpuMember(_gpu_candidates, _gpu_lower),
)
