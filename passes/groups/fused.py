# SPDX-License-Identifier: Apache-2.0
"""The graph of kernels that a partition stands for: one ``fused`` op a group, each after what it reads."""

from __future__ import annotations

from collections.abc import Iterator
from graphlib import TopologicalSorter
from heapq import heapify, heappop, heappush

from fusec.ir.attributes import FusedKind
from fusec.ir.graph import FusedAttributes, Graph
from fusec.ir.liveness import live_ops
from fusec.ir.nodes import Op, Value
from fusec.ir.ops import OPS
from fusec.ir.raising import may_raise
from fusec.passes.groups.partition import Group, Partition
from fusec.passes.groups.roundings import with_roundings

Waits = dict[int, set[int]]
"""The units that each unit of a partition waits for."""


def build_fused_graph(partition: Partition) -> Graph:
    """The graph of kernels: every group becomes one ``fused`` op, in an order that respects what each reads."""
    graph = partition.graph
    waits: Waits = {partition.unit_name(op): set() for op in graph.ops}
    for op in graph.ops:
        values = partition.sources(op) if op in partition.owner else op.operands
        producers = (partition.producers.get(value) for value in values)
        name = partition.unit_name(op)
        waits[name].update(partition.unit_name(p) for p in producers if p is not None)
        waits[name].discard(name)
    _order_writes(partition, waits)
    ops: list[Op] = []
    for name in _in_order(waits):
        first = graph.ops[name]
        group = partition.owner.get(first)
        ops.append(first if group is None else fused_op(partition, group))
    return _without_dead_free(graph.with_ops(ops), partition)


def _in_order(waits: Waits) -> Iterator[int]:
    """Each unit after those that it waits for, otherwise by number."""
    sorter = TopologicalSorter(waits)
    sorter.prepare()
    ready = list(sorter.get_ready())
    heapify(ready)
    while ready:
        name = heappop(ready)
        yield name
        sorter.done(name)
        for following in sorter.get_ready():
            heappush(ready, following)


def _waits_for(waits: Waits, then: int, first: int) -> bool:
    """Whether a unit is another, or waits for it, directly or not."""
    found, more = {then}, [then]
    while more and first not in found:
        new = waits[more.pop()] - found
        found |= new
        more.extend(new)
    return first in found


def _order_writes(partition: Partition, waits: Waits) -> None:
    """Kernels that write into an input wait for the library calls that may raise, and for the write before theirs into
    the same input.

    A call that needs what has been written can't come first: it and all writes are in the order of the code.
    """
    graph = partition.graph
    writers = {op: partition.unit_name(partition.producers[op.operands[1]]) for op in graph.ops if _writes(op)}
    for op, writer in writers.items():
        before = partition.producers.get(op.operands[0])
        if before is not None:
            _order(waits, partition.unit_name(before), writer)
    for call in (op for op in graph.ops if may_raise(op)):
        unit = partition.unit_name(call)
        needs = any(_waits_for(waits, unit, writer) for writer in writers.values())
        for op, writer in writers.items():
            if needs and partition.order[op] < partition.order[call]:
                _order(waits, writer, unit)
            else:
                _order(waits, unit, writer)


def _writes(op: Op) -> bool:
    return op.definition.kind == "write"


def _order(waits: Waits, first: int, then: int) -> None:
    """Lets one unit wait for another, unless that one waits for it."""
    if not _waits_for(waits, first, then):
        waits[then].add(first)


def one_by_one(graph: Graph) -> Graph:
    """The graph, or a group's body, with a kernel for each op."""
    partition = Partition(graph)
    for op in graph.ops:
        kind = "grouped" if op.name in ("grouped_dot", "grouped_outer") else _KINDS.get(op.definition.kind)
        if kind is not None and op not in partition.free:
            partition.add(Group(kind, op.result.type.shape), [op])
    return build_fused_graph(partition)


_KINDS: dict[str, FusedKind] = {
    "dot": "gemm",
    "reduce": "row",
    "scan": "scan",
    "elementwise": "map",
    "data": "map",
    "scatter": "scatter",
}


def _without_dead_free(graph: Graph, partition: Partition) -> Graph:
    return graph.with_ops(live_ops(graph.ops, graph.outputs, lambda op: op.name == "fused" or op not in partition.free))


def fused_op(partition: Partition, group: Group) -> Op:
    """One group as a ``fused`` op whose body holds its ops and the free ops they read through."""
    needed: dict[Op, None] = {}
    inputs: dict[Value, None] = {}

    def visit(value: Value) -> None:
        producer = partition.producers.get(value)
        if producer is None or (producer not in group.ops and producer not in partition.free):
            inputs[value] = None
            return
        if producer not in needed:
            for operand in producer.operands:
                visit(operand)
            needed[producer] = None

    for op in sorted(group.ops, key=partition.order.__getitem__):
        for operand in op.operands:
            visit(operand)
        needed[op] = None
    body_ops = sorted(needed, key=partition.order.__getitem__)
    results = [r for op in body_ops if op in group.ops for r in op.results]
    shared = [r for r in results if _is_read_by_kernels(partition, group, r)]
    outputs = [r for r in results if r in shared or _is_returned(partition, r)]
    ops = with_roundings(body_ops, shared)
    body = Graph(outputs[0].name if outputs else "body", tuple(inputs), tuple(outputs), tuple(ops))
    attributes = FusedAttributes(group.kind, body, group.roles)
    return Op(OPS["fused"], tuple(inputs), attributes, tuple(outputs), body_ops[-1].location)


def _is_returned(partition: Partition, value: Value) -> bool:
    """Whether a value, or a view of it, is a result of the graph."""
    return value in partition.outputs or any(
        _is_returned(partition, r) for user in partition.uses[value] if user in partition.free for r in user.results
    )


def _is_read_by_kernels(partition: Partition, group: Group, value: Value) -> bool:
    """Whether an op of another group, or a library call, reads a value or a view of it."""
    return any(
        any(_is_read_by_kernels(partition, group, r) for r in user.results)
        if user in partition.free
        else user not in group.ops
        for user in partition.uses[value]
    )
