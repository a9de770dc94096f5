# SPDX-License-Identifier: Apache-2.0
"""Which ops one scatter kernel has: a sum into rows that an index names, and the maps that make what is added."""

from __future__ import annotations

from fusec.ir.index import product
from fusec.ir.indexing import most
from fusec.passes.groups.grow import Log, at_least, grow_producers, is_cheap
from fusec.passes.groups.partition import Group, Partition


def match_scatters(partition: Partition, log: Log, blocked: bool = False) -> None:
    """A ``scatter_add``, and the maps and gathers that nothing else needs and that make what it adds."""
    for op in partition.graph.ops:
        if op in partition.owner or op.name != "scatter_add":
            continue
        value = op.operands[2]
        group = Group("scatter", value.type.shape)
        group.anchors.append(op)
        group.position[value] = group.identity
        partition.add(group, [op])
        grow_producers(partition, group, at_least(most(product(group.domain)) // 2, is_cheap), [value])
