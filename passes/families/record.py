# SPDX-License-Identifier: Apache-2.0
"""Schedules of CPU kernels as plain text, for the cache of measured choices."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

from fusec.passes.families.all import FAMILIES
from fusec.passes.schedule.base import CpuSchedule
from fusec.tile.nodes import RegisterTile

_KINDS: dict[str, type[CpuSchedule]] = {name: cls for f in FAMILIES for name, cls in f.cpu.schedules.items()}


def schedule_to_text(schedule: CpuSchedule) -> str:
    """One line of JSON."""
    kind = next(name for name, cls in _KINDS.items() if isinstance(schedule, cls))
    return json.dumps({"kind": kind, **asdict(schedule)}, sort_keys=True)


Times = tuple[tuple[str, float | None, str], ...]
"""What was measured: a schedule's text, its seconds or None, and then why it was counted out."""


def tuned_to_text(schedule: CpuSchedule, times: Times) -> str:
    """A choice and what it was chosen from, as one line of JSON."""
    return json.dumps({"schedule": schedule_to_text(schedule), "measured": times})


def times_from(measured: Iterable[tuple[object, Any, object]]) -> Times:
    """What was measured, from a record of JSON."""
    return tuple((str(t), None if s is None else float(s), str(r)) for t, s, r in measured)


def tuned_from_text(text: str) -> tuple[CpuSchedule, Times] | None:
    """The inverse of :func:`tuned_to_text`; None for anything else (an older format is measured again)."""
    try:
        record = json.loads(text)
        times = times_from(record["measured"])
        schedule = schedule_from_text(record["schedule"])
    except (ValueError, KeyError, TypeError):
        return None
    return None if schedule is None else (schedule, times)


def schedule_from_text(text: str) -> CpuSchedule | None:
    """The inverse of :func:`schedule_to_text`; None for anything else (an older format is measured again)."""
    try:
        fields = json.loads(text)
        cls: Callable[..., CpuSchedule] = _KINDS[fields.pop("kind")]
        values = {k: RegisterTile(**v) if isinstance(v, dict) else v for k, v in fields.items()}
        return cls(**values)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
