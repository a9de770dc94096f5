# SPDX-License-Identifier: Apache-2.0
"""What sums of small windows (depthwise convolutions, pooling) make, which a map kernel computes by itself."""

from __future__ import annotations

from collections.abc import Mapping

from fusec.ir.graph import Graph
from fusec.ir.nodes import Op, Value
from fusec.passes.groups.grow import widens
from fusec.passes.groups.partition import POINTWISE, Partition
from fusec.tile.views import under_views


def made_of_windows(partition: Partition) -> set[Op]:
    """Elementwise ops that add up what windows show, or go on from there.

    Lanes of a map share what neighbouring windows read, lanes of a row don't. A cast to a wider type that a reduction
    reads is the reduction's: less goes through memory.
    """
    shown: set[Value] = set()
    found: set[Op] = set()
    reduced: set[Op] = set()
    for op in partition.graph.ops:
        if op.definition.kind == "reduce":
            reduced.add(op)
        if op.definition.kind != "elementwise":
            continue
        makers = [partition.producers.get(partition.source(v)) for v in op.operands]
        parts = sum(partition.source(v) in shown or _is_of_windows(partition, v) for v in op.operands)
        if any(maker in reduced for maker in makers):
            reduced.add(op)
        elif parts > 1 or any(maker in found for maker in makers):
            found.add(op)
        elif parts:
            shown.add(op.result)
    return {op for op in found if not (widens(op) and any(c in reduced for c in partition.compute_consumers(op)))}


MANY = 32
"""Elementwise ops that make an element, from which on it is made as images lie, and copied after."""


def copied_after(graph: Graph) -> set[Value]:
    """Sums of many windows of a padded image that a copy shows in another order: lanes that lie as the copy does would
    read each element by itself."""
    producers = graph.producers()
    found: set[Value] = set()
    for op in graph.ops:
        value, reordered = op.operands[0] if op.name == "copy" else None, False
        while value is not None and (made := producers.get(value)) is not None and made.definition.kind == "view":
            reordered |= made.name == "permute"
            value = made.operands[0]
        if value is not None and reordered and _takes_long(value, producers):
            found.add(value)
    return found


def _takes_long(value: Value, producers: Mapping[Value, Op]) -> bool:
    """Whether a value has many terms, and what they show was padded for it: an argument may lie as the copy does."""
    makers, left, is_padded = set[Op](), [value], False
    while left and len(makers) < MANY:
        made = producers.get(under_views(left.pop(), producers))
        if made is None or made.definition.kind not in POINTWISE or made in makers:
            continue
        is_padded |= made.name == "pad" and made.result.type.most >= value.type.most
        makers.add(made)
        left += made.operands
    return len(makers) >= MANY and is_padded


def _is_of_windows(partition: Partition, value: Value) -> bool:
    """Whether a value is one position of all windows."""
    sliced = False
    while (op := partition.producers.get(value)) is not None and op.definition.kind == "view":
        if op.name == "windows":
            return sliced
        sliced |= op.name == "slice"
        value = op.operands[0]
    return False
