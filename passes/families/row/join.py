# SPDX-License-Identifier: Apache-2.0
"""What joins a row kernel on a GPU beside its own reductions: sums over columns, and what adds up their parts."""

from __future__ import annotations

from collections.abc import Mapping

from fusec.ir.index import product
from fusec.ir.indexing import most
from fusec.ir.nodes import Op, Value
from fusec.passes.families.row.schedule.columns import FEWEST, holds
from fusec.passes.groups.columns import ColumnSum, column_sum, made_of
from fusec.passes.groups.grow import absorb_upstream
from fusec.passes.groups.partition import Group, Partition, Position

MOST_JOINED = 1 << 22
"""Elements of an operand up to which two reductions that can start at the same time are one kernel."""


def column_sums(partition: Partition) -> dict[Op, ColumnSum]:
    """All sums of parts of rows that may be made beside reductions of these rows."""
    found = (column_sum(op, partition.producers) for op in partition.graph.ops)
    return {s.op: s for s in found if s is not None and s.parts >= FEWEST}


def join_column_sums(partition: Partition, group: Group, sums: Mapping[Op, ColumnSum]) -> None:
    """Sums of columns over the group's rows join it where they read what it reads, and registers hold all of it."""
    joined: list[ColumnSum] = []
    read = _read_by(partition, group)
    for s in sums.values():
        position = s.position(group)
        if position is None or any(op in partition.owner for op in s.ops):
            continue
        if joined and (s.parts, s.height) != (joined[0].parts, joined[0].height):
            continue
        leaves = _leaves(partition, group, s.added)
        if leaves.isdisjoint(read) or not _held(group, len(joined) + 1, leaves | read):
            continue
        if _join(partition, group, s, position):
            joined.append(s)
            read |= leaves


def _read_by(partition: Partition, group: Group) -> frozenset[Value]:
    """The large values that a group's reductions are made of."""
    return frozenset[Value]().union(*(_leaves(partition, group, op.operands[0]) for op in group.anchors))


def _leaves(partition: Partition, group: Group, value: Value) -> frozenset[Value]:
    """The large values that one is made of by the group's kernel: what another kernel makes is read."""

    def there(v: Value) -> bool:
        return partition.owner.get(partition.producers[v], group) is not group

    return made_of(value, partition.producers, there)


def _held(group: Group, sums: int, leaves: frozenset[Value]) -> bool:
    assert group.reduced is not None
    return holds(most(product(group.domain[a] for a in group.reduced)), sums + len(leaves))


def _join(partition: Partition, group: Group, s: ColumnSum, position: Position) -> bool:
    if group.position.get(s.added, position) != position:
        return False
    members = set(group.ops)
    for op in s.ops:
        if partition.would_cycle(members, op):
            return False
        members.add(op)
    if partition.reads_stored(s.ops[0], group.ops) is not None:
        return False
    group.position[s.added] = position
    group.beside.update(s.ops)
    partition.add(group, s.ops)
    absorb_upstream(partition, group, [s.added])
    return True


def join_alike(partition: Partition, group: Group) -> bool:
    """Another reduction over the same axes of a value of the same shape joins, where one kernel makes both values."""
    makers = {_maker(partition, op) for op in group.anchors}
    joined = False
    if len(makers) != 1 or None in makers or most(product(group.domain)) > MOST_JOINED:
        return False
    for op in partition.graph.ops:
        if op in partition.owner or op.definition.kind != "reduce" or op.attributes != group.anchors[0].attributes:
            continue
        if op.operands[0].type.shape != group.domain or _maker(partition, op) not in makers:
            continue
        if op.operands[0] in group.position or partition.would_cycle(group.ops, op):
            continue
        group.position[op.operands[0]] = group.identity
        group.position[op.result] = tuple(i for a, i in enumerate(group.identity) if a not in (group.reduced or ()))
        group.anchors.append(op)
        partition.add(group, [op])
        joined = True
    return joined


def _maker(partition: Partition, op: Op) -> Group | None:
    """The kernel that makes what a reduction reads as it is; None for what is in memory before, or made of several."""
    sources = list(partition.sources_of(op.operands[0]))
    made = partition.producers.get(sources[0]) if len(sources) == 1 else None
    owner = partition.owner.get(made) if made is not None else None
    is_made_whole = made is not None and made.definition.kind == "reduce"
    return owner if owner is not None and is_made_whole else None
