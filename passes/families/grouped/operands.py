# SPDX-License-Identifier: Apache-2.0
"""What a grouped product multiplies: rows, one array of matrices or a matrix for each group, and the groups' ends."""

from __future__ import annotations

from typing import NamedTuple

from fusec.ir.attributes import GroupedDotAttributes
from fusec.ir.nodes import Op, Value


class Operands(NamedTuple):
    """matrices: one array ``[groups, ...]``, or a matrix for each group; ends: none where sizes are known."""

    rows: Value
    matrices: tuple[Value, ...]
    ends: tuple[Value, ...]


def operands_of(op: Op) -> Operands:
    """The operands of a ``grouped_dot``."""
    rows, *others = op.operands
    count = max(op.expect(GroupedDotAttributes).apart, 1)
    return Operands(rows, tuple(others[:count]), tuple(others[count:]))
