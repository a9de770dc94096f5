# SPDX-License-Identifier: Apache-2.0
"""A partition of a graph's ops into groups, each of which becomes one kernel.

*Free* ops belong to no group: views, constants, iota, and elementwise ops over only those. They cost nothing
and are copied into each group that reads through them. All other ops are *compute* ops; each has one owner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from sys import maxsize

from fusec.ir.attributes import FusedKind, PermuteAttributes, ScanAttributes, WindowsAttributes
from fusec.ir.graph import Graph, Roles
from fusec.ir.index import Index
from fusec.ir.nodes import Op, Value
from fusec.ir.types import Dim, contiguous_strides
from fusec.passes.inline import MOVES, Inliner, Leaf, index_only
from fusec.tile.scalar import Buffer, Load
from fusec.tile.views import (
    Subscripts,
    broadcast_index,
    fresh_index,
    pure,
    reshape_index,
    settled,
    under_views,
    view_index,
)

Position = tuple[Index, ...]


MOST_TERMS = 4096
"""The largest expression, written out as a tree, that one element of a kernel may be."""

MOST_DEPTH = 64
"""Its greatest depth: expressions are read and written by recursion."""

MOST_SHOWN = 8
"""Terms of an element up to which it may be computed again wherever windows that overlap show it."""

POINTWISE = ("elementwise", "data")
"""Kinds whose results can be computed one element at a time."""


@dataclass(eq=False)
class Group:
    """Ops that will run as one kernel over one domain.

    ``domain`` is the shape of the anchor's iteration space and ``identity`` a symbol for each of its axes.
    ``position[v]`` is the index of ``v`` that belongs to a domain point, for values computed in the group
    and for views of them. ``reduced``: the axes of a row group's reductions; ``scanned``: what a scan group's scans
    have in common. ``beside`` are ops of sums over other axes, which lie at no points of the domain. ``first`` and
    ``last`` are the positions in the graph of its outermost ops.
    """

    kind: FusedKind
    domain: tuple[Dim, ...]
    ops: set[Op] = field(default_factory=set)
    position: dict[Value, Position] = field(default_factory=dict)
    reduced: tuple[int, ...] | None = None
    scanned: ScanAttributes | None = None
    anchors: list[Op] = field(default_factory=list)
    beside: set[Op] = field(default_factory=set)
    roles: Roles | None = None
    first: int = maxsize
    last: int = -1

    def __post_init__(self) -> None:
        self.identity: Position = pure(settled(fresh_index("d", self.domain)))


def pointwise(scan: Op) -> tuple[Value, ...]:
    """What a scan reads at each of its points: a recurrence also its factors, and elsewhere what it starts from."""
    return scan.operands[:2]


def made_pointwise(scan: Op) -> tuple[Value, ...]:
    """What a scan reads and makes at each of its points."""
    last = isinstance(scan.attributes, ScanAttributes) and scan.attributes.last
    return pointwise(scan) if last else (*pointwise(scan), scan.result)


class Partition:
    """Who owns which op, and the questions that fusions ask of a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.producers = graph.producers()
        self.uses = graph.uses()
        self.order = {op: k for k, op in enumerate(graph.ops)}
        self.owner: dict[Op, Group] = {}
        self.groups: list[Group] = []
        self.outputs = set(graph.outputs)
        self.stored = large_parts(graph) | _copied_twice(graph) | _moved(graph)
        indices = index_only(graph)
        made_of_indices = (op for op in graph.ops if op.results and indices.issuperset(op.results))
        self.free = {*(op for op in graph.ops if op.definition.kind == "view"), *made_of_indices}
        self._compute_consumers: dict[Op, tuple[Op, ...]] = {}
        self._compute_producers: dict[Op, tuple[Op, ...]] = {}

    def source(self, value: Value) -> Value:
        """The value in memory that ``value`` is a view of: itself when it is not a view."""
        op = self.producers.get(value)
        while op is not None and op.definition.kind == "view":
            value = op.operands[0]
            op = self.producers.get(value)
        return value

    def sources(self, op: Op) -> Iterator[Value]:
        """What the op reads that is in memory or computed by another compute op, through free ops."""
        for operand in dict.fromkeys(op.operands):
            yield from self.sources_of(operand)

    def sources_of(self, value: Value) -> Iterator[Value]:
        op = self.producers.get(value)
        if op is None or op not in self.free:
            yield value
            return
        for operand in dict.fromkeys(op.operands):
            yield from self.sources_of(operand)

    def reads_elsewhere(self, group: Group, op: Op, position: Position) -> Value | None:
        """A value that the group computes and ``op``, at ``position``, reads at other points than its own, or None."""
        for value, index in self._reads_at(op, position):
            if self.producers.get(value) in group.ops and group.position.get(value) != index:
                return value
        return None

    def is_read_elsewhere(self, group: Group, op: Op) -> bool:
        """True when the group reads the op's result at other points than that result's position."""
        wanted = group.position[op.result]
        for consumer in self.compute_consumers(op):
            if consumer not in group.ops or consumer in group.beside:
                continue
            reduces = consumer.definition.kind == "reduce"
            position = group.identity if reduces else group.position.get(consumer.result)
            if position is None:
                return True
            if any(v is op.result and index != wanted for v, index in self._reads_at(consumer, position)):
                return True
        return False

    def _reads_at(self, op: Op, position: Position) -> Iterator[tuple[Value, Position]]:
        """What a map (at the position of its result) or a reduction (at that of its operand) reads, and where."""
        for value in op.operands:
            index: Subscripts = position
            if op.definition.kind == "elementwise":
                index = broadcast_index(position, value.type.shape)
            while (view := self.producers.get(value)) is not None and view.definition.kind == "view":
                index, value = view_index(view, index), view.operands[0]
            yield value, pure(index)

    def reads_stored(self, op: Op, members: set[Op]) -> Value | None:
        """A value made by ``members`` that ``op`` reads and that must be in memory for it; None if there is none."""
        for source in self.sources(op):
            if source in self.stored and self.producers.get(source) in members:
                return source
        return None

    def compute_consumers(self, op: Op) -> tuple[Op, ...]:
        """Compute ops that read the op's results, through free ops."""
        if op not in self._compute_consumers:
            found: dict[Op, None] = {}
            stack = list(op.results)
            while stack:
                for user in self.uses[stack.pop()]:
                    if user in self.free:
                        stack.extend(user.results)
                    else:
                        found[user] = None
            self._compute_consumers[op] = tuple(found)
        return self._compute_consumers[op]

    def compute_producers(self, op: Op) -> tuple[Op, ...]:
        """Ops that make what the op reads, through free ops."""
        if op not in self._compute_producers:
            made = (self.producers.get(source) for source in self.sources(op))
            self._compute_producers[op] = tuple(dict.fromkeys(p for p in made if p is not None))
        return self._compute_producers[op]

    def escapes(self, op: Op) -> bool:
        """True when a result of the op, or a view of it, is an output of the graph."""
        stack = list(op.results)
        while stack:
            value = stack.pop()
            if value in self.outputs:
                return True
            stack.extend(r for user in self.uses[value] if user in self.free for r in user.results)
        return False

    def add(self, group: Group, ops: Iterable[Op]) -> None:
        for op in ops:
            group.ops.add(op)
            group.first = min(group.first, self.order[op])
            group.last = max(group.last, self.order[op])
            self.owner[op] = group
        if group not in self.groups:
            self.groups.append(group)

    def remove(self, group: Group, op: Op) -> None:
        """Takes an op that neither reads nor feeds the rest of the group out of it."""
        group.ops.discard(op)
        del self.owner[op]
        numbers = [self.order[o] for o in group.ops]
        group.first, group.last = min(numbers, default=maxsize), max(numbers, default=-1)

    def free_op(self, group: Group, op: Op) -> None:
        """Takes a map out of its group, to be copied into each group that reads its result."""
        self.remove(group, op)
        self.free.add(op)
        self._compute_consumers, self._compute_producers = {}, {}
        if not group.ops:
            self.groups.remove(group)

    def inliner(self, ops: Set[Op]) -> Inliner:
        """Expands what these ops make; all else that they read is in memory, through free ops."""

        def leaf(value: Value) -> Leaf:
            shape = value.type.shape
            buffer = Buffer(value.name, value.type.dtype, shape, contiguous_strides(shape))
            return lambda index: Load(buffer, index)

        needed: dict[Value, None] = {}
        for op in ops:
            needed.update(dict.fromkeys(v for v in self.sources(op) if self.producers.get(v) not in ops))
        return Inliner(self.producers, {v: leaf(v) for v in needed})

    def would_cycle(self, members: set[Op], added: Op) -> bool:
        """True when ``added`` can't join ``members``: a way from the two of them leads back to them through others."""
        unit = self._unit(added)
        group = self.owner.get(next(iter(members)))
        if group is None or group.ops is not members:
            return self._returns(members | unit)
        # No way leads from a group back to it, so one that would goes from the one to the other.
        return self._is_before(unit, group) or self._is_behind(unit, group)

    def _returns(self, merged: set[Op]) -> bool:
        """Whether a way leads from some ops back to them through others."""
        return self._reaches(merged, merged, self._horizon(max(self.order[op] for op in merged)))

    def _is_before(self, unit: set[Op], group: Group) -> bool:
        """Whether a way leads from a unit to a group through others."""
        return self._reaches(unit, group.ops, self._horizon(group.last))

    def _reaches(self, start: set[Op], goal: set[Op], horizon: int) -> bool:
        """Whether a way leads from some ops to others through ops that are neither, none of them past a position."""
        seen: set[Op] = set()
        stack = [c for op in start for c in self.compute_consumers(op) if c not in goal and c not in start]
        while stack:
            op = stack.pop()
            if op in seen:
                continue
            unit = self._unit(op)
            seen |= unit
            if self._first(op) > horizon:
                continue
            for consumer in (c for u in unit for c in self.compute_consumers(u)):
                if consumer in goal:
                    return True
                if consumer not in start:
                    stack.append(consumer)
        return False

    def _is_behind(self, unit: set[Op], group: Group) -> bool:
        """Whether a way leads from a group to a unit through others."""
        goal, floor = group.ops, -1
        seen: set[Op] = set()
        stack = [p for op in unit for p in self.compute_producers(op) if p not in goal and p not in unit]
        if stack:
            floor = self._floor(group.first)
        while stack:
            op = stack.pop()
            if op in seen:
                continue
            others = self._unit(op)
            seen |= others
            if self._last(op) < floor:
                continue
            for producer in (p for u in others for p in self.compute_producers(u)):
                if producer in goal:
                    return True
                if producer not in unit:
                    stack.append(producer)
        return False

    def _horizon(self, number: int) -> int:
        """A position past which no way leads back to ops before ``number``: only a group's ops let a way go back."""
        while (further := max((g.last for g in self.groups if g.first < number), default=number)) > number:
            number = further
        return number

    def _floor(self, number: int) -> int:
        """A position before which no way leads from ops at ``number`` or behind it."""
        while (further := min((g.first for g in self.groups if g.last > number), default=number)) < number:
            number = further
        return number

    def unit_name(self, op: Op) -> int:
        """A number for the op's group (or the op alone): the position of its first op in the graph."""
        return self._first(op)

    def _unit(self, op: Op) -> set[Op]:
        group = self.owner.get(op)
        return group.ops if group is not None else {op}

    def _first(self, op: Op) -> int:
        group = self.owner.get(op)
        return group.first if group is not None else self.order[op]

    def _last(self, op: Op) -> int:
        group = self.owner.get(op)
        return group.last if group is not None else self.order[op]


def large_parts(graph: Graph) -> set[Value]:
    """Values to keep in memory so that no element is an expression of more than ``MOST_TERMS`` terms, or too deep.

    An expression is a tree: ``x = x * x``, thirty times, would have 2^30 terms.
    """
    producers = graph.producers()
    indices = index_only(graph)
    size: dict[Value, tuple[int, int]] = {}
    stored: set[Value] = set()
    for op in graph.ops:
        if op.definition.kind not in POINTWISE or op.result in indices:
            continue
        parts = [_under_views(v, producers) for v in op.operands]
        for v, pads in _shown_often(op, producers):
            if size.get(v, (1, 0))[0] > MOST_SHOWN:
                stored.add(v)
                size |= {v: (1, 0), **dict.fromkeys(pads, (2, 1))}
        terms = 1 + sum(size.get(v, (1, 0))[0] for v, _ in parts)
        for v, _ in sorted(dict.fromkeys(parts), key=lambda part: -size.get(part[0], (1, 0))[0]):
            own, depth = size.get(v, (1, 0))
            if v in size and (terms > MOST_TERMS or depth >= MOST_DEPTH):
                stored.add(v)
                size[v] = (1, 0)
                terms -= (own - 1) * sum(v is other for other, _ in parts)
        size[op.result] = (terms, 1 + max((size.get(v, (1, 0))[1] + views for v, views in parts), default=0))
    return stored


def _shown_often(op: Op, producers: Mapping[Value, Op]) -> Iterator[tuple[Value, list[Value]]]:
    """What an op reads through windows that overlap, which show each element several times; and the same with padding
    around."""
    for value in op.operands:
        overlaps, pads = False, list[Value]()
        while (made := producers.get(value)) is not None and (made.definition.kind == "view" or made.name == "pad"):
            seen = made.attributes
            overlaps |= isinstance(seen, WindowsAttributes) and seen.size > seen.step
            pads += [value] if made.name == "pad" else []
            value = made.operands[0]
        if overlaps:
            yield value, pads


def _copied_twice(graph: Graph) -> set[Value]:
    """Values that are copied to be written into an input, and are themselves copies: made by a kernel before."""
    producers = graph.producers()
    writers = (producers.get(op.operands[1]) for op in graph.ops if op.definition.kind == "write")
    copied = (op.operands[0] for op in writers if op is not None and op.operands)
    return {value for value in copied if (op := producers.get(value)) is not None and op.name == "copy"}


def _moved(graph: Graph) -> set[Value]:
    """Where copies are put, which a kernel reads before it starts, and what is there when it has ended."""
    producers = graph.producers()
    moves = [op for op in graph.ops if op.name in MOVES]
    return {under_views(v, producers) for op in moves for v in (*op.operands[1:], op.result)}


def _under_views(value: Value, producers: Mapping[Value, Op]) -> tuple[Value, int]:
    """What ``value`` is a view of, and by how many views."""
    views = 0
    while (op := producers.get(value)) is not None and op.definition.kind == "view":
        value, views = op.operands[0], views + 1
    return value, views


def view_position(op: Op, position: Position) -> Position | None:
    """Where a view's result lies when its operand lies at ``position``; None when the view drops or repeats points."""
    if 0 in op.result.type.shape:
        return None
    if isinstance(op.attributes, PermuteAttributes):
        return tuple(position[axis] for axis in op.attributes.permutation)
    if op.name == "reshape":
        source, target = op.operands[0].type.shape, op.result.type.shape
        return pure(reshape_index(position, source, target))
    return None


def set_positions(
    group: Group, values: Iterable[Value], producers: Mapping[Value, Op], enter: Callable[[Op], bool]
) -> None:
    """Gives the values that make ``values``, which have positions, theirs: through maps and views that only reorder.

    ``enter`` says whether to go on through an op, and is asked once the op's own position is known. An op that was
    refused before is asked about again: what stood against it may have joined the group since.
    """
    stack = list(values)
    seen = set(stack)
    while stack:
        value = stack.pop()
        producer = producers.get(value)
        if producer is None or not enter(producer):
            continue
        for operand in producer.operands:
            position = _operand_position(producer, operand, group.position[value])
            if position is None or operand in seen or group.position.setdefault(operand, position) != position:
                continue
            seen.add(operand)
            stack.append(operand)


def _operand_position(op: Op, operand: Value, position: Position) -> Position | None:
    """Where the operand of a map, or of a view that only reorders, lies; None where points are repeated or dropped."""
    if op.definition.kind == "elementwise":
        return position if operand.type.shape == op.result.type.shape else None
    if op.name in ("permute", "reshape", "broadcast") and operand.type.count == op.result.type.count != 0:
        return pure(view_index(op, position))
    return None


def elementwise_position(op: Op, group: Group) -> Position | None:
    """Where an elementwise op's result lies in the group's domain; None when its operands don't agree."""
    shape = op.result.type.shape
    inside = [v for v in op.operands if v in group.position]
    candidates = [group.position[v] for v in inside if v.type.shape == shape]
    if shape == group.domain:
        candidates.append(group.identity)
    for candidate in candidates[:1]:
        if all(broadcast_index(candidate, v.type.shape) == group.position[v] for v in inside):
            return candidate
    return None


def view_in_group(op: Op, group: Group) -> Position | None:
    """Where a view of a value in the group lies."""
    position = view_position(op, group.position[op.operands[0]])
    if position is None and op.name == "broadcast" and group.reduced is not None:
        return _broadcast_position(op, group)
    return position


def _broadcast_position(op: Op, group: Group) -> Position | None:
    """A broadcast view of a row's value, spread over the domain again."""
    operand = op.operands[0]
    if op.result.type.shape != group.domain:
        return None
    matches = broadcast_index(group.identity, operand.type.shape) == group.position[operand]
    return group.identity if matches else None


def positions_of(body: Graph, group: Group) -> dict[Value, Position]:
    """Completes ``group.position`` over the body, as fusion did when it made the group."""
    for op in body.ops:
        if op.result in group.position or not any(v in group.position for v in op.operands):
            continue
        kind = op.definition.kind
        position: Position | None = None
        if kind == "view":
            position = view_in_group(op, group)
        elif kind == "elementwise":
            position = elementwise_position(op, group)
        if position is not None:
            group.position[op.result] = position
    return group.position
