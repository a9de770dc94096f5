# SPDX-License-Identifier: Apache-2.0
"""Scans from the last position on."""

from __future__ import annotations

from dataclasses import replace

from fusec.ir.attributes import ScanAttributes, SliceAttributes
from fusec.ir.nodes import Op, Value
from fusec.ir.ops import OPS
from fusec.passes.rewrite import Outcome, Rewriter, Rule, rule

_SCANS = tuple(name for name, op in OPS.items() if op.kind == "scan")


@rule("slice")
def flip_of_scan_of_flip(r: Rewriter) -> Outcome:
    """flip(scan(flip(x))) ⇒ scan(x) {reverse}, all along one axis"""
    scan = r.producer(r.operands[0], *_SCANS)
    if scan is None:
        return None
    attributes = scan.expect(ScanAttributes)
    inner = r.producer(scan.operands[0], "slice")
    axis = attributes.axis
    if inner is None or not _flips(inner, axis):
        return None
    if not _flips(r.op, axis):
        return None
    others: list[Value] = []
    if scan.name == "recurrence":
        factor = r.producer(scan.operands[1], "slice")
        factors = scan.operands[1]
        if factor is not None and _flips(factor, axis):
            factors = factor.operands[0]
        elif not _same_along(r, factors, axis):
            return None
        others = [factors, scan.operands[2]]
    other_way = replace(attributes, reverse=not attributes.reverse)
    return r.emit(scan.name, inner.operands[0], *others, attributes=other_way)


def _same_along(r: Rewriter, value: Value, axis: int) -> bool:
    """Whether all of a value along an axis is one element broadcast."""
    made = r.producer(value, "broadcast")
    if made is None:
        return False
    shape, at = made.operands[0].type.shape, axis - value.type.rank + made.operands[0].type.rank
    return at < 0 or shape[at] == 1


def _flips(cut: Op, axis: int) -> bool:
    """Whether a slice is all of its operand, backwards along the axis alone."""
    attributes, (x,) = cut.expect(SliceAttributes), cut.operands
    shape, n = x.type.shape, x.type.shape[axis]
    if not isinstance(n, int):
        return False
    starts = tuple(n - 1 if a == axis else 0 for a in range(len(shape)))
    stops = tuple(-1 if a == axis else m for a, m in enumerate(shape))
    steps = tuple(-1 if a == axis else 1 for a in range(len(shape)))
    return (attributes.starts, attributes.stops, attributes.steps) == (starts, stops, steps)


SCAN_RULES: tuple[Rule, ...] = (flip_of_scan_of_flip,)
