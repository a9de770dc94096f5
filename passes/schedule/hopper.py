"""Schedules of products on Hopper's tensor cores."""

from __future__ import annotations

from dataclasses import dataclass

from fusec.passes.schedule.gpu import Launch
from fusec.tile.nodes import Pipeline


@dataclass(frozen=True)
class HopperGemmSchedule:
    """A block computes tiles of ``m`` by ``n`` in steps of ``k``, ``stages`` steps fetched ahead."""

    m: int
    n: int
    k: int
    stages: int
    pipeline: Pipeline

    @property
    def launch(self) -> Launch:
        """One warpgroup that fetches, and two that multiply."""
        return Launch(12, self.stages)

    def describe(self) -> tuple[tuple[str, int | str], ...]:
        p = self.pipeline
        return (
            ("block", f"{self.m}x{self.n}x{self.k}"),
            ("cluster", f"{p.cluster_m}x{p.cluster_n}"),
            ("group", p.group),
            ("consumers", "in turns" if p.turns else "together"),
            ("stages", self.stages),
        )


@dataclass(frozen=True)
class HopperAttentionSchedule:
    """A block does ``queries`` rows, 64 a warpgroup, against ``keys`` at a time, ``stages`` of which are fetched ahead.

    turns: two warpgroups take turns at the tensor cores. heads: done side by side where some rows have more keys.
    """

    queries: int
    keys: int
    stages: int
    turns: bool
    heads: int = 8

    @property
    def launch(self) -> Launch:
        """The warpgroups that multiply, and one that fetches."""
        return Launch(4 * (self.queries // 64 + 1), self.stages)

    @property
    def pipeline(self) -> Pipeline:
        return Pipeline(1, 1, self.heads, self.turns)

    def describe(self) -> tuple[tuple[str, int | str], ...]:
        return (
            ("queries", self.queries),
            ("keys", self.keys),
            ("consumers", "in turns" if self.turns else "together"),
            ("stages", self.stages),
        )
