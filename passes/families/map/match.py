# SPDX-License-Identifier: Apache-2.0
"""Which ops one map kernel has: all that no other family took, over one index space."""

from __future__ import annotations

from fusec.ir.index import product
from fusec.ir.indexing import most
from fusec.ir.nodes import Op
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
    is ``blocked``, small maps of arguments over one shape (scales of batch norms) are one kernel.
    """
    small: dict[tuple[Dim, ...], Group] = {}
    for op in reversed(partition.graph.ops):
        if op in partition.owner or op in partition.free or op.definition.kind not in POINTWISE:
            continue
        group = Group("map", op.result.type.shape)
        seed(partition, group, op)
        _grow_over_domain(partition, group, log)
        grow_producers(partition, group, Recomputation(partition, group, blocked).pays)
        if blocked and _is_small(partition, group):
            _join(partition, small, group)


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
