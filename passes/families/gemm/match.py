# SPDX-License-Identifier: Apache-2.0
"""Which ops one matmul kernel has: dots of one left operand, what follows them, and what makes their operands."""

from __future__ import annotations

from collections.abc import Callable

from fusec.ir.attributes import DotAttributes
from fusec.ir.nodes import Op, Value
from fusec.ir.types import f64
from fusec.passes.convolution import convolution_of
from fusec.passes.families.gemm.prologue import grow_prologues
from fusec.passes.groups.grow import CHEAP_FLOPS, Log, at_least, grow_consumers, grow_producers, is_cheap, seed, widens
from fusec.passes.groups.partition import Group, Partition


def match_gemms(partition: Partition, log: Log, blocked: bool) -> None:
    """Matmuls with what follows them at the same points, and cheap maps that only they read.

    Matmuls of one left operand with right operands of one shape (queries, keys and values; gate and up) are one
    kernel: the left rows are packed once, and an epilogue may combine the results.

    Where the target is ``blocked`` (:class:`~fusec.passes.families.family.Family`), what makes an operand joins only
    where that pays; what an epilogue reads joins where it is cheap.
    """
    for op in partition.graph.ops:
        if op.name != "dot" or op in partition.owner:
            continue
        group = Group("gemm", op.result.type.shape)
        seed(partition, group, op)
        for sibling in _siblings(partition, op):
            if not partition.would_cycle(group.ops, sibling):
                seed(partition, group, sibling)
        grow_consumers(partition, group, log, _adds_a_later_dot(partition, group) if blocked else lambda op: False)
        if not op.expect(DotAttributes).lhs_batch and not blocked:
            grow_producers(partition, group, _dense, [v for anchor in group.anchors for v in anchor.operands])
        closed = set[Op]()
        if blocked:
            _take_padding(partition, group)
            closed = grow_prologues(partition, group, log)
            leave_to_readers(partition, group)
        else:
            leave_to_readers(partition, group, _widens_again)
        closed.update(group.anchors)
        outside = [v for inner in group.ops if inner not in closed for v in inner.operands]
        cheap = takes_less_than_a_launch(op) if blocked else _widens
        allowed = at_least(op.result.type.most, cheap)
        if blocked:
            allowed = _but_epilogues(partition, allowed)
        grow_producers(partition, group, allowed, outside)


def _adds_a_later_dot(partition: Partition, group: Group) -> Callable[[Op], bool]:
    """A sum of matmuls is the last one's: each adds to what those before it made, and none of them is kept."""
    last = max(partition.order[anchor] for anchor in group.anchors)

    def is_later(value: Value) -> bool:
        op = partition.producers.get(value)
        while op is not None and op.name == "cast":
            op = partition.producers.get(op.operands[0])
        return op is not None and op.name == "dot" and op not in partition.owner and partition.order[op] > last

    return lambda op: op.name == "add" and any(is_later(v) for v in op.operands)


def _but_epilogues(partition: Partition, allowed: Callable[[Op], bool]) -> Callable[[Op], bool]:
    """Not what goes on from another dot, which can end in that dot's kernel: its sums would go to memory in f32, not
    the half values that come of them."""
    known: dict[Op, bool] = {}

    def goes_on(op: Op) -> bool:
        if op not in known:
            makers = (partition.producers.get(v) for v in partition.sources(op))
            known[op] = any(
                maker is not None
                and maker not in partition.owner
                and (maker.name == "dot" or (maker.definition.kind == "elementwise" and goes_on(maker)))
                for maker in makers
            )
        return known[op]

    return lambda op: allowed(op) and not goes_on(op)


def _take_padding(partition: Partition, group: Group) -> None:
    """Takes in the zeros around an image, which are no memory: what fetches its windows leaves them out."""
    for anchor in group.anchors:
        found = convolution_of(anchor, partition.producers)
        if found is None or found.pad is None or found.pad in partition.owner or partition.escapes(found.pad):
            continue
        if all(reader in group.anchors for reader in partition.compute_consumers(found.pad)):
            partition.add(group, [found.pad])


FEW_RESULTS = 1 << 22
"""Results of a matmul up to which what makes a bias from vectors (batch norm's scale) is computed for each of them: on
an H200 a kernel of its own takes some 2 µs, in which the GPU computes 4 million square roots."""

_VECTOR_FLOPS = 16


def takes_less_than_a_launch(dot: Op) -> Callable[[Op], bool]:
    """Ops that cost little for each result, or that are made of vectors where there are few results."""
    few = dot.result.type.most <= FEW_RESULTS

    def cheap(op: Op) -> bool:
        vector = op.result.type.most * 64 <= dot.result.type.most and op.definition.flops <= _VECTOR_FLOPS
        return is_cheap(op) or (few and vector and op.definition.kind == "elementwise")

    return cheap


def _widens_again(op: Op) -> bool:
    """A cast to f64, or of a half value to f32: a reader that takes the half value sees the digits that others see."""
    source, result = op.operands[0].type.dtype, op.result.type.dtype
    return op.name == "cast" and result.is_float and (result is f64 or source.is_half)


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
        if partition.escapes(op) or any(_stays_with(partition, group, reader) for reader in readers):
            continue
        fresh = [v for v in made if not _is_stored(partition, group, v, op)]
        moved = sum(v.type.most_bytes for v in (*made, *fresh))
        if moved < 2 * op.result.type.most_bytes:
            partition.remove(group, op)


def _stays_with(partition: Partition, group: Group, reader: Op) -> bool:
    """Whether a reader can't make its operand in a prologue: it is the group's own, a matmul's, or another
    kernel's."""
    return reader in group.ops or reader in partition.owner or reader.definition.kind not in ("elementwise", "reduce")


def _is_stored(partition: Partition, group: Group, value: Value, but: Op) -> bool:
    """Whether a value that the group makes is read outside of it by another op than ``but``, or is an output."""
    made = partition.producers[value]
    outside = [c for c in partition.compute_consumers(made) if c not in group.ops and c is not but]
    return bool(outside) or partition.escapes(made)


def _widens(op: Op) -> bool:
    """A cast to a wider float, of a bias: about as cheap as the load, and no launch of its own."""
    return widens(op) and op.result.type.dtype.is_float


def _siblings(partition: Partition, op: Op) -> list[Op]:
    """Later unowned dots with the same left operand, contraction and result shape, none with batch axes."""
    attributes = op.expect(DotAttributes)
    if attributes.lhs_batch:
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
        and other.attributes.lhs_contract == attributes.lhs_contract
        and not other.attributes.lhs_batch
        and other.result.type == op.result.type
    ]


def _dense(op: Op) -> bool:
    """A dot's operand is packed once, so computing it in the prologue costs nothing; concatenations would not
    vectorise."""
    return op.definition.kind == "elementwise"
