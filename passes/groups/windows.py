"""What sums of small windows (depthwise convolutions, pooling) make, which a map kernel computes by itself on a GPU."""

from __future__ import annotations

from fusec.ir.nodes import Op, Value
from fusec.passes.groups.grow import widens
from fusec.passes.groups.partition import Partition


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


def _is_of_windows(partition: Partition, value: Value) -> bool:
    """Whether a value is one position of all windows."""
    sliced = False
    while (op := partition.producers.get(value)) is not None and op.definition.kind == "view":
        if op.name == "windows":
            return sliced
        sliced |= op.name == "slice"
        value = op.operands[0]
    return False
