# SPDX-License-Identifier: Apache-2.0
"""What one block of a GPU is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Launch:
    """What one block is: ``warps`` of it, and how many loads ahead its loops run (``stages``).

    registers: the most that a thread may have (0: the compiler's choice).
    """

    warps: int
    stages: int
    registers: int = 0
