"""Schedules as plain text, for the cache of measured choices."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict

from fusec.passes.schedule.attention import AttentionSchedule
from fusec.passes.schedule.gemm import GemmSchedule
from fusec.passes.schedule.map import MapSchedule
from fusec.passes.schedule.row import RowSchedule
from fusec.tile.nodes import RegisterTile

Schedule = GemmSchedule | AttentionSchedule | RowSchedule | MapSchedule

_KINDS: dict[str, type[Schedule]] = {
    "gemm": GemmSchedule,
    "attention": AttentionSchedule,
    "row": RowSchedule,
    "map": MapSchedule,
}


def schedule_to_text(schedule: Schedule) -> str:
    """One line of JSON."""
    kind = next(name for name, cls in _KINDS.items() if isinstance(schedule, cls))
    return json.dumps({"kind": kind, **asdict(schedule)}, sort_keys=True)


def schedule_from_text(text: str) -> Schedule | None:
    """The inverse of :func:`schedule_to_text`; None for anything else (an older format is measured again)."""
    try:
        fields = json.loads(text)
        cls: Callable[..., Schedule] = _KINDS[fields.pop("kind")]
        values = {k: RegisterTile(**v) if isinstance(v, dict) else v for k, v in fields.items()}
        return cls(**values)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
