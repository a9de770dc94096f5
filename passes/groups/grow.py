# SPDX-License-Identifier: Apache-2.0
"""Growing a group: consumers fold into its stores (epilogue), producers into its loads (prologue)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from heapq import heappop, heappush
from itertools import islice

from fusec.ir.attributes import ReduceAttributes
from fusec.ir.nodes import Op, Value
from fusec.passes.groups.partition import (
    POINTWISE,
    Group,
    Partition,
    Position,
    elementwise_position,
    pointwise,
    set_positions,
    view_in_group,
)
from fusec.runtime.program import Declined

Log = Callable[[Declined], None]

CHEAP_FLOPS = 4
"""Elementwise ops of at most this many flops are recomputed rather than stored."""


def seed(partition: Partition, group: Group, anchor: Op) -> None:
    """Starts a group from its anchor, whose result covers the domain."""
    group.anchors.append(anchor)
    group.position[anchor.result] = group.identity
    partition.add(group, [anchor])


def seed_reduction(partition: Partition, group: Group, anchor: Op) -> None:
    """Starts a row group from a reduction: its operand covers the domain."""
    group.reduced = anchor.expect(ReduceAttributes).axes
    group.position[anchor.operands[0]] = group.identity
    _set_reduced_position(group, anchor)
    partition.add(group, [anchor])


def _set_reduced_position(group: Group, op: Op) -> None:
    assert group.reduced is not None
    group.anchors.append(op)
    retained = tuple(i for axis, i in enumerate(group.identity) if axis not in group.reduced)
    group.position[op.result] = retained


def grow_consumers(partition: Partition, group: Group, log: Log, but: Callable[[Op], bool] = lambda op: False) -> None:
    """Absorbs, in graph order, every op that continues the group's values at the same points; none that is ``but``."""
    order, ops = partition.order, partition.graph.ops
    told = list(group.position)
    waiting = sorted({order[op] for v in told for op in partition.uses.get(v, ())})
    number = -1
    while waiting:
        before, number = number, heappop(waiting)
        op = ops[number]
        if number == before or op in group.ops:
            continue
        if op in partition.free:
            _follow_view(op, group)
        elif op not in partition.owner and not but(op):
            _try_consumer(partition, group, op, log)
        for value in islice(group.position, len(told), None):
            told.append(value)
            for reader in partition.uses.get(value, ()):
                if order[reader] > number:
                    heappush(waiting, order[reader])


def _follow_view(op: Op, group: Group) -> None:
    if op.definition.kind != "view" or op.result in group.position:
        return
    position = view_in_group(op, group)
    if position is not None:
        group.position[op.result] = position


def _try_consumer(partition: Partition, group: Group, op: Op, log: Log) -> None:
    position = _consumer_position(group, op)
    if position is None:
        made = [v for v in dict.fromkeys(op.operands) if _is_of(partition, group, v)]
        if op.definition.kind == "elementwise" and len(made) > 1:
            apart = f"it reads {' and '.join(map(str, made))} at different points"
            log(Declined(f"{op.name} into {group.kind}", apart, op.location))
        return
    reason = _obstacle(partition, group, op, position)
    if reason:
        log(Declined(f"{op.name} into {group.kind}", reason, op.location))
        return
    if op.definition.kind == "reduce":
        _set_reduced_position(group, op)
    else:
        if op.definition.kind == "scan":
            group.anchors.append(op)
        group.position[op.result] = position
    partition.add(group, [op])


def _is_of(partition: Partition, group: Group, value: Value) -> bool:
    """True for a value at the group's points that is the group's own, or a view of one."""
    return value in group.position and any(partition.producers.get(v) in group.ops for v in partition.sources_of(value))


def _obstacle(partition: Partition, group: Group, op: Op, position: Position) -> str:
    """Why an op that lies at the group's points can't join it; empty when it can."""
    stored = partition.reads_stored(op, group.ops)
    if stored is not None:
        return f"the expression of {stored} is too large to go on with"
    elsewhere = partition.reads_elsewhere(group, op, position)
    if elsewhere is not None:
        return f"it also reads {elsewhere} at other points"
    if partition.would_cycle(group.ops, op):
        return "it also reads a value that another kernel makes from this one"
    return ""


def absorb_upstream(partition: Partition, group: Group, values: Iterable[Value], apart: Set[Op] = frozenset()) -> None:
    """Takes in the maps that make ``values``, the last one's first, but for those ``apart``, even when others read them
    too: they become outputs."""

    def enter(op: Op) -> bool:
        if op in group.ops or op in partition.free:
            return op in group.ops or op.definition.kind == "view"
        if op in partition.owner or op.definition.kind != "elementwise" or op.result in partition.stored:
            return False
        if op in apart:
            return False
        if partition.is_read_elsewhere(group, op) or partition.would_cycle(group.ops, op):
            return False
        partition.add(group, [op])
        return True

    set_positions(group, values, partition.producers, enter)


def _consumer_position(group: Group, op: Op) -> Position | None:
    kind = op.definition.kind
    if kind == "elementwise":
        return elementwise_position(op, group)
    if kind == "reduce" and group.reduced is not None:
        whole = op.operands[0].type.shape == group.domain and op.expect(ReduceAttributes).axes == group.reduced
        return group.identity if whole and group.position.get(op.operands[0]) == group.identity else None
    if kind == "scan" and scans_with(group, op):
        there = all(group.position.get(v) == group.identity for v in pointwise(op))
        return group.identity if op.result.type.shape == group.domain and there else None
    return None


def scans_with(group: Group, op: Op) -> bool:
    """Whether a scan runs as those of the group do: along their axis, and in order where they do."""
    in_order = op.name == "recurrence"
    return op.attributes == group.scanned and all((a.name == "recurrence") == in_order for a in group.anchors)


def grow_producers(
    partition: Partition, group: Group, allowed: Callable[[Op], bool], entries: list[Value] | None = None
) -> None:
    """Absorbs, against graph order, pointwise ops that only this group reads.

    ``allowed`` vetoes an op (too dear to recompute). ``entries`` limits it to producers of these values.
    """
    order, ops = partition.order, partition.graph.ops
    waiting: list[int] = []

    def note(values: Iterable[Value]) -> None:
        for value in values:
            for source in partition.sources_of(value):
                op = partition.producers.get(source)
                if op is not None and op.definition.kind in POINTWISE:
                    heappush(waiting, -order[op])

    note(entries if entries is not None else dict.fromkeys(v for op in group.ops for v in op.operands))
    number = len(ops)
    while waiting:
        before, number = number, -heappop(waiting)
        op = ops[number]
        if number == before or op in partition.owner:
            continue
        consumers = partition.compute_consumers(op)
        if not consumers or partition.escapes(op) or op.result in partition.stored:
            continue
        if all(c in group.ops for c in consumers) and allowed(op):
            partition.add(group, [op])
            note(op.operands)


def is_cheap(op: Op) -> bool:
    """Whether an op is recomputed rather than stored."""
    return op.definition.flops <= CHEAP_FLOPS


def widens(op: Op) -> bool:
    """Whether an op is a cast to a dtype of more bits."""
    return op.name == "cast" and op.operands[0].type.dtype.bits < op.result.type.dtype.bits


def at_least(size: int, cheap: Callable[[Op], bool]) -> Callable[[Op], bool]:
    """Ops with results of this size, which are computed once where they are read; and cheap ones."""
    return lambda op: op.result.type.most >= size or cheap(op)
