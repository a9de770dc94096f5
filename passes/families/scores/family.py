# SPDX-License-Identifier: Apache-2.0
"""Score spaces: dots that make values on a space that is never stored, and dots that consume them."""

from __future__ import annotations

from collections.abc import Sequence

from fusec.errors import LoweringError
from fusec.ir.indexing import most
from fusec.passes.contraction import accumulator_dtype
from fusec.passes.families.family import CpuMachine, CpuMember, Family, GpuMachine, GpuMember, foreign
from fusec.passes.families.scores.cpu import lower_scores
from fusec.passes.families.scores.elements import find_elements, scores_parts
from fusec.passes.families.scores.gpu import lower_scores as lower_gpu_scores
from fusec.passes.families.scores.gpu import scores_size
from fusec.passes.families.scores.match import match_scores
from fusec.passes.families.scores.pieces import products_apart
from fusec.passes.families.scores.schedule.cpu import CpuScoresSchedule, cpu_scores_candidates
from fusec.passes.families.scores.schedule.gpu import GpuScoresSchedule, scores_candidates
from fusec.passes.lower.context import LoweredGroup, LoweringContext
from fusec.passes.schedule.base import CpuSchedule, GpuSchedule


def _cpu_candidates(context: LoweringContext, machine: CpuMachine) -> Sequence[CpuSchedule]:
    parts = scores_parts(context.op)
    e = find_elements(context.fresh().inliner, parts)
    dtype = accumulator_dtype(parts.products[0])
    if dtype.name not in ("f32", "f64"):
        raise LoweringError(f"no score space of {dtype} on this target")
    depth, values = max(p.extent for p in e.products), max(c.extent for c in e.consumers)
    return cpu_scores_candidates(most(e.rows), most(e.columns), depth, values, dtype.bits, machine.target)


def _cpu_lower(context: LoweringContext, schedule: CpuSchedule) -> LoweredGroup:
    if not isinstance(schedule, CpuScoresSchedule):
        raise foreign("scores", schedule)
    return lower_scores(context, schedule)


def _gpu_candidates(context: LoweringContext, machine: GpuMachine) -> list[GpuSchedule]:
    size = scores_size(context.fresh(), machine.extent)
    found = scores_candidates(size, machine.target) if machine.triton else []
    if not found:
        raise LoweringError(f"rows of {size.widths} elements do not fit a block")
    return [*found]


def _gpu_lower(context: LoweringContext, schedule: GpuSchedule) -> LoweredGroup:
    if not isinstance(schedule, GpuScoresSchedule):
        raise foreign("scores", schedule)
    return lower_gpu_scores(context, schedule)


SCORES = Family(
    "scores",
    match_scores,
    CpuMember({"scores": CpuScoresSchedule}, _cpu_candidates, _cpu_lower),
    GpuMember(_gpu_candidates, _gpu_lower, pieces=products_apart),
)
