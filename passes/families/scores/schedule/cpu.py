# SPDX-License-Identifier: Apache-2.0
"""Schedules of score spaces on a CPU: rows on vector lanes, columns in blocks."""

from __future__ import annotations

from dataclasses import dataclass

from fusec.passes.families.attention.schedule.cpu import attention_candidates
from fusec.passes.schedule.base import CpuSchedule
from fusec.target.cpu import CpuTarget
from fusec.tile.nodes import RegisterTile


@dataclass(frozen=True)
class CpuScoresSchedule(CpuSchedule):
    """``rows`` of one task, on lanes, against ``columns`` at a time. ``scores`` and ``values``: accumulators of the
    products and of the results."""

    rows: int
    columns: int
    scores: RegisterTile
    values: RegisterTile

    def describe(self) -> tuple[tuple[str, int | str], ...]:
        """The sizes by name, for dumps."""
        return (
            ("rows", self.rows),
            ("columns", self.columns),
            ("scores", f"{self.scores.rows}x{self.scores.columns}"),
            ("values", f"{self.values.rows}x{self.values.columns}"),
        )


def cpu_scores_candidates(
    rows: int, columns: int, depth: int, values: int, bits: int, target: CpuTarget
) -> list[CpuScoresSchedule]:
    """Schedules worth considering, the usual best first: attention's, whose products are the same."""
    found = attention_candidates(rows, columns, depth, values, bits, target)
    return list(dict.fromkeys(CpuScoresSchedule(s.queries, s.keys, s.scores, s.values) for s in found))
