# SPDX-License-Identifier: Apache-2.0
"""Schedules of sums of outer products of groups of rows on a GPU: those of a batch of matmuls, a group each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from fusec.passes.families.gemm.schedule.gpu import GpuGemmSchedule, Problem, gemm_candidates
from fusec.passes.schedule.base import by_seconds
from fusec.passes.schedule.launch import Launch
from fusec.target.gpu import GpuTarget
from fusec.tile.kernel import Language


@dataclass(frozen=True)
class GpuOuterSchedule:
    """A tile of ``m`` by ``n`` of a group's sum, over its rows in steps of ``k``; group: as of a matmul."""

    language: ClassVar[Language] = "triton"
    m: int
    n: int
    k: int
    group: int
    launch: Launch
    seconds: float = field(default=0.0, compare=False)

    def describe(self) -> tuple[tuple[str, int | str], ...]:
        return (
            ("block", f"{self.m}x{self.n}x{self.k}"),
            ("group", self.group),
            ("warps", self.launch.warps),
            ("stages", self.launch.stages),
        )


@dataclass(frozen=True)
class OuterProblem:
    """``rows`` in ``groups``, ``p`` and ``q`` wide, of ``bits`` an element. exact: f32 by SIMT arithmetic."""

    rows: int
    groups: int
    p: int
    q: int
    bits: int
    exact: bool


def outer_candidates(p: OuterProblem, target: GpuTarget) -> list[GpuOuterSchedule]:
    """Schedules that fit shared memory and registers, best predicted first: groups are taken to be of one size."""
    found: dict[GpuOuterSchedule, None] = {}
    depth = max(-(-p.rows // p.groups), 1)
    for s in gemm_candidates(Problem(p.groups, p.p, p.q, depth, p.bits, exact=p.exact, across=True), target):
        if isinstance(s, GpuGemmSchedule) and s.split == 1 and not s.transposed and not s.persistent:
            found[GpuOuterSchedule(s.m, s.n, s.k, s.group, s.launch, s.seconds)] = None
    return sorted(found, key=by_seconds)
