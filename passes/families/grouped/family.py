# SPDX-License-Identifier: Apache-2.0
"""Grouped products: rows in groups, each multiplied with its own matrix, and sums of outer products of groups."""

from __future__ import annotations

from collections.abc import Sequence

from fusec.errors import LoweringError
from fusec.passes.families.family import CpuMachine, CpuMember, Family, GpuMachine, GpuMember, foreign
from fusec.passes.families.grouped.gpu import grouped_problem, lower_grouped
from fusec.passes.families.grouped.hopper import lower_hopper_outer
from fusec.passes.families.grouped.library import grouped_calls, outer_calls
from fusec.passes.families.grouped.match import match_grouped
from fusec.passes.families.grouped.outer import lower_outer, outer_problem
from fusec.passes.families.grouped.schedule.gpu import GpuGroupedSchedule, grouped_candidates
from fusec.passes.families.grouped.schedule.outer import (
    GpuOuterSchedule,
    HopperOuterSchedule,
    OuterProblem,
    hopper_outer_candidates,
    outer_candidates,
)
from fusec.passes.lower.context import LoweredGroup, LoweringContext
from fusec.passes.lower.pieces import Alternative
from fusec.passes.schedule.base import CpuSchedule, GpuSchedule, by_seconds
from fusec.target.gpu import GpuTarget


def _cpu_candidates(context: LoweringContext, machine: CpuMachine) -> Sequence[CpuSchedule]:
    raise LoweringError("no kernel on CPUs for a grouped product")


def _cpu_lower(context: LoweringContext, schedule: CpuSchedule) -> LoweredGroup:
    raise foreign("grouped", schedule)


def _gpu_candidates(context: LoweringContext, machine: GpuMachine) -> list[GpuSchedule]:
    if context.anchors("grouped_outer"):
        problem = outer_problem(context, machine.extent)
        sums: list[GpuSchedule] = [*outer_candidates(problem, machine.target)] if machine.triton else []
        sums += _hopper_outer(context, machine, problem)
        return machine.some(sorted(sums, key=by_seconds), "sum of outer products")
    found = grouped_candidates(grouped_problem(context, machine.extent), machine.target) if machine.triton else []
    return machine.some([*found], "grouped product")


def _hopper_outer(context: LoweringContext, machine: GpuMachine, problem: OuterProblem) -> list[HopperOuterSchedule]:
    """Schedules for Hopper's pipeline, where TMA can fetch the operands."""
    if not machine.writes_cuda(context):
        return []
    found = hopper_outer_candidates(problem, machine.target)
    try:
        for schedule in found[:1]:
            lower_hopper_outer(context.fresh(), schedule)
    except LoweringError:
        return []
    return found


def _gpu_lower(context: LoweringContext, schedule: GpuSchedule) -> LoweredGroup:
    if isinstance(schedule, GpuOuterSchedule):
        return lower_outer(context, schedule)
    if isinstance(schedule, HopperOuterSchedule):
        return lower_hopper_outer(context, schedule)
    if not isinstance(schedule, GpuGroupedSchedule):
        raise foreign("grouped", schedule)
    return lower_grouped(context, schedule)


def _library(context: LoweringContext, target: GpuTarget) -> list[Alternative]:
    if context.anchors("grouped_outer"):
        return outer_calls(context, target, outer_problem(context))
    return grouped_calls(context, target, grouped_problem(context))


GROUPED = Family(
    "grouped",
    match_grouped,
    CpuMember({}, _cpu_candidates, _cpu_lower),
    GpuMember(_gpu_candidates, _gpu_lower, library=_library),
)
