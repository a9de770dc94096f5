# SPDX-License-Identifier: Apache-2.0
"""Score spaces: dots → maps → dots, where what lies between is large beside what it is made of.

The match is on structure alone: dots that make values at the points of a space, pointwise ops on them, and dots that
consume them along one axis. What the ops between do is carried along, not recognised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from fusec.errors import LoweringError
from fusec.ir.attributes import DotAttributes, ReduceAttributes
from fusec.ir.graph import made_from
from fusec.ir.index import Index, product
from fusec.ir.indexing import most
from fusec.ir.nodes import Op, Value
from fusec.ir.types import Dim
from fusec.passes.contraction import accumulator_dtype, contraction
from fusec.passes.families.attention.match import is_own
from fusec.passes.families.scores.elements import ScoreElements, ScoresParts, find_elements
from fusec.passes.groups.grow import Log, grow_consumers, grow_producers, is_cheap
from fusec.passes.groups.partition import Group, Partition
from fusec.runtime.program import Declined

RULE = "dots(maps(dots)) => scores"

WIDEST, WIDEST_TOGETHER = 256, 512
"""Elements of a row of a product's operand and of a result, and of all results of one kernel: what fits on chip."""

LARGE_BESIDE = 4
"""Rows and columns of a space are so many times more than the elements of an operand's row: its values take more memory
than what they are made of, and a kernel of each product is the better for reading them less often."""


@dataclass(frozen=True)
class ScoresMatch:
    """The parts of a score space; ``score_ops`` lie between its products and results, ``ops`` become the kernel.

    column_sides: which operand of each product is of columns.
    """

    parts: ScoresParts
    score_ops: tuple[Op, ...]
    column_sides: tuple[int, ...]

    @property
    def ops(self) -> frozenset[Op]:
        return frozenset((*self.parts.products, *self.score_ops, *self.parts.ends))


@dataclass(frozen=True)
class Space:
    """Dots that make values on the points of a space, the maps between, and the dots that consume values on it with the
    number of the operand which these are; sums of such values beside them, and maps whose values are stored."""

    products: tuple[Op, ...]
    between: tuple[Op, ...]
    consumers: tuple[tuple[Op, int], ...]
    sums: tuple[Op, ...] = ()
    stored: tuple[Op, ...] = ()


def match_scores(partition: Partition, log: Log, blocked: bool) -> None:
    """dots → maps → dots along one axis of the maps' space, which is never stored."""
    for op in partition.graph.ops:
        if op.name != "dot" or op in partition.owner:
            continue
        found = match_space(partition, op, blocked)
        if isinstance(found, Declined):
            if found.reason:
                log(found)
            continue
        _take(partition, found, log, blocked)


def _take(partition: Partition, match: ScoresMatch, log: Log, blocked: bool) -> None:
    first = match.parts.consumers[0]
    group = Group("scores", first.result.type.shape)
    partition.add(group, match.ops)
    for op, side in zip(match.parts.consumers, match.parts.sides, strict=True):
        if op.result.type.shape == group.domain and side == match.parts.sides[0]:
            group.anchors.append(op)
            group.position[op.result] = group.identity
    if match.parts.sides[0] == 0:
        for op in match.parts.sums:
            group.position[op.result] = group.identity[:-1]
    group.roles = match.parts.group
    grow_consumers(partition, group, log)
    grow_producers(partition, group, is_cheap, [v for inner in match.score_ops for v in inner.operands])
    if not blocked:
        kept = [p.operands[1 - side] for p, side in zip(match.parts.products, match.column_sides, strict=True)]
        grow_producers(partition, group, partial(is_own, partition), kept)


def match_space(partition: Partition, op: Op, blocked: bool) -> ScoresMatch | Declined:
    """The score space that ``op`` consumes values of. A Declined with an empty reason when it looks like none."""

    def no(reason: str) -> Declined:
        return Declined(RULE, reason, op.location)

    space = space_above(partition, op)
    if isinstance(space, Declined):
        return space
    try:
        found = fits(partition, space, space.consumers, blocked, space.stored)
    except LoweringError as error:
        return no(str(error))
    sides = tuple(p.column_side for p in found.products)
    match = ScoresMatch(parts_of(partition, space, space.consumers, space.stored), space.between, sides)
    if match.parts.products != space.products:
        return no(f"{len(space.products)} products make scores, and the results are made of {len(found.products)}")
    for consumer in match.parts.ends:
        if partition.would_cycle(set(match.ops - {consumer}), consumer):
            return no(f"{consumer.result} is made of a value that another kernel makes of this one's")
    return match


def parts_of(
    partition: Partition, space: Space, consumers: Sequence[tuple[Op, int]], stored: tuple[Op, ...] = ()
) -> ScoresParts:
    """Some of a space's consumers, and the products that they read."""
    values = [*(op.operands[side] for op, side in consumers), *(op.operands[0] for op in space.sums)]
    read = {p for v in values for p in products_above(partition, v)}
    products = tuple(p for p in space.products if p in read)
    return ScoresParts(products, tuple(c for c, _ in consumers), tuple(s for _, s in consumers), space.sums, stored)


def fits(
    partition: Partition,
    space: Space,
    consumers: Sequence[tuple[Op, int]],
    blocked: bool,
    stored: tuple[Op, ...] = (),
) -> ScoreElements:
    """The elements of a kernel for some of a space's consumers. LoweringError where there is none, its text empty where
    that needs no telling."""
    parts = parts_of(partition, space, consumers, stored)
    elements = find_elements(partition.inliner({*parts.products, *space.between, *parts.ends}), parts)
    reason = _unfit(elements, parts, blocked)
    if reason is not None:
        raise LoweringError(reason)
    return elements


def _unfit(e: ScoreElements, parts: ScoresParts, blocked: bool) -> str | None:
    """Why no kernel holds the space's blocks, or would gain nothing; empty where that needs no telling."""
    widths = [*(p.extent for p in e.products), *(c.extent for c in e.consumers)]
    results = sum(c.extent for c in e.consumers)
    if min(most(e.rows), most(e.columns)) < LARGE_BESIDE * max(widths):
        return ""
    if max(widths) > WIDEST or results > WIDEST_TOGETHER:
        return f"rows of {max(widths)} elements and results of {results} do not fit a block"
    dtypes = {accumulator_dtype(op) for op in parts.products} | {accumulator_dtype(op) for op in parts.consumers}
    if len(dtypes) > 1 or not all(d.is_float for d in dtypes):
        return ""
    if parts.stored and not blocked:
        return f"{parts.stored[0].result} is needed elsewhere, and a CPU's kernel stores none"
    half = any(v.type.dtype.bits < 32 for op in (*parts.products, *parts.consumers) for v in op.operands)
    return "half types on a CPU" if half and not blocked else None


def space_above(partition: Partition, consumer: Op) -> Space | Declined:
    """The space whose values a dot consumes, whole: all its products, and all that reads its values."""

    def no(reason: str) -> Declined:
        return Declined(RULE, reason, consumer.location)

    for side in (0, 1):
        if not _has_long_axes(consumer, side):
            continue
        made = [p for p in products_above(partition, consumer.operands[side]) if p not in partition.owner]
        if made and all(_is_small_beside(p, consumer, side) for p in made):
            break
    else:
        return no("")
    products, between = _closed(partition, made)
    if consumer in products:
        return no("")
    _leave_readers_of_one(partition, products, between, consumer, side)
    ops = {*products, *between}
    consumers: dict[Op, int] = {}
    sums: dict[Op, None] = {}
    stored: dict[Op, None] = {}
    for op in sorted(ops, key=partition.order.__getitem__):
        if op in partition.owner:
            return no(f"{op.result} is already part of another kernel")
        if partition.escapes(op):
            if op in products:
                return no(f"{op.result} is also an output, so it must be stored whole")
            stored[op] = None
        for reader in partition.compute_consumers(op):
            if reader in ops:
                continue
            if _is_sum(reader) and reader not in partition.owner and _is_along(consumer, side, reader):
                sums[reader] = None
                continue
            sides = [s for s, v in enumerate(reader.operands) if _is_made_of(partition, v, op)]
            if reader.name != "dot" or reader in partition.owner:
                if op in products or _leads_back(partition, reader, ops):
                    return no(f"{op.result} is also read by {reader.name} ({reader.location or 'unknown line'})")
                stored[op] = None
            elif len(sides) > 1 or consumers.setdefault(reader, sides[0]) != sides[0]:
                return no(f"{reader.result} multiplies values of the space with each other")
    if consumer not in consumers:
        return no("")
    order = partition.order.__getitem__
    return Space(
        tuple(sorted(products, key=order)),
        tuple(sorted(between, key=order)),
        tuple(sorted(consumers.items(), key=lambda c: order(c[0]))),
        tuple(sorted(sums, key=order)),
        tuple(sorted(stored, key=order)),
    )


def _leave_readers_of_one(partition: Partition, products: set[Op], between: set[Op], consumer: Op, side: int) -> None:
    """Takes maps of one value of the space that nothing on it reads out of it: what is stored for their readers is that
    value, where it is no wider."""

    def is_on_space(reader: Op) -> bool:
        return reader in between or reader.name == "dot" or (_is_sum(reader) and _is_along(consumer, side, reader))

    for op in sorted(between, key=partition.order.__getitem__, reverse=True):
        if any(map(is_on_space, partition.compute_consumers(op))):
            continue
        made = {partition.producers.get(v): v for v in partition.sources(op)}
        (read, *others) = [v for maker, v in made.items() if maker in between or maker in products]
        if not others and partition.producers[read] not in products and _bits(read) <= _bits(op.result):
            between.discard(op)


def _leads_back(partition: Partition, reader: Op, ops: set[Op]) -> bool:
    """Whether what is made of a reader's result is read on the space again, as a row's maximum in a softmax."""
    last = max(partition.order[op] for op in ops)
    seen, waiting = {reader}, [reader]
    while waiting:
        for user in partition.compute_consumers(waiting.pop()):
            if user in ops:
                return True
            if user not in seen and partition.order[user] < last:
                seen.add(user)
                waiting.append(user)
    return False


def _bits(value: Value) -> int:
    return value.type.dtype.bits


def _has_long_axes(consumer: Op, side: int, row: int = 1) -> bool:
    """Whether a consumer's rows of values, and rows of ``row`` elements, are short beside the axes of a space that is
    its operand number ``side``."""
    axes = contraction(consumer)
    rows, values = (axes.n, axes.m) if side else (axes.m, axes.n)
    return min(rows, axes.k) >= LARGE_BESIDE * max(row, values)


def _is_small_beside(product: Op, consumer: Op, side: int) -> bool:
    """Whether the rows of a product's operands and of a consumer's result are short beside the space's own axes."""
    return _has_long_axes(consumer, side, contraction(product).k)


def products_above(partition: Partition, value: Value) -> list[Op]:
    """Dots of as many elements as a value has that reach it through pointwise ops and views."""

    def through(op: Op) -> bool:
        is_map = op.definition.kind == "elementwise" and op not in partition.owner
        return op.name != "dot" and (op in partition.free or is_map)

    made = made_from(partition.producers.get, [value], through)
    dots = (op for v, op in made if op is not None and op.name == "dot" and v.type.count == value.type.count)
    return list(dict.fromkeys(dots))


def _closed(partition: Partition, made: list[Op]) -> tuple[set[Op], set[Op]]:
    """All products of a space and the pointwise ops that go on from them, from some of its products."""
    count = made[0].result.type.count
    products, between = set(made), set[Op]()
    waiting: list[Op] = list(made)
    while waiting:
        for reader in partition.compute_consumers(waiting.pop()):
            if reader in between or reader.definition.kind != "elementwise" or reader.result.type.count != count:
                continue
            between.add(reader)
            waiting.append(reader)
            new = [p for v in reader.operands for p in products_above(partition, v) if p not in products]
            new = [p for p in new if p.result.type.count == count]
            products.update(new)
            waiting.extend(new)
    return products, between


def _is_sum(op: Op) -> bool:
    """Whether an op adds up floats along one axis."""
    if op.name != "reduce_sum" or not op.result.type.dtype.is_float:
        return False
    return len(op.expect(ReduceAttributes).axes) == 1


def _is_along(consumer: Op, side: int, reader: Op) -> bool:
    """Whether a sum goes along the axis of the space that a dot contracts, as far as the places of both in memory
    tell."""
    (axis,) = reader.expect(ReduceAttributes).axes
    summed, read = reader.operands[0].type.shape, consumer.operands[side].type.shape
    dot = consumer.expect(DotAttributes)
    contracted = dot.rhs_contract if side else dot.lhs_contract
    return len(contracted) == 1 and _place(summed, axis) == _place(read, contracted[0])


def _place(shape: tuple[Dim, ...], axis: int) -> tuple[Dim, Index]:
    """An axis's extent, and how far its elements lie apart."""
    return shape[axis], product(shape[axis + 1 :])


def _is_made_of(partition: Partition, value: Value, op: Op) -> bool:
    return any(source in op.results for source in partition.sources_of(value))
