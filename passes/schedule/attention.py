"""Schedules of attention on a CPU: queries on vector lanes, keys in blocks."""

from __future__ import annotations

from dataclasses import dataclass

from fusec.tile.nodes import RegisterTile


@dataclass(frozen=True)
class AttentionSchedule:
    """``queries``: rows of one task, on lanes. ``keys``: rows of one step of the online softmax.
    ``scores`` and ``values``: accumulators of the first and the second product."""

    queries: int
    keys: int
    scores: RegisterTile
    values: RegisterTile

    def describe(self) -> tuple[tuple[str, int | str], ...]:
        """The sizes by name, for dumps."""
        return (
            ("queries", self.queries),
            ("keys", self.keys),
            ("scores", f"{self.scores.rows}x{self.scores.columns}"),
            ("values", f"{self.values.rows}x{self.values.columns}"),
        )
