# SPDX-License-Identifier: Apache-2.0
"""What the schedules of grouped products on a GPU have in common."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from fusec.passes.schedule.launch import Launch
from fusec.tile.kernel import Language


@dataclass(frozen=True)
class GroupTiles:
    """A tile of one group's result of ``m`` by ``n``, in steps of ``k``; ``group``: tiles that run side by side."""

    language: ClassVar[Language] = "triton"
    m: int
    n: int
    k: int
    group: int
    launch: Launch
    seconds: float = field(default=0.0, compare=False)

    def walk(self) -> tuple[tuple[str, int], ...]:
        """How CTAs go over the tiles, as it is shown."""
        return (("group", self.group),)

    def describe(self) -> tuple[tuple[str, int | str], ...]:
        return (
            ("block", f"{self.m}x{self.n}x{self.k}"),
            *self.walk(),
            ("warps", self.launch.warps),
            ("stages", self.launch.stages),
        )
