# SPDX-License-Identifier: Apache-2.0
"""Maps: elementwise code over one index space."""

from __future__ import annotations

from dataclasses import replace

from fusec.ir.types import fixed
from fusec.passes.families.family import CpuMachine, CpuMember, Family, GpuMachine, GpuMember, foreign
from fusec.passes.families.languages import InCuda, in_both, stream_of
from fusec.passes.families.map.coarsen import shared_loads
from fusec.passes.families.map.cpu import lower_map, map_domain
from fusec.passes.families.map.gpu import divisions, transposed_axes
from fusec.passes.families.map.gpu import lower_map as lower_gpu_map
from fusec.passes.families.map.match import match_maps
from fusec.passes.families.map.schedule.cpu import FEW_RESULTS, MOST_RESULTS, MapSchedule, map_schedule
from fusec.passes.families.map.schedule.gpu import (
    GpuMapSchedule,
    coarse_schedule,
    map_seconds,
    transposed_schedule,
    vector_of,
)
from fusec.passes.families.map.schedule.gpu import map_schedule as gpu_map_schedule
from fusec.passes.lower.context import LoweredGroup, LoweringContext
from fusec.passes.schedule.base import CpuSchedule, GpuSchedule
from fusec.passes.schedule.stream import Stream
from fusec.target.gpu import GpuTarget


def _cpu_candidates(context: LoweringContext, machine: CpuMachine) -> list[MapSchedule]:
    size = max(v.type.most for v in context.body.outputs)
    schedule = map_schedule(size, machine.threads, machine.target)
    shared = shared_loads(context) if len(context.body.outputs) == 1 else None
    if shared is not None:
        schedule = replace(schedule, results=shared.results(MOST_RESULTS if machine.target.has_avx512 else FEW_RESULTS))
    return [schedule]


def _cpu_lower(context: LoweringContext, schedule: CpuSchedule) -> LoweredGroup:
    if not isinstance(schedule, MapSchedule):
        raise foreign("map", schedule)
    return lower_map(context, schedule)


def _gpu_candidates(context: LoweringContext, machine: GpuMachine) -> list[GpuSchedule]:
    schedule, stream = _gpu_schedule(context, machine.target), stream_of(context.body)
    size = max(v.type.most for v in context.body.outputs)
    of_language = (map_seconds(size, schedule, stream, machine.target, cuda=cuda) for cuda in (False, True))
    triton, cuda = (replace(schedule, seconds=seconds) for seconds in of_language)
    coarse = _coarsened(context, machine.target, stream) if not schedule.transposed else None
    vector = _vector(context) if coarse is None and not triton.transposed else 1
    if vector * triton.launch.warps * machine.target.warp_size <= triton.elements:
        triton = replace(triton, vector=vector)
    return in_both(context, machine, [triton if coarse is None else coarse], [cuda])


def _vector(context: LoweringContext) -> int:
    """Neighbours whose position is computed once, of the widest array that is read or written at each position."""
    size = max(v.type.most for v in context.body.outputs)
    bits = max(v.type.dtype.bits for v in (*context.body.inputs, *context.body.outputs) if 4 * v.type.most >= size)
    innermost, count = divisions(context)
    return vector_of(innermost, bits, count)


def _coarsened(context: LoweringContext, target: GpuTarget, stream: Stream) -> GpuMapSchedule | None:
    """A schedule whose lanes compute several results each, where these share what they read."""
    shared = shared_loads(context)
    if shared is None:
        return None
    size = max(v.type.most for v in context.body.outputs)
    return coarse_schedule(shared, size, stream, target)


def _gpu_schedule(context: LoweringContext, target: GpuTarget) -> GpuMapSchedule:
    axes = transposed_axes(context)
    if axes is None:
        size = max(v.type.most for v in context.body.outputs)
        bits = max(v.type.dtype.bits for v in (*context.body.inputs, *context.body.outputs) if 4 * v.type.most >= size)
        return gpu_map_schedule(size, bits, target)
    shape = fixed(map_domain(context))
    return transposed_schedule(shape[axes[0]], shape[axes[1]], max(v.type.dtype.bits for v in context.body.outputs))


def _gpu_lower(context: LoweringContext, schedule: GpuSchedule) -> LoweredGroup:
    match schedule:
        case InCuda():
            return _gpu_lower(context, schedule.schedule)
        case GpuMapSchedule():
            return lower_gpu_map(context, schedule)
        case _:
            raise foreign("map", schedule)


MAP = Family(
    "map",
    match_maps,
    CpuMember({"map": MapSchedule}, _cpu_candidates, _cpu_lower),
    GpuMember(_gpu_candidates, _gpu_lower),
)
