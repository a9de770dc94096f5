# SPDX-License-Identifier: Apache-2.0
"""Bounds of floats that are made of numbers and positions alone: where each pixel of a resized image is read, for
one."""

from __future__ import annotations

from collections.abc import Sequence

from fusec.ir.attributes import ConstantAttributes, IotaAttributes
from fusec.ir.indexing import most
from fusec.ir.interval import closed
from fusec.ir.nodes import Op
from fusec.ir.types import f32, f64

Interval = tuple[float, float]
"""Inclusive bounds; never NaN."""

_SLACK = 2.0**-20
"""More than a rounding of f32, whichever way a kernel orders and contracts the arithmetic around it."""

_LARGEST = 2.0**60
"""Bounds beyond are not followed: nothing here may overflow."""


def float_range(op: Op, of: Sequence[Interval | None]) -> Interval | None:
    """Bounds of an op's float result from bounds of its operands; None where they are not known."""
    if op.result.type.dtype not in (f32, f64) or any(each is None for each in of):
        return None
    found = _range(op, [each for each in of if each is not None])
    if found is None or not (-_LARGEST < found[0] <= found[1] < _LARGEST):
        return None
    low, high = found
    return low - abs(low) * _SLACK, high + abs(high) * _SLACK


def _range(op: Op, of: Sequence[Interval]) -> Interval | None:
    match op.name:
        case "constant":
            value = op.expect(ConstantAttributes).value
            return None if isinstance(value, complex) or value != value else (float(value), float(value))
        case "iota":
            return 0.0, float(max(most(op.result.type.shape[op.expect(IotaAttributes).axis]) - 1, 0))
        case "div" if of[1][0] > 0 or of[1][1] < 0:
            ends = [a / b for a in of[0] for b in of[1]]
            return min(ends), max(ends)
        case "floor":
            return of[0][0] - 1, of[0][1]
        case "ceil":
            return of[0][0], of[0][1] + 1
        case "cast" | "copy" if of:
            return of[0]
        case _ if op.definition.kind == "view":
            return of[0] if len(of) == 1 else None
        case name:
            return closed(name, of)
