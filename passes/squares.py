# SPDX-License-Identifier: Apache-2.0
"""Sums of squares around a value: variances, before anyone has written them otherwise."""

from __future__ import annotations

from collections.abc import Callable

from fusec.ir.nodes import Op, Value


def squared_difference(total: Op, producer: Callable[[Value], Op | None], operand: Value | None = None) -> Op | None:
    """The ``sub`` of ``sum((x - b)²)``; None for another sum. ``operand``: what the sum's is a cast of, if not it."""
    square = producer(total.operands[0] if operand is None else operand) if total.name == "reduce_sum" else None
    if square is None or square.name != "mul" or square.operands[0] is not square.operands[1]:
        return None
    difference = producer(square.operands[0])
    return difference if difference is not None and difference.name == "sub" else None
