# SPDX-License-Identifier: Apache-2.0
"""Which ops one map kernel has: all that no other family took, over one index space."""

from __future__ import annotations

from fusec.ir.index import product
from fusec.ir.indexing import most
from fusec.ir.nodes import Op, Value
from fusec.ir.types import Dim
from fusec.passes.groups.grow import Log, absorb_upstream, grow_consumers, grow_producers, seed
from fusec.passes.groups.partition import POINTWISE, Group, Partition

STORE_FLOPS = 8
"""Flops that a vector unit does in about the time that writing and reading back an element takes."""
SMALL, MOST_JOINED = 1 << 18, 48
"""Elements up to which a map of arguments takes a launch and little else, and ops of a kernel that has several."""

PADDING_FLOPS = 0.25
"""Of an element of a padded image on a GPU, whose lanes share it with those of other windows."""


def match_maps(partition: Partition, log: Log, blocked: bool = False) -> None:
    """What is left: chains of maps over one shape, with maps over other shapes inlined where that costs little.

    Last ops first, so that an op which its readers can compute on the way gets no kernel of its own. Where the target
    is ``blocked``, small maps of arguments over one shape (scales of batch norms) are one kernel, and so are writes of
    one shape into different arrays (a layer's new keys and values).
    """
    small: dict[tuple[Dim, ...], Group] = {}
    writing: list[Group] = []
    for op in reversed(partition.graph.ops):
        if op in partition.owner or op in partition.free or op.definition.kind not in POINTWISE:
            continue
        group = Group("map", op.result.type.shape)
        seed(partition, group, op)
        _grow_over_domain(partition, group, log)
        grow_producers(partition, group, Recomputation(partition, group, blocked).pays)
        if blocked and _is_small(partition, group):
            _join(partition, small, group)
        elif blocked and _only_writes(partition, group):
            _join_writes(partition, writing, group)


def _is_small(partition: Partition, group: Group) -> bool:
    """Whether a group takes a launch and little else, and can be computed before all other kernels."""
    if not product(group.domain) or most(product(group.domain)) > SMALL or len(group.ops) > MOST_JOINED:
        return False
    inputs = set(partition.graph.inputs)
    for op in group.ops:
        if any(v not in inputs and partition.producers.get(v) not in group.ops for v in partition.sources(op)):
            return False
        if any(user.definition.kind == "write" for v in op.results for user in partition.uses[v]):
            return False
    return True


def _join(partition: Partition, small: dict[tuple[Dim, ...], Group], group: Group) -> None:
    """Puts a small map into the kernel of others over its shape, or begins one."""
    other = small.setdefault(group.domain, group)
    if other is group:
        return
    if len(other.ops) + len(group.ops) > MOST_JOINED:
        small[group.domain] = group
        return
    partition.groups.remove(group)
    partition.add(other, group.ops)


def _only_writes(partition: Partition, group: Group) -> bool:
    """Whether all that a small group makes is written into arrays, and nothing else."""
    if not product(group.domain) or most(product(group.domain)) > SMALL or len(group.ops) > MOST_JOINED:
        return False
    if any(partition.escapes(op) for op in group.ops):
        return False
    readers = _readers(partition, group)
    return bool(readers) and all(user.definition.kind == "write" for user in readers)


def _readers(partition: Partition, group: Group) -> set[Op]:
    return {user for op in group.ops for user in partition.compute_consumers(op)} - group.ops


def _join_writes(partition: Partition, writing: list[Group], group: Group) -> None:
    """Puts a group into the kernel of another that writes into other arrays, where neither reads what either writes."""
    for other in reversed(writing):
        written = [_written(partition, g) for g in (group, other)]
        read = _arrays_read(partition, group) | _arrays_read(partition, other)
        fits = other.domain == group.domain and len(other.ops) + len(group.ops) <= MOST_JOINED
        if not fits or written[0] & written[1] or read & (written[0] | written[1]):
            continue
        if partition.would_cycle(other.ops, next(iter(group.ops))):
            continue
        partition.groups.remove(group)
        partition.add(other, group.ops)
        return
    writing.append(group)


def _written(partition: Partition, group: Group) -> set[Value]:
    """The arrays into which a group's results are written, before any write."""
    writes = (user for user in _readers(partition, group) if user.definition.kind == "write")
    return {_array(partition, user.operands[0]) for user in writes}


def _arrays_read(partition: Partition, group: Group) -> set[Value]:
    own = {v for op in group.ops for v in op.results}
    return {_array(partition, v) for op in group.ops for v in partition.sources(op) if v not in own}


def _array(partition: Partition, value: Value) -> Value:
    """The array of which a value is a view, or what it is after writes."""
    while (op := partition.producers.get(value)) is not None and op.definition.kind in ("view", "write"):
        value = op.operands[0]
    return value


def _grow_over_domain(partition: Partition, group: Group, log: Log) -> None:
    """Takes in what lies at the group's points, up and down the graph, until there is no more."""
    size = 0
    while size < len(group.ops):
        size = len(group.ops)
        ops = sorted(group.ops, key=partition.order.__getitem__)
        absorb_upstream(partition, group, [op.result for op in ops])
        grow_consumers(partition, group, log)


class Recomputation:
    """What it costs a map group to compute a producer where it is read, not once and in memory."""

    def __init__(self, partition: Partition, group: Group, blocked: bool) -> None:
        self.partition = partition
        self.group = group
        self.blocked = blocked
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
        flops = PADDING_FLOPS if self.blocked and op.name == "pad" else max(op.definition.flops, 1)
        return again * flops <= STORE_FLOPS * (size + self.domain)
