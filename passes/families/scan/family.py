# SPDX-License-Identifier: Apache-2.0
"""Scans: running sums, products, extremes and log-sum-exps along an axis, and the maps around them."""

from __future__ import annotations

from math import prod

from fusec.ir.index import product
from fusec.ir.indexing import most
from fusec.passes.families.family import CpuMachine, CpuMember, Family, GpuMachine, GpuMember, foreign
from fusec.passes.families.languages import stream_of
from fusec.passes.families.scan.cpu import lower_scan
from fusec.passes.families.scan.gpu import lower_scan as lower_gpu_scan
from fusec.passes.families.scan.match import match_scans
from fusec.passes.families.scan.rows import attributes_of, in_order, independent, relays, runs_across, scans_of
from fusec.passes.families.scan.schedule.cpu import ScanSchedule, across_schedule, along_schedule
from fusec.passes.families.scan.schedule.gpu import GpuScanSchedule, recurrence_candidates, scan_candidates
from fusec.passes.lower.context import LoweredGroup, LoweringContext
from fusec.passes.schedule.base import CpuSchedule, GpuSchedule


def _cpu_candidates(context: LoweringContext, machine: CpuMachine) -> list[ScanSchedule]:
    shape, axis = scans_of(context)[0].operands[0].type.shape, attributes_of(context).axis
    cuts = scans_of(context)[0].result.type.is_static and independent(context)
    length, others = most(shape[axis]), [most(n) for a, n in enumerate(shape) if a != axis]
    if not runs_across(context):
        rows = most(product(others))
        return [along_schedule(rows, length, machine.threads, machine.target, cuts=cuts)]
    outer = most(product(others[:-1]))
    return [across_schedule(outer, others[-1], length, machine.threads, machine.target, cuts=cuts)]


def _cpu_lower(context: LoweringContext, schedule: CpuSchedule) -> LoweredGroup:
    if not isinstance(schedule, ScanSchedule):
        raise foreign("scan", schedule)
    return lower_scan(context, schedule)


def _gpu_candidates(context: LoweringContext, machine: GpuMachine) -> list[GpuSchedule]:
    """Triton alone writes scans."""
    result, axis = scans_of(context)[0].operands[0], attributes_of(context).axis
    shape = result.type.shape
    length, others = machine.extent(shape[axis]), [machine.extent(n) for a, n in enumerate(shape) if a != axis]
    across, cuts = runs_across(context), result.type.is_static and independent(context)
    rows, outer = prod(others), prod(others[:-1]) if across else 1
    largest = max(context.body.inputs, key=lambda v: v.type.most, default=result)
    bits, stream = largest.type.dtype.bits, stream_of(context.body)
    found: list[GpuSchedule] = []
    if machine.triton and in_order(context):
        found += recurrence_candidates(rows, stream, machine.target, across=across, outer=outer)
    elif machine.triton:
        dear = any(op.definition.reduction.combine == "logaddexp" for op in scans_of(context))
        found += scan_candidates(
            rows,
            length,
            bits,
            machine.target,
            stream,
            across=across,
            outer=outer,
            cuts=cuts,
            relays=relays(context),
            dear=dear,
            reverse=attributes_of(context).reverse,
        )
    return machine.some(found, "scan")


def _gpu_lower(context: LoweringContext, schedule: GpuSchedule) -> LoweredGroup:
    if not isinstance(schedule, GpuScanSchedule):
        raise foreign("scan", schedule)
    return lower_gpu_scan(context, schedule)


SCAN = Family(
    "scan",
    match_scans,
    CpuMember({"scan": ScanSchedule}, _cpu_candidates, _cpu_lower),
    GpuMember(_gpu_candidates, _gpu_lower),
)
