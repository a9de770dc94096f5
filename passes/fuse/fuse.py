"""The fusion pass: a partition of the graph into kernels, largest structures first."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from fusec.ir.attributes import DotAttributes, ReduceAttributes
from fusec.ir.graph import Graph, Op
from fusec.passes.fuse.attention import match_attention
from fusec.passes.fuse.grow import Log, grow_consumers, grow_producers, seed, seed_reduction
from fusec.passes.fuse.partition import Group, Partition, build_fused_graph, view_position
from fusec.runtime.program import Declined

CHEAP_FLOPS = 4
"""Elementwise ops of at most this many flops are recomputed rather than stored."""


def fuse(graph: Graph, log: Log | None = None, *, blocked: bool = False) -> Graph:
    """Groups ops into ``fused`` ops of kind attention, gemm, row and map.

    ``log`` receives every fusion that was considered and declined. ``blocked``: the target reads a product's operands
    by asynchronous copies, once for each block of the result, so what makes an operand is not computed on the way;
    what an epilogue reads is, where it is cheap.
    """
    note: Log = log or (lambda declined: None)
    partition = Partition(graph)
    fuse_attention(partition, note)
    fuse_gemms(partition, note, blocked=blocked)
    fuse_rows(partition, note)
    fuse_maps(partition, note)
    return build_fused_graph(partition)


def fuse_attention(partition: Partition, log: Log) -> None:
    """dot → maps → softmax over the row → dot, as one online loop."""
    for op in partition.graph.ops:
        if op.name != "dot" or op in partition.owner:
            continue
        found = match_attention(partition, op)
        if isinstance(found, Declined):
            if found.reason:
                log(found)
            continue
        group = Group("attention", op.result.type.static_shape)
        partition.add(group, found.ops)
        group.anchors.append(op)
        group.position[op.result] = group.identity
        grow_consumers(partition, group, log)
        scores = [v for inner in found.score_ops for v in inner.operands]
        grow_producers(partition, group, lambda p: p.definition.flops <= CHEAP_FLOPS, scores)


def fuse_gemms(partition: Partition, log: Log, *, blocked: bool = False) -> None:
    """Products with what follows them at the same points, and cheap maps that only they read.

    Products of one left operand with right operands of one shape (queries, keys and values; gate and up) are one
    kernel: the left rows are packed once, and an epilogue may combine the results.
    """
    for op in partition.graph.ops:
        if op.name != "dot" or op in partition.owner:
            continue
        group = Group("gemm", op.result.type.static_shape)
        seed(partition, group, op)
        for sibling in _siblings(partition, op):
            if not partition.would_cycle(group.ops, sibling):
                seed(partition, group, sibling)
        grow_consumers(partition, group, log)
        assert isinstance(op.attributes, DotAttributes)
        if not op.attributes.lhs_batch and not blocked:
            grow_producers(partition, group, _dense, [v for anchor in group.anchors for v in anchor.operands])
        outside = [v for inner in group.ops if inner not in group.anchors for v in inner.operands]
        grow_producers(partition, group, _at_least(op.result.type.size, cheap=blocked), outside)


def _at_least(size: int, *, cheap: bool = False) -> Callable[[Op], bool]:
    """Ops with results of this size, which are computed once where they are read; and cheap ones, if asked for."""
    return lambda op: op.result.type.size >= size or (cheap and op.definition.flops <= CHEAP_FLOPS)


def _siblings(partition: Partition, op: Op) -> list[Op]:
    """Later unowned dots with the same left operand, contraction and result shape, none with batch axes."""
    assert isinstance(op.attributes, DotAttributes)
    if op.attributes.lhs_batch:
        return []
    return [
        other
        for other in partition.uses[op.operands[0]]
        if other.name == "dot"
        and other is not op
        and other not in partition.owner
        and other.operands[0] is op.operands[0]
        and other.operands[1] is not op.operands[0]
        and isinstance(other.attributes, DotAttributes)
        and other.attributes.lhs_contract == op.attributes.lhs_contract
        and not other.attributes.lhs_batch
        and other.result.type == op.result.type
    ]


def _dense(op: Op) -> bool:
    """A dot's operand is packed once, so computing it on the way costs nothing; concatenations would not vectorise."""
    return op.definition.kind == "elementwise"


def fuse_rows(partition: Partition, log: Log) -> None:
    """Reductions over the same rows, and the maps before, between and after them: each row is read once."""
    for op in partition.graph.ops:
        if op.definition.kind != "reduce" or op in partition.owner:
            continue
        assert isinstance(op.attributes, ReduceAttributes)
        group = Group("row", op.operands[0].type.static_shape)
        seed_reduction(partition, group, op)
        _place_producers(partition, group, op)
        grow_consumers(partition, group, log)
        _join_siblings(partition, group)
        grow_producers(partition, group, _at_least(prod(group.domain) // 2, cheap=True))


def _place_producers(partition: Partition, group: Group, op: Op) -> None:
    """Takes in the maps that make the reduction's operand, even when others read them too: they become outputs."""
    stack = [op.operands[0]]
    while stack:
        value = stack.pop()
        producer = partition.producers.get(value)
        if producer is None or producer in partition.owner:
            continue
        if producer in partition.free:
            if producer.definition.kind == "view":
                _place_below_view(group, producer)
                if producer.operands[0] in group.position:
                    stack.append(producer.operands[0])
            continue
        if producer.definition.kind != "elementwise" or value not in group.position:
            continue
        if partition.would_cycle(group.ops, producer):
            continue
        partition.add(group, [producer])
        for operand in producer.operands:
            if operand.type.static_shape == value.type.static_shape:
                group.position.setdefault(operand, group.position[value])
                stack.append(operand)


def _place_below_view(group: Group, op: Op) -> None:
    """A view read at the domain's points places its operand when it only reorders them."""
    if op.name not in ("reshape", "permute") or op.result not in group.position:
        return
    source = op.operands[0]
    trial = Group("row", source.type.static_shape)
    position = view_position(op, trial.identity)
    if position is not None and source.type.static_shape == group.domain and position == trial.identity:
        group.position[source] = group.position[op.result]


def _join_siblings(partition: Partition, group: Group) -> None:
    """Another reduction of the same rows of a value that this group reads joins it."""
    read = {v for inner in group.ops for v in partition.sources(inner)}
    for op in partition.graph.ops:
        if op in partition.owner or op.definition.kind != "reduce":
            continue
        assert isinstance(op.attributes, ReduceAttributes)
        if op.operands[0].type.static_shape != group.domain or op.attributes.axes != group.reduced:
            continue
        if op.operands[0] in read and group.position.get(op.operands[0], group.identity) == group.identity:
            if partition.would_cycle(group.ops, op):
                continue
            group.position[op.operands[0]] = group.identity
            kept = tuple(i for axis, i in enumerate(group.identity) if axis not in op.attributes.axes)
            group.position[op.result] = kept
            group.anchors.append(op)
            partition.add(group, [op])


def fuse_maps(partition: Partition, log: Log) -> None:
    """What is left: chains of maps over one shape, with the maps that only they read inlined."""
    for op in partition.graph.ops:
        if op in partition.owner or op in partition.free or op.definition.kind not in ("elementwise", "data"):
            continue
        group = Group("map", op.result.type.static_shape)
        seed(partition, group, op)
        grow_consumers(partition, group, log)
        _drop_inner_views(partition, group)
        grow_producers(partition, group, lambda p: p.definition.flops <= CHEAP_FLOPS)


def _drop_inner_views(partition: Partition, group: Group) -> None:
    """Positions outside the group's own values serve only while it grows."""
    group.position = {v: p for v, p in group.position.items() if partition.producers.get(v) in group.ops}
