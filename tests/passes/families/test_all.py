"""The tuple of families, and what holds for each."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import get_args

from fusec.ir.attributes import FusedKind
from fusec.passes.families.all import FAMILIES
from fusec.passes.schedule.base import CpuSchedule


def test_every_kind_of_kernel_has_one_family() -> None:
    assert sorted([*(f.kind for f in FAMILIES), "library"]) == sorted(get_args(FusedKind))


def test_the_names_under_which_choices_are_kept_differ() -> None:
    names = [name for f in FAMILIES for name in f.cpu.schedules]
    assert len(set(names)) == len(names)


def test_schedules_are_frozen_records() -> None:
    for schedule in (s for f in FAMILIES for s in f.cpu.schedules.values()):
        assert issubclass(schedule, CpuSchedule)
        assert is_dataclass(schedule)
        assert fields(schedule)
