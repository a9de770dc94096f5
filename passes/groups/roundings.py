# SPDX-License-Identifier: Apache-2.0
"""Half-precision values that one kernel stores and another reads: both see the same digits.

A kernel holds such a value in f32, and another kernel reads it rounded. What the first makes of the digits that are not
stored cancels against nothing in the second: ``h - mean(h)`` of equal numbers is no longer 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from fusec.ir.attributes import CastAttributes
from fusec.ir.builder import unused_name
from fusec.ir.nodes import Op, Value
from fusec.ir.ops import OPS
from fusec.passes.precision import is_unrounded


def with_roundings(ops: Sequence[Op], shared: Iterable[Value]) -> list[Op]:
    """The ops of a kernel's body, which read rounded what of ``shared`` they would read with the digits of f32.

    shared: results of the body that other kernels read.
    """
    producers = {result: op for op in ops for result in op.results}
    names = {v.name for op in ops for v in (*op.operands, *op.results)}
    rounded: dict[Value, Value] = {}
    for value in shared:
        if is_unrounded(producers.get, value) and any(value in op.operands for op in ops):
            rounded[value] = Value(value.type, unused_name(f"{value.name}_stored", names))
    made: list[Op] = []
    for op in ops:
        made.append(replace(op, operands=tuple(rounded.get(v, v) for v in op.operands)) if rounded else op)
        for result in op.results:
            if result in rounded:
                attributes = CastAttributes(result.type.dtype)
                made.append(Op(OPS["cast"], (result,), attributes, (rounded[result],), op.location))
    return made
