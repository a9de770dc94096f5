# SPDX-License-Identifier: Apache-2.0
"""What makes a matmul's operand on a GPU, computed in the prologue of the matmul where that pays."""

from __future__ import annotations

from heapq import heappop, heappush
from math import prod

from fusec.ir.attributes import DotAttributes, ReduceAttributes
from fusec.ir.index import product
from fusec.ir.indexing import most
from fusec.ir.nodes import Op, Value
from fusec.passes.block_scales import scaling_of
from fusec.passes.groups.grow import Log
from fusec.passes.groups.partition import Group, Partition
from fusec.runtime.program import Declined

RULE = "prologue into gemm"

_FLOPS_A_BYTE = 170
"""Multiply-adds (times two) that a GPU's matrix units do in the time that its memory moves a byte."""

_SLOWER = 0.5
"""The share of its time that a matmul loses where an operand comes through registers."""

_SCALAR_FLOPS = 12
"""What an elementwise operation costs, in flops of the matrix units, beside the multiplications of its element."""

MOST_OF_A_ROW = 1 << 14
"""Elements of a row that a block can reduce before it multiplies."""

_LAUNCH_BYTES = 8 << 20
"""What the memory moves while a kernel starts."""


def grow_prologues(partition: Partition, group: Group, log: Log) -> set[Op]:
    """Absorbs the elementwise ops that make operands which only this group reads, where that costs less than memory.

    Those that widen and scale 8-bit floats are returned: what they read is memory."""
    scaled = _take_scaled(partition, group)
    if scaled:
        return scaled
    for value in dict.fromkeys(v for anchor in group.anchors for v in anchor.operands):
        chain = _chain(partition, group, value)
        if not chain:
            continue
        reason = _obstacle(partition, group, value, chain)
        if reason:
            log(Declined(RULE, reason, chain[-1].location))
        else:
            partition.add(group, chain)
    return set()


def _take_scaled(partition: Partition, group: Group) -> set[Op]:
    """Takes in what makes 8-bit floats times scales of blocks (``passes/block_scales.py``)."""
    if not all(anchor.expect(DotAttributes).scaled for anchor in group.anchors):
        return set()
    values = dict.fromkeys(v for anchor in group.anchors for v in anchor.operands)
    found = {v: scaling_of(partition.producers.get, v) for v in values}
    ops = {op for scaling in found.values() if scaling is not None for op in scaling.ops}
    allowed = ops | group.ops
    for op in ops:
        if op in partition.owner or partition.escapes(op) or op.result in partition.stored:
            return set()
        if not allowed.issuperset(partition.compute_consumers(op)):
            return set()
    partition.add(group, sorted(ops, key=partition.order.__getitem__))
    return ops


def _chain(partition: Partition, group: Group, value: Value) -> list[Op]:
    """The ops, in graph order, that make the operand and serve nothing but the group.

    They are elementwise; where the operand is one row, sums and maxima of such rows (a norm's) are among them.
    """
    row = _row_axes(group, value)
    found: set[Op] = set()
    ops, order = partition.graph.ops, partition.order
    waiting: list[int] = []

    def note(source: Value) -> None:
        made = partition.producers.get(source)
        if made is not None:
            heappush(waiting, -order[made])

    for source in partition.sources_of(value):
        note(source)
    number = len(ops)
    while waiting:
        before, number = number, -heappop(waiting)
        op = ops[number]
        if number == before or op in partition.owner:
            continue
        if op.definition.kind != "elementwise" and not _is_of_row(op, value, row):
            continue
        if partition.escapes(op) or op.result in partition.stored:
            continue
        if all(c in found or c in group.ops for c in partition.compute_consumers(op)):
            found.add(op)
            for source in partition.sources(op):
                note(source)
    return sorted(found, key=order.__getitem__)


def _obstacle(partition: Partition, group: Group, value: Value, chain: list[Op]) -> str:
    """Why the chain is a kernel of its own; empty where it is computed in the matmul's."""
    read = dict.fromkeys(v for op in chain for v in partition.sources(op) if partition.producers.get(v) not in chain)
    for source in read:
        made = partition.producers.get(source)
        if made is not None and made.definition.kind == "reduce":
            return f"{source} is a reduction, whose kernel makes the operand, too"
    size, times = value.type.most, _times(group, value)
    moved = sum(v.type.most_bytes for v in read) + value.type.most_bytes
    flops = sum(max(1, op.definition.flops) * op.result.type.most for op in chain)
    inside = _SLOWER * 2 * size * times + _SCALAR_FLOPS * flops * (times / 128)
    apart = _FLOPS_A_BYTE * (moved + _LAUNCH_BYTES)
    if inside <= apart:
        return ""
    return f"each element of {value} meets {times} others: that is more to compute than {moved} bytes take to move"


def _row_axes(group: Group, value: Value) -> tuple[int, ...] | None:
    """The axes of an operand that is one row, not too long for a block; None for others.

    Matmuls side by side leave a block fewer registers: on an H200 gate and up of a norm took 2 % longer so.
    """
    if len(group.anchors) > 1 or value.type.most > MOST_OF_A_ROW or not value.type.is_static:
        return None
    found: set[tuple[int, ...]] = set()
    for anchor in group.anchors:
        attributes = anchor.expect(DotAttributes)
        sides = ((attributes.lhs_contract, attributes.lhs_batch), (attributes.rhs_contract, attributes.rhs_batch))
        found |= {tuple(sorted(c)) for v, (c, b) in zip(anchor.operands, sides, strict=True) if v is value and not b}
    if len(found) != 1:
        return None
    (axes,) = found
    return axes if prod(n for a, n in enumerate(value.type.static_shape) if a not in axes) == 1 else None


def _is_of_row(op: Op, value: Value, row: tuple[int, ...] | None) -> bool:
    if row is None or op.name not in ("reduce_sum", "reduce_max", "reduce_min"):
        return False
    return op.operands[0].type.shape == value.type.shape and tuple(sorted(op.expect(ReduceAttributes).axes)) == row


def _times(group: Group, value: Value) -> int:
    """With how many elements of the other operands each of this one's is multiplied."""
    total = 0
    for anchor in group.anchors:
        attributes = anchor.expect(DotAttributes)
        for side in (0, 1):
            if anchor.operands[side] is value:
                shape = anchor.operands[1 - side].type.shape
                taken = (
                    (attributes.rhs_batch, attributes.rhs_contract),
                    (attributes.lhs_batch, attributes.lhs_contract),
                )
                axes = {*taken[side][0], *taken[side][1]}
                total += most(product(n for a, n in enumerate(shape) if a not in axes))
    return total
