# SPDX-License-Identifier: Apache-2.0
"""Other ways to compute a group than one kernel: a library's call and a kernel for the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from fusec.ir.nodes import Op
from fusec.passes.lower.context import LoweredGroup, LoweringContext


@dataclass(frozen=True)
class Pieces:
    """Ops (library calls and fused ops) that together compute a group's results from its operands, in order."""

    ops: tuple[Op, ...]


@dataclass(frozen=True)
class Alternative:
    """One way to compute a group.

    text: what it is, equal in every process, different from the group's other alternatives. lower: makes it; raises
    LoweringError where it turns out not to be possible. seconds: predicted, where it is to be chosen without measuring.
    """

    text: str
    lower: Callable[[LoweringContext], LoweredGroup | Pieces]
    seconds: float = inf
