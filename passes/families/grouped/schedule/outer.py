# SPDX-License-Identifier: Apache-2.0
"""Schedules of sums of outer products of groups of rows on a GPU: those of a batch of matmuls, a group each."""

from __future__ import annotations

from dataclasses import dataclass

from fusec.passes.families.gemm.schedule.gpu import GpuGemmSchedule, Problem, gemm_candidates
from fusec.passes.families.gemm.schedule.hopper import HopperGemmSchedule, HopperProblem, hopper_candidates
from fusec.passes.families.grouped.schedule.tiles import GroupTiles
from fusec.passes.schedule.base import by_seconds
from fusec.target.gpu import GpuTarget


@dataclass(frozen=True)
class GpuOuterSchedule(GroupTiles):
    """A tile is ``m`` by ``n`` of a group's sum; the steps are of the group's rows. group: as of a matmul."""


@dataclass(frozen=True)
class HopperOuterSchedule(HopperGemmSchedule):
    """The same by Hopper's pipeline of matmuls, whose blocks go from tile to tile."""


@dataclass(frozen=True)
class OuterProblem:
    """``rows`` in ``groups``, ``p`` and ``q`` wide, of ``bits`` an element. exact: f32 by SIMT arithmetic. halves:
    results of 16 bits."""

    rows: int
    groups: int
    p: int
    q: int
    bits: int
    exact: bool
    halves: bool = False


def outer_candidates(p: OuterProblem, target: GpuTarget) -> list[GpuOuterSchedule]:
    """Schedules that fit shared memory and registers, best predicted first: groups are taken to be of one size."""
    found: dict[GpuOuterSchedule, None] = {}
    depth = max(-(-p.rows // p.groups), 1)
    for s in gemm_candidates(Problem(p.groups, p.p, p.q, depth, p.bits, exact=p.exact, across=True), target):
        if isinstance(s, GpuGemmSchedule) and s.split == 1 and not s.transposed and not s.persistent:
            found[GpuOuterSchedule(s.m, s.n, s.k, s.group, s.launch, s.seconds)] = None
    return sorted(found, key=by_seconds)


def hopper_outer_candidates(p: OuterProblem, target: GpuTarget) -> list[HopperOuterSchedule]:
    """Schedules of the pipeline, best predicted first: of a batch of matmuls, whose consumers have a tile together."""
    if p.bits != 16:
        return []
    depth = max(-(-p.rows // p.groups), 1)
    problem = HopperProblem(p.groups, p.p, p.q, depth, defers=p.halves, transposed=True)
    return [
        HopperOuterSchedule(s.m, s.n, s.k, s.stages, s.pipeline, s.seconds)
        for s in hopper_candidates(problem, target)
        if s.pipeline.split == 1 and not s.pipeline.ping_pong
    ]
