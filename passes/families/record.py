"""Schedules as plain text, for the cache of measured choices."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict

from fusec.passes.families.attention.schedule.cpu import AttentionSchedule, NarrowAttentionSchedule
from fusec.passes.families.gemm.schedule.cpu import GemmSchedule
from fusec.passes.families.gemm.schedule.widening import WideningSchedule
from fusec.passes.families.map.schedule.cpu import MapSchedule
from fusec.passes.families.row.schedule.cpu import RowSchedule
from fusec.tile.nodes import RegisterTile

Schedule = GemmSchedule | WideningSchedule | AttentionSchedule | NarrowAttentionSchedule | RowSchedule | MapSchedule

_KINDS: dict[str, type[Schedule]] = {
    "gemm": GemmSchedule,
    "widening": WideningSchedule,
    "attention": AttentionSchedule,
    "narrow_attention": NarrowAttentionSchedule,
    "row": RowSchedule,
    "map": MapSchedule,
}


def schedule_to_text(schedule: Schedule) -> str:
    """One line of JSON."""
    kind = next(name for name, cls in _KINDS.items() if isinstance(schedule, cls))
    return json.dumps({"kind": kind, **asdict(schedule)}, sort_keys=True)


Times = tuple[tuple[str, float | None, str], ...]
"""What was measured: a schedule's text, its seconds or None, and then why it was counted out."""


def tuned_to_text(schedule: Schedule, times: Times) -> str:
    """A choice and what it was chosen from, as one line of JSON."""
    return json.dumps({"schedule": schedule_to_text(schedule), "measured": times})


def tuned_from_text(text: str) -> tuple[Schedule, Times] | None:
    """The inverse of :func:`tuned_to_text`; None for anything else (an older format is measured again)."""
    try:
        record = json.loads(text)
        times = tuple((str(t), None if s is None else float(s), str(r)) for t, s, r in record["measured"])
        schedule = schedule_from_text(record["schedule"])
    except (ValueError, KeyError, TypeError):
        return None
    return None if schedule is None else (schedule, times)


def schedule_from_text(text: str) -> Schedule | None:
    """The inverse of :func:`schedule_to_text`; None for anything else (an older format is measured again)."""
    try:
        fields = json.loads(text)
        cls: Callable[..., Schedule] = _KINDS[fields.pop("kind")]
        values = {k: RegisterTile(**v) if isinstance(v, dict) else v for k, v in fields.items()}
        return cls(**values)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
