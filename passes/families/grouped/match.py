# SPDX-License-Identifier: Apache-2.0
"""Which ops one grouped product's kernel has: products of the same rows and groups, and what follows them."""

from __future__ import annotations

from fusec.ir.attributes import GroupedDotAttributes
from fusec.ir.nodes import Op
from fusec.passes.families.gemm.match import leave_to_readers, takes_less_than_a_launch
from fusec.passes.families.grouped.operands import operands_of
from fusec.passes.groups.grow import Log, at_least, grow_consumers, grow_producers, seed
from fusec.passes.groups.partition import Group, Partition


def match_grouped(partition: Partition, log: Log, blocked: bool) -> None:
    """Grouped products of the same rows (gate and up) with what follows them at the same points."""
    for op in partition.graph.ops:
        if op.name not in ("grouped_dot", "grouped_outer") or op in partition.owner:
            continue
        group = Group("grouped", op.result.type.shape)
        seed(partition, group, op)
        if not blocked:
            continue  # a CPU's products are the library's
        for sibling in _siblings(partition, op):
            if not partition.would_cycle(group.ops, sibling):
                seed(partition, group, sibling)
        grow_consumers(partition, group, log)
        leave_to_readers(partition, group)
        outside = [v for inner in group.ops if inner not in group.anchors for v in inner.operands]
        grow_producers(partition, group, at_least(op.result.type.most, takes_less_than_a_launch(op)), outside)


MOST_APART = 384
"""Arrays of matrices that a kernel is given the addresses of: parameters of a kernel have 4 KiB."""


def _siblings(partition: Partition, op: Op) -> list[Op]:
    """The next unowned product of the same rows in the same groups, with matrices of the same type: sums of two fit a
    block."""
    if op.name == "grouped_outer":
        return []
    rows, matrices, ends = operands_of(op)
    if 2 * op.expect(GroupedDotAttributes).apart > MOST_APART:
        return []
    found = (
        other
        for other in partition.uses[rows]
        if other.name == "grouped_dot"
        and other is not op
        and other not in partition.owner
        and other.operands[0] is rows
        and other.attributes == op.attributes
        and operands_of(other).ends == ends
        and operands_of(other).matrices[0].type == matrices[0].type
    )
    return [*found][:1]
