# SPDX-License-Identifier: Apache-2.0
"""Schedules of grouped products on a GPU: those of a matmul of as many rows as the groups' tiles have."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from fusec.passes.families.gemm.schedule.gpu import GpuGemmSchedule, Problem, gemm_candidates
from fusec.passes.schedule.base import by_seconds
from fusec.passes.schedule.launch import Launch
from fusec.target.gpu import GpuTarget
from fusec.tile.kernel import Language


@dataclass(frozen=True)
class GpuGroupedSchedule:
    """A tile is ``m`` rows of one group by ``n`` columns, in steps of ``k``; ``ctas`` go from tile to tile.

    group: row tiles whose column tiles run side by side, so that L2 serves both operands.
    """

    language: ClassVar[Language] = "triton"
    m: int
    n: int
    k: int
    group: int
    ctas: int
    launch: Launch
    seconds: float = field(default=0.0, compare=False)

    def describe(self) -> tuple[tuple[str, int | str], ...]:
        return (
            ("block", f"{self.m}x{self.n}x{self.k}"),
            ("group", self.group),
            ("ctas", self.ctas),
            ("warps", self.launch.warps),
            ("stages", self.launch.stages),
        )


@dataclass(frozen=True)
class GroupedProblem:
    """``dots`` of ``rows`` in groups, whose ``sizes`` are known or not (then there are ``groups``), of ``bits`` an
    element. exact: f32 multiplied by SIMT arithmetic."""

    rows: int
    groups: int
    sizes: tuple[int, ...]
    n: int
    k: int
    bits: int
    dots: int
    exact: bool

    def tiles(self, m: int) -> int:
        """Row tiles; half of a tile more a group where it is not known."""
        if self.sizes:
            return sum(-(-size // m) for size in self.sizes)
        return max(1, -(-self.rows // m) + min(self.groups, self.rows) // 2)


_WARPS = 8
"""Of the CTAs on an SM (H100, 32 groups of some 512 rows, K 4096, N 2048: tiles of 128×256 by one CTA of 8 warps take
0.413 ms, of 64×256 by two of 4 warps 0.457, of 128×128 by one 0.473)."""


def grouped_candidates(p: GroupedProblem, target: GpuTarget) -> list[GpuGroupedSchedule]:
    """Schedules that fit shared memory and registers, best predicted first."""
    found: dict[GpuGroupedSchedule, None] = {}
    for m in (16, 32, 64, 128, 256):
        rows = p.tiles(m) * m
        for s in gemm_candidates(Problem(1, rows, p.n, p.k, p.bits, p.dots, exact=p.exact), target):
            if not isinstance(s, GpuGemmSchedule) or s.m != m or s.split > 1 or s.transposed or s.persistent:
                continue  # what a matmul's CTAs gain by going on is of stores in boxes, which here end with a group
            tiles = p.tiles(m) * -(-p.n // s.n)
            ctas = target.sms * max(1, _WARPS // s.launch.warps)
            ctas = min(ctas, tiles) if p.sizes else ctas
            found[GpuGroupedSchedule(s.m, s.n, s.k, s.group, ctas, s.launch, s.seconds)] = None
    return sorted(found, key=by_seconds)
