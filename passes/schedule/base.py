# SPDX-License-Identifier: Apache-2.0
"""What schedules of all families have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from fusec.passes.schedule.launch import Launch
from fusec.tile.kernel import Language


@dataclass(frozen=True)
class CpuSchedule:
    """How a CPU's kernel does its work, in the terms of the family that lowers it. Its fields are numbers, texts and
    register tiles, so that a measured choice can be kept as text."""


class GpuSchedule(Protocol):
    """How a GPU's kernel does its work, in the terms of the family that lowers it, and what writes it."""

    @property
    def launch(self) -> Launch:
        """What one block is."""

    @property
    def language(self) -> Language:
        """What the kernel is written in."""

    @property
    def seconds(self) -> float:
        """Predicted, of the kernel with its launch and of what follows it; candidates are in the order of these."""

    def describe(self) -> tuple[tuple[str, int | str], ...]:
        """The sizes by name. Two schedules of a group differ in them or in the language."""


class Timed(Protocol):
    """What has predicted seconds: a schedule, or a way to compute a group."""

    @property
    def seconds(self) -> float: ...


def by_seconds(candidate: Timed) -> float:
    """The order of candidates."""
    return candidate.seconds
