# SPDX-License-Identifier: Apache-2.0
"""Which ops one row kernel has: reductions over the same rows, and the maps around them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set

from fusec.ir.attributes import ReduceAttributes
from fusec.ir.index import product
from fusec.ir.indexing import most
from fusec.ir.nodes import Op
from fusec.passes.families.row.join import column_sums, join_alike, join_column_sums
from fusec.passes.groups.columns import ColumnSum
from fusec.passes.groups.grow import (
    Log,
    absorb_upstream,
    at_least,
    grow_consumers,
    grow_producers,
    is_cheap,
    seed_reduction,
)
from fusec.passes.groups.partition import Group, Partition
from fusec.passes.groups.windows import made_of_windows


def match_rows(partition: Partition, log: Log, blocked: bool = False) -> None:
    """Reductions over the same rows, and the maps before, between and after them: each row is read once.

    Where the target is ``blocked``, sums of windows are kernels of their own, and sums over columns of the same rows
    are made in parts beside the reductions.
    """
    apart = made_of_windows(partition) if blocked else set[Op]()
    sums = column_sums(partition) if blocked else {}
    for op in _anchors(partition, sums):
        if op in partition.owner:
            continue
        group = Group("row", op.operands[0].type.shape)
        seed_reduction(partition, group, op)
        absorb_upstream(partition, group, op.operands[:1], apart)
        grow_consumers(partition, group, log)
        _join_siblings(partition, group)
        if blocked:
            join_column_sums(partition, group, sums)
            if join_alike(partition, group):
                grow_consumers(partition, group, log)
        _drop_bystanders(partition, group)
        grow_producers(partition, group, _but(apart, at_least(most(product(group.domain)) // 2, is_cheap)))


def _anchors(partition: Partition, sums: Mapping[Op, ColumnSum]) -> list[Op]:
    """The reductions in order, but sums of columns and what is made of them last: the others may take them in."""
    late = {*sums, *_reductions_of(partition, sums)}
    anchors = [op for op in partition.graph.ops if op.definition.kind == "reduce"]
    return sorted(anchors, key=late.__contains__)


def _reductions_of(partition: Partition, sums: Iterable[Op]) -> set[Op]:
    """The reductions that put sums of parts together, perhaps after some maps over the parts."""
    found, seen = set[Op](), set(sums)
    stack = list(seen)
    while stack:
        made = stack.pop()
        for op in partition.compute_consumers(made):
            if op in seen:
                continue
            if op.definition.kind == "reduce":
                found.add(op)
            elif op.definition.kind == "elementwise" and op.result.type.most == made.result.type.most:
                seen.add(op)
                stack.append(op)
    return found


def _but(apart: Set[Op], allowed: Callable[[Op], bool]) -> Callable[[Op], bool]:
    return lambda op: op not in apart and allowed(op)


def _drop_bystanders(partition: Partition, group: Group) -> None:
    """Lets go of maps beside the rows that serve no reduction of them and are no output: their readers take them in."""
    depends = {*group.anchors, *group.beside}
    for op in sorted(group.ops, key=partition.order.__getitem__):
        if any(partition.producers.get(v) in depends for v in partition.sources(op)):
            depends.add(op)
    for op in sorted(group.ops - depends, key=partition.order.__getitem__, reverse=True):
        if not partition.escapes(op) and not any(c in group.ops for c in partition.compute_consumers(op)):
            partition.remove(group, op)


def _join_siblings(partition: Partition, group: Group) -> None:
    """Another reduction of the same rows of a value that this group reads joins it."""
    read = {v for inner in group.ops for v in partition.sources(inner)}
    for op in partition.graph.ops:
        if op in partition.owner or op.definition.kind != "reduce":
            continue
        attributes = op.expect(ReduceAttributes)
        if op.operands[0].type.shape != group.domain or attributes.axes != group.reduced:
            continue
        if op.operands[0] in read and group.position.get(op.operands[0], group.identity) == group.identity:
            if partition.would_cycle(group.ops, op):
                continue
            group.position[op.operands[0]] = group.identity
            retained = tuple(i for axis, i in enumerate(group.identity) if axis not in attributes.axes)
            group.position[op.result] = retained
            group.anchors.append(op)
            partition.add(group, [op])
