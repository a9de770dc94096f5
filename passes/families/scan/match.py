# SPDX-License-Identifier: Apache-2.0
"""Which ops one scan kernel has: scans along the same axis, and the maps before, between and after them."""

from __future__ import annotations

from fusec.ir.attributes import ScanAttributes
from fusec.ir.index import product
from fusec.ir.indexing import most
from fusec.ir.nodes import Op
from fusec.passes.groups.grow import (
    Log,
    absorb_upstream,
    at_least,
    grow_consumers,
    grow_producers,
    is_cheap,
    scans_with,
)
from fusec.passes.groups.partition import Group, Partition, made_pointwise, pointwise
from fusec.passes.outputs import is_call


def match_scans(partition: Partition, log: Log, blocked: bool = False) -> None:
    """A scan, the maps around it, and other scans along the axis in the same direction of values at the same points."""
    for op in partition.graph.ops:
        if op in partition.owner or op.definition.kind != "scan" or is_call(op):
            continue
        group = Group("scan", op.operands[0].type.shape)
        _seed(partition, group, op)
        for value in pointwise(op):
            absorb_upstream(partition, group, [value])
        grow_consumers(partition, group, log)
        _join_siblings(partition, group)
        grow_consumers(partition, group, log)
        grow_producers(partition, group, at_least(most(product(group.domain)) // 2, is_cheap))


def _seed(partition: Partition, group: Group, op: Op) -> None:
    group.scanned = op.expect(ScanAttributes)
    group.anchors.append(op)
    for value in made_pointwise(op):
        group.position[value] = group.identity
    partition.add(group, [op])


def _join_siblings(partition: Partition, group: Group) -> None:
    """Another scan of a value that this group reads or makes joins it."""
    read = {v for inner in group.ops for v in (*partition.sources(inner), *inner.results)}
    for op in partition.graph.ops:
        if op in partition.owner or not scans_with(group, op) or op.operands[0].type.shape != group.domain:
            continue
        if is_call(op) or not any(v in read for v in pointwise(op)):
            continue
        if any(group.position.get(v, group.identity) != group.identity for v in pointwise(op)):
            continue
        if not partition.would_cycle(group.ops, op):
            _seed(partition, group, op)
