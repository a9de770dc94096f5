# SPDX-License-Identifier: Apache-2.0
"""Where in the user's source something was written."""

from __future__ import annotations

from dataclasses import dataclass
from os.path import basename


@dataclass(frozen=True)
class Location:
    """A line of the user's source."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def short(self) -> str:
        """File name without folders, as IR text shows it."""
        return f"{basename(self.file)}:{self.line}"
