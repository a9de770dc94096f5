# SPDX-License-Identifier: Apache-2.0
"""Schedules of grouped products on a GPU: those of a matmul of as many rows as the groups' tiles have."""

from __future__ import annotations

from dataclasses import dataclass, field

from fusec.passes.families.gemm.schedule.gpu import GpuGemmSchedule, Problem, gemm_candidates
from fusec.passes.families.grouped.schedule.tiles import GroupTiles
from fusec.passes.schedule.base import by_seconds
from fusec.passes.schedule.launch import Launch
from fusec.target.gpu import GpuTarget


@dataclass(frozen=True)
class GpuGroupedSchedule(GroupTiles):
    """A tile is ``m`` rows of one group by ``n`` columns; ``ctas`` go from tile to tile.

    group: row tiles whose column tiles run side by side, so that L2 serves both operands.
    """

    ctas: int = field(kw_only=True)

    def walk(self) -> tuple[tuple[str, int], ...]:
        return (*super().walk(), ("ctas", self.ctas))


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

    def arrival(self, target: GpuTarget) -> float:
        """Seconds in which the matrices of all groups that may have rows arrive."""
        matrices = min(self.groups, self.rows) * self.n * self.k * self.dots * self.bits // 8
        return matrices / target.rates.read + target.rates.launch


_WARPS = 8
"""Of the CTAs on an SM (H100, 32 groups of some 512 rows, K 4096, N 2048: tiles of 128×256 by one CTA of 8 warps take
0.413 ms, of 64×256 by two of 4 warps 0.457, of 128×128 by one 0.473)."""


_OF_HALF_AN_SM = 1.15
"""What CTAs of four warps, two of which share an SM, take of what a matmul's tiles would, relative to those of eight.

Predicted and measured on an H200, bf16, µs: 8192×5632×2048 in 8 groups, tiles of 128×128 by 4 warps 312 and 345, of
128×256 by 8 341 and 310; 32 groups 454 and 500, 449 and 432; gate and up of 32768×2048×1024 in 64 groups, 64×128 by 4
517 and 815, 128×128 by 8 512 and 490."""


FEW_ROWS, _BESIDE_FEW_ROWS = 16, 1.05
"""Rows of a group, on average, for which a tile has no more, and what other tiles take of its time at least (an H200,
gate and up of 128 rows in 64 groups, 2048×1024: tiles of 16×64×128 157 µs, 64×64×128 165, 64×128×128 174)."""


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
            seconds = s.seconds * (_OF_HALF_AN_SM if s.launch.warps < _WARPS else 1.0)
            seconds = max(seconds, _BESIDE_FEW_ROWS * p.arrival(target))
            found[GpuGroupedSchedule(s.m, s.n, s.k, s.group, s.launch, seconds, ctas=ctas)] = None
    if p.bits == 16 and p.rows <= FEW_ROWS * p.groups and p.n >= 64 and p.k >= 128:
        ctas = target.sms * 2
        found[GpuGroupedSchedule(FEW_ROWS, 64, 128, 8, Launch(4, 4), p.arrival(target), ctas=ctas)] = None
    return sorted(found, key=by_seconds)
