"""The fusion pass: a partition of the graph into kernels, largest structures first."""

from __future__ import annotations

from collections.abc import Callable

from fusec.errors import LoweringError
from fusec.ir.attributes import DotAttributes, ReduceAttributes
from fusec.ir.graph import Graph
from fusec.ir.index import product
from fusec.ir.indexing import most
from fusec.ir.nodes import Op, Value
from fusec.ir.types import f64
from fusec.passes.attention import Elements, find_elements
from fusec.passes.fuse.attention import RULE, AttentionMatch, match_attention
from fusec.passes.fuse.grow import (
    Log,
    absorb_upstream,
    grow_consumers,
    grow_producers,
    seed,
    seed_reduction,
)
from fusec.passes.fuse.partition import POINTWISE, Group, Partition, build_fused_graph
from fusec.passes.fuse.prologue import grow_prologues
from fusec.runtime.program import Declined

CHEAP_FLOPS = 4
"""Elementwise ops of at most this many flops are recomputed rather than stored."""

STORE_FLOPS = 8
"""Flops that a vector unit does in about the time that writing and reading back an element takes."""


def fuse(graph: Graph, log: Log | None = None, *, blocked: bool = False) -> Graph:
    """Groups ops into ``fused`` ops of kind attention, gemm, row and map.

    ``log`` receives every fusion that was considered and declined. ``blocked``: the target reads a product's operands
    by asynchronous copies, once for each block of the result, so what makes an operand is computed on the way only
    where that pays; what an epilogue reads is, where it is cheap.
    """
    note: Log = log or (lambda declined: None)
    partition = Partition(graph)
    fuse_attention(partition, note, blocked=blocked)
    fuse_gemms(partition, note, blocked=blocked)
    fuse_rows(partition, note)
    fuse_maps(partition, note)
    return build_fused_graph(partition)


_FEW_QUERIES = 16
"""Where keys are so many times more than queries, a kernel that makes the queries costs more than it is worth."""


def fuse_attention(partition: Partition, log: Log, *, blocked: bool = False) -> None:
    """dot → maps → softmax over the row → dot, as one online loop.

    Each query is read once, so what makes the queries is computed on the way; keys and values are read often.
    """
    for op in partition.graph.ops:
        if op.name != "dot" or op in partition.owner:
            continue
        found = match_attention(partition, op)
        elements = _one_loop(partition, found) if isinstance(found, AttentionMatch) else None
        if isinstance(elements, Declined):
            found = elements
        if isinstance(found, Declined):
            if found.reason:
                log(found)
            continue
        assert isinstance(elements, Elements)
        group = Group("attention", op.result.type.shape)
        partition.add(group, found.ops)
        group.anchors.append(op)
        group.position[op.result] = group.identity
        group.attention = found.parts.group
        grow_consumers(partition, group, log)
        scores = [v for inner in found.score_ops for v in inner.operands]
        scores += [found.parts.sink] if found.parts.sink is not None else []
        grow_producers(partition, group, lambda p: p.definition.flops <= CHEAP_FLOPS, scores)
        queries, keys = (found.parts.score_dot.operands[s] for s in (elements.query_side, 1 - elements.query_side))
        if not blocked:
            grow_producers(partition, group, lambda p: _dense(p) and not _ends_product(partition, p), [queries])
        elif _FEW_QUERIES * queries.type.most <= keys.type.most:
            grow_producers(partition, group, _anything, [queries])


def _ends_product(partition: Partition, op: Op) -> bool:
    """Whether a product's kernel would take an op in: what is done to its result, with inputs beside it."""
    made = [v for v in op.operands if not _is_given(partition, v)]
    inner = partition.producers.get(made[0]) if len(made) == 1 else None
    if inner is None or inner in partition.owner:
        return False
    return inner.name == "dot" or (inner.definition.kind == "elementwise" and _ends_product(partition, inner))


def _is_given(partition: Partition, value: Value) -> bool:
    """True for an input, a view of one, and what maps make of such."""
    made = [op for s in partition.sources_of(value) if (op := partition.producers.get(s)) is not None]
    return all(op.definition.kind == "elementwise" and all(_is_given(partition, v) for v in op.operands) for op in made)


def _one_loop(partition: Partition, match: AttentionMatch) -> Elements | Declined:
    """The elements of the match, where the index maps of its parts make one loop over keys of them."""
    try:
        return find_elements(partition.inliner(match.ops), match.parts)
    except LoweringError as error:
        return Declined(RULE, str(error), match.parts.value_dot.location)


def fuse_gemms(partition: Partition, log: Log, *, blocked: bool = False) -> None:
    """Products with what follows them at the same points, and cheap maps that only they read.

    Products of one left operand with right operands of one shape (queries, keys and values; gate and up) are one
    kernel: the left rows are packed once, and an epilogue may combine the results.
    """
    for op in partition.graph.ops:
        if op.name != "dot" or op in partition.owner:
            continue
        group = Group("gemm", op.result.type.shape)
        seed(partition, group, op)
        for sibling in _siblings(partition, op):
            if not partition.would_cycle(group.ops, sibling):
                seed(partition, group, sibling)
        grow_consumers(partition, group, log)
        assert isinstance(op.attributes, DotAttributes)
        if not op.attributes.lhs_batch and not blocked:
            grow_producers(partition, group, _dense, [v for anchor in group.anchors for v in anchor.operands])
        if blocked:
            grow_prologues(partition, group, log)
            leave_to_readers(partition, group)
        else:
            leave_to_readers(partition, group, _widens_again)
        outside = [v for inner in group.ops if inner not in group.anchors for v in inner.operands]
        cheap = _is_cheap if blocked else _widens
        grow_producers(partition, group, _at_least(op.result.type.most, cheap), outside)


def _widens_again(op: Op) -> bool:
    """A cast to f64, or of a half value to f32: a reader that takes the half value sees the digits that others see."""
    source, result = op.operands[0].type.dtype, op.result.type.dtype
    return op.name == "cast" and result.is_float and (result is f64 or (source.is_float and source.bits == 16))


def leave_to_readers(partition: Partition, group: Group, which: Callable[[Op], bool] = lambda op: True) -> None:
    """Lets go of cheap maps at the group's end whose readers can make them from less than storing them would move.

    A residual sum goes to memory as it is, not once more in f32 and once more squared for the norm that follows.
    """
    for op in sorted(group.ops - set(group.anchors), key=partition.order.__getitem__, reverse=True):
        readers = partition.compute_consumers(op)
        made = [v for v in partition.sources(op) if partition.producers.get(v) in group.ops]
        if op.definition.kind != "elementwise" or op.definition.flops > CHEAP_FLOPS or not readers or not made:
            continue
        if not which(op):
            continue
        if partition.escapes(op) or any(_keeps(partition, group, reader) for reader in readers):
            continue
        fresh = [v for v in made if not _is_stored(partition, group, v, op)]
        moved = sum(v.type.most_bytes for v in (*made, *fresh))
        if moved < 2 * op.result.type.most_bytes:
            partition.remove(group, op)


def _keeps(partition: Partition, group: Group, reader: Op) -> bool:
    """Whether a reader can't make its operand on the way: it is the group's own, a product's, or another kernel's."""
    return reader in group.ops or reader in partition.owner or reader.definition.kind not in ("elementwise", "reduce")


def _is_stored(partition: Partition, group: Group, value: Value, but: Op) -> bool:
    """Whether a value that the group makes is read outside of it by another op than ``but``, or is an output."""
    made = partition.producers[value]
    outside = [c for c in partition.compute_consumers(made) if c not in group.ops and c is not but]
    return bool(outside) or partition.escapes(made)


def _at_least(size: int, cheap: Callable[[Op], bool]) -> Callable[[Op], bool]:
    """Ops with results of this size, which are computed once where they are read; and cheap ones."""
    return lambda op: op.result.type.most >= size or cheap(op)


def _is_cheap(op: Op) -> bool:
    return op.definition.flops <= CHEAP_FLOPS


def _widens(op: Op) -> bool:
    """A cast to a wider float, of a bias: about as cheap as the load, and no launch of its own."""
    made = op.result.type.dtype
    return op.name == "cast" and made.is_float and op.operands[0].type.dtype.itemsize < made.itemsize


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


def _anything(op: Op) -> bool:
    """What is computed once for each element costs little on the way."""
    return True


def _dense(op: Op) -> bool:
    """A dot's operand is packed once, so computing it on the way costs nothing; concatenations would not vectorise."""
    return op.definition.kind == "elementwise"


def fuse_rows(partition: Partition, log: Log) -> None:
    """Reductions over the same rows, and the maps before, between and after them: each row is read once."""
    for op in partition.graph.ops:
        if op.definition.kind != "reduce" or op in partition.owner:
            continue
        assert isinstance(op.attributes, ReduceAttributes)
        group = Group("row", op.operands[0].type.shape)
        seed_reduction(partition, group, op)
        absorb_upstream(partition, group, op.operands[0])
        grow_consumers(partition, group, log)
        _join_siblings(partition, group)
        _drop_bystanders(partition, group)
        grow_producers(partition, group, _at_least(most(product(group.domain)) // 2, _is_cheap))


def _drop_bystanders(partition: Partition, group: Group) -> None:
    """Lets go of maps beside the rows that serve no reduction of them and are no output: their readers take them in."""
    depends = set(group.anchors)
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
        assert isinstance(op.attributes, ReduceAttributes)
        if op.operands[0].type.shape != group.domain or op.attributes.axes != group.reduced:
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
    """What is left: chains of maps over one shape, with maps over other shapes inlined where that costs little.

    Last ops first, so that an op which its readers can compute on the way gets no kernel of its own.
    """
    for op in reversed(partition.graph.ops):
        if op in partition.owner or op in partition.free or op.definition.kind not in POINTWISE:
            continue
        group = Group("map", op.result.type.shape)
        seed(partition, group, op)
        _grow_over_domain(partition, group, log)
        grow_producers(partition, group, Recomputation(partition, group).pays)


def _grow_over_domain(partition: Partition, group: Group, log: Log) -> None:
    """Takes in what lies at the group's points, up and down the graph, until there is no more."""
    size = 0
    while size < len(group.ops):
        size = len(group.ops)
        for op in sorted(group.ops, key=partition.order.__getitem__, reverse=True):
            absorb_upstream(partition, group, op.result)
        grow_consumers(partition, group, log)


class Recomputation:
    """What it costs a map group to compute a producer where it is read, not once and in memory."""

    def __init__(self, partition: Partition, group: Group) -> None:
        self.partition = partition
        self.group = group
        self.domain = most(product(group.domain))
        self._evaluations: dict[Op, int] = {}

    def evaluations(self, op: Op) -> int:
        """How many elements of the op the group computes."""
        if op not in self._evaluations:
            if op in self.group.ops:
                self._evaluations[op] = op.result.type.most
            elif op.name == "extern":  # the library reads memory
                self._evaluations[op] = 0
            else:
                self._evaluations[op] = sum(self._reads(c, op) for c in self.partition.compute_consumers(op))
        return self._evaluations[op]

    def _reads(self, consumer: Op, op: Op) -> int:
        uses = sum(op.result in self.partition.sources_of(v) for v in consumer.operands)
        return uses * self.evaluations(consumer)

    def pays(self, op: Op) -> bool:
        """True when computing elements again costs less than writing and reading them, and there are not many."""
        size = op.result.type.most
        again = max(0, self.evaluations(op) - size)
        return again * max(op.definition.flops, 1) <= STORE_FLOPS * (size + self.domain)
