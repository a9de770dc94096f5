# SPDX-License-Identifier: Apache-2.0
"""Score spaces that are consumed along both axes: a copy of their ops for each.

A kernel goes along one axis of a space. Attention's backward consumes one along keys for the gradient of queries, and
along queries for those of keys and values; the scores are then computed twice, which takes less time than storing them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fusec.errors import LoweringError
from fusec.ir.graph import Graph
from fusec.ir.nodes import Op, Value
from fusec.passes.families.scores.match import Space, fits, parts_of, space_above
from fusec.passes.groups.partition import Partition
from fusec.passes.normalizers import divide_results
from fusec.passes.own_copies import OwnCopies
from fusec.runtime.program import Declined


def spaces_apart(graph: Graph, *, blocked: bool) -> Graph:
    """The graph where no values of a score space that fits a kernel are consumed along two of its axes, and none are
    divided by a sum of their rows.

    ``blocked``: see :class:`~fusec.passes.families.family.Family`.
    """
    graph = divide_results(graph)
    partition = Partition(graph)
    seen: set[Op] = set()
    cloner = _Cloner(partition)
    for op in graph.ops:
        if op.name != "dot" or op in seen:
            continue
        space = space_above(partition, op)
        if isinstance(space, Declined):
            continue
        seen.update(c for c, _ in space.consumers)
        classes = _by_axis(partition, space, blocked)
        for consumers in classes[1:]:
            for consumer, side in consumers:
                cloner.detach(space, consumer, side)
            cloner.forget()
    return cloner.graph()


def _by_axis(partition: Partition, space: Space, blocked: bool) -> list[list[tuple[Op, int]]]:
    """The consumers by the axis that they go along, in order; none where a kernel could not have them."""
    classes: dict[int, list[tuple[Op, int]]] = {}
    try:
        common = _common_product(partition, space)
        for consumer in space.consumers:
            products = parts_of(partition, space, (consumer,)).products
            found = fits(partition, space, (consumer,), blocked)
            side = found.products[products.index(common)].column_side
            classes.setdefault(side, []).append(consumer)
        if len(classes) > 1:
            for consumers in classes.values():
                fits(partition, space, consumers, blocked)
    except LoweringError:
        return []
    if space.stored:  # by the kernel whose columns lie side by side in memory: it keeps the ops that there are
        return [classes[side] for side in sorted(classes, reverse=True)]
    return list(classes.values())


def _common_product(partition: Partition, space: Space) -> Op:
    """A product that all consumers read."""
    read = [parts_of(partition, space, (c,)).products for c in space.consumers]
    found = next((p for p in read[0] if all(p in others for others in read)), None)
    if found is None:
        raise LoweringError("the results have no product in common")
    return found


class _Cloner:
    """Makes copies of the ops of spaces, and lets consumers read these."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.own = OwnCopies(partition.graph, "_again")
        self.changed: dict[Op, Op] = {}
        self._copies: dict[Value, Value] = {}

    def forget(self) -> None:
        """The next consumers get copies of their own."""
        self._copies.clear()

    def detach(self, space: Space, consumer: Op, side: int) -> None:
        """Lets a consumer read copies of what it reads of the space."""
        members = {*space.products, *space.between}
        value = self._copy(consumer.operands[side], members, consumer)
        operands = tuple(value if k == side else v for k, v in enumerate(consumer.operands))
        self.changed[consumer] = replace(consumer, operands=operands)

    def _copy(self, value: Value, members: set[Op], reader: Op) -> Value:
        """The copy of a value of the space, or of a view of one; any other value as it is."""
        if value in self._copies:
            return self._copies[value]
        op = self.partition.producers.get(value)
        if op is None or not (op in members or op in self.partition.free):
            return value
        operands = op.operands if op.name == "dot" else self._copy_all(op.operands, members, reader)
        if op not in members and operands == op.operands:
            return value
        made = self.own.copy(op, operands, reader)
        self._copies.update(zip(op.results, made.results, strict=True))
        return self._copies[value]

    def _copy_all(self, values: Sequence[Value], members: set[Op], reader: Op) -> tuple[Value, ...]:
        return tuple(self._copy(v, members, reader) for v in values)

    def graph(self) -> Graph:
        return self.own.with_readers(self.changed)
