# SPDX-License-Identifier: Apache-2.0
"""A map kernel: every output element on its own, over the outputs' shared index space."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from itertools import product as combinations
from math import prod

from fusec.errors import LoweringError
from fusec.ir.index import Index, Symbol, add, minimum, mul, product, sub, symbol, symbols_of
from fusec.ir.indexing import ceildiv, delinearize, last, most, round_up, substitute
from fusec.ir.nodes import Op, Value
from fusec.ir.types import Dim
from fusec.passes.families.map.schedule.cpu import MapSchedule
from fusec.passes.groups.partition import Group, Position, positions_of, set_positions
from fusec.passes.lower.context import (
    LoweredGroup,
    LoweringContext,
    address_step,
    element_flops,
    is_large,
    position_at,
    prefer_index,
)
from fusec.tile.nodes import Grid, Iter, Store
from fusec.tile.scalar import Apply, Const, IndexValue, Load, loads, reindex, walk
from fusec.tile.views import fresh_index, pure, reshape_index


def lower_map(context: LoweringContext, schedule: MapSchedule) -> LoweredGroup:
    """Rows of the outermost axes go to tasks; the innermost axes that every load reads evenly are one lane axis.

    Where joins and padding change what is read along an axis, each part of it is stored by itself.
    """
    shape = map_domain(context)
    order = memory_order(context, shape)
    results = schedule.results
    boxes = [_Loops.over(context, shape, order, box, results) for box in boxes_of(context, shape, order)]
    if len(boxes) == 1:
        wanted, sizes = boxes[0].alone(schedule.task_elements)
    else:
        wanted = max(1, most(product(shape)) // schedule.task_elements)
        sizes = (("tasks", wanted), ("parts", len(boxes)))
    tasks = boxes[0].tasks(wanted) if len(boxes) == 1 else wanted
    g = symbol("g", 0, last(tasks))
    body = tuple(
        store for box in boxes for store in box.stores(context, shape, order, g, wanted, schedule.non_temporal_bytes)
    )
    return context.finish("map", (Grid((Iter.over(g, tasks),), body),), sizes)


Extents = tuple[Dim, ...]
Order = tuple[int, ...]
Box = tuple[tuple[Dim, Dim], ...]
"""For each axis of the domain, the first position and one past the last."""


@dataclass(frozen=True)
class _Loops:
    """How a box is walked: ``outer`` axes are rows, ``inner`` ones lie on lanes; both in the order of memory. The last
    of the outer axes has ``along`` places, of which ``results`` are computed together."""

    box: Box
    outer: Extents
    inner: Extents
    along: int = 1
    results: int = 1

    @staticmethod
    def over(context: LoweringContext, shape: Extents, order: Order, box: Box, most_results: int) -> _Loops:
        extents = tuple(box[a][1] - box[a][0] for a in order)
        first = _first_lane_axis(context, shape, order, box)
        outer, inner = extents[:first], extents[first:]
        along = outer[-1] if outer else 1
        if most_results == 1 or not isinstance(along, int) or along == 1 or len(inner) != 1:
            return _Loops(box, outer, inner)
        steps = -(-along // most_results)
        return _Loops(box, (*outer[:-1], steps), inner, along, -(-along // steps))

    def alone(self, task_elements: int) -> tuple[int, tuple[tuple[str, int | str], ...]]:
        """The number of tasks (at most) where this is all there is, and what to call their sizes."""
        rows, lanes = most(product(self.outer)), most(product(self.inner))
        if rows == 1:
            chunk = max(1, min(lanes, task_elements))
            return -(-lanes // chunk), (("elements", chunk),)
        per_task = max(1, min(rows, task_elements // max(lanes * self.results, 1)))
        together = (("results", self.results),) if self.results > 1 else ()
        return -(-rows // per_task), (("rows", per_task), ("lanes", lanes), *together)

    @property
    def whole(self) -> Dim:
        """What tasks share: rows, or lanes where there is one row."""
        return product(self.outer) if product(self.outer) != 1 else product(self.inner)

    def share(self, tasks: int) -> int:
        """How much of the whole each of so many tasks does."""
        whole = most(self.whole)
        share = -(-whole // tasks)
        if product(self.outer) == 1 and tasks > 1:
            share = min(whole, round_up(share, LEAST_LANES))
        return share

    def tasks(self, most_tasks: int) -> Dim:
        """The number of tasks; a symbolic extent has as many as it needs of those that the largest one needs."""
        return most_tasks if isinstance(self.whole, int) else ceildiv(self.whole, self.share(most_tasks))

    def stores(
        self, context: LoweringContext, shape: Extents, order: Order, g: Symbol, tasks: int, least: int
    ) -> Iterator[Store]:
        """The stores of a task's share of the box, where there are so many tasks at most."""
        rows, lanes = product(self.outer), product(self.inner)
        flat = rows == 1
        whole, share = self.whole, self.share(tasks)
        limit = None if whole == share * tasks else sub(whole, mul(g, share))
        r, e = symbol("r", 0, last(rows)), symbol("e", 0, last(lanes))
        if flat:
            lane = symbol("l", 0, share - 1)
            shift: dict[Symbol, Index] = {e: add(mul(g, share), lane)}
            domain: tuple[Iter, ...] = (Iter(lane, share, limit),)
        else:
            row, lane = symbol("row", 0, share - 1), symbol("l", 0, last(lanes))
            shift = {r: add(mul(g, share), row), e: lane}
            domain = (Iter(row, share, limit), Iter.over(lane, lanes))
        places = (*_split(r, self.outer), *_split(e, self.inner))
        if self.results > 1:
            yield from self._together(context, shape, order, places, domain, shift, least)
            return
        outputs = outputs_at(context, shape, _in_box(self.box, order, places))
        for number, (value, at) in enumerate(outputs):
            read_back = number + 1 < len(outputs) and element_flops(context.inliner.at(value, at)) > READ_BACK_FLOPS
            store = store_at(context, value, at, domain, shift, non_temporal=not read_back and is_large(value, least))
            yield _prefetching(store, lane) if store.non_temporal else store
            if read_back:
                context.inliner.add_leaf(value, prefer_index(at, Load(context.buffers[value], at)))
        for value, _ in outputs:
            context.inliner.drop_leaf(value)

    def _together(
        self,
        context: LoweringContext,
        shape: Extents,
        order: Order,
        places: tuple[Index, ...],
        domain: tuple[Iter, ...],
        shift: dict[Symbol, Index],
        least: int,
    ) -> Iterator[Store]:
        """Those of several results side by side; the last ones begin earlier where there would be too few."""
        number = len(self.outer) - 1
        first = minimum(mul(places[number], self.results), self.along - self.results)
        for k in range(self.results):
            at = (*places[:number], add(first, k), *places[number + 1 :])
            ((value, where),) = outputs_at(context, shape, _in_box(self.box, order, at))
            store = store_at(context, value, where, domain, shift, non_temporal=is_large(value, least))
            yield replace(store, beside=k > 0)


def _prefetching(store: Store, lane: Symbol) -> Store:
    """The store with what it reads fetched ahead, where it takes long over each vector.

    A processor looks ahead over a few vectors of it only, and asks memory for no more than those.
    """
    if element_flops(store.value) < FETCHING_FLOPS:
        return store
    large = (x for x in dict.fromkeys(loads(store.value)) if x.buffer.most >= store.target.most)
    found = (x for x in large if address_step(x, lane) == 1)
    far = (reindex(x, {lane: add(lane, PREFETCH_BYTES // x.dtype.itemsize)}) for x in found)
    return replace(store, prefetch=tuple(x for x in far if isinstance(x, Load)))


def _split(flat: Symbol, extents: Extents) -> tuple[Index, ...]:
    return delinearize(flat, extents) if extents else ()


def _in_box(box: Box, order: Order, index: tuple[Index, ...]) -> tuple[Index, ...]:
    """The domain's index of a position in a box, given in the order of memory."""
    return tuple(add(i, start) for i, (start, _) in zip(scatter(order, index), box, strict=True))


FETCHING_FLOPS = 16
"""Operations an element from which a map fetches ahead: those of an exponential and a few more."""

PREFETCH_BYTES = 4096
"""From what is read to what is fetched meanwhile. 1/(1+exp(-x))*x + sqrt(abs(x))*2 - 1 of 4096² on Zen 5, of a copy of
1.7 ms: 0.88 without, 0.98 with it."""

READ_BACK_FLOPS = 8
"""An output that costs more is read again by outputs made of it, not computed again."""

MOST_BOXES = 9
LEAST_LANES = 16


def boxes_of(context: LoweringContext, shape: Extents, order: Order) -> list[Box]:
    """The domain, cut where joins and padding turn from one operand to the next; whole where the parts are thin."""
    cuts = _cuts(context, shape)
    parts: list[list[tuple[Dim, Dim]]] = []
    for axis, n in enumerate(shape):
        if not isinstance(n, int):
            parts.append([(0, n)])
            continue
        ends = [0, *sorted(cuts[axis]), n]
        found = list(pairwise(ends))
        behind = most(product(shape[a] for a in order[order.index(axis) + 1 :]))
        thin = sum(stop - start for start, stop in found if (stop - start) * behind < LEAST_LANES)
        parts.append([*found] if 4 * thin <= n else [(0, n)])
    if prod(map(len, parts)) > MOST_BOXES:
        return [tuple((0, n) for n in shape)]
    return list(combinations(*parts))


def _cuts(context: LoweringContext, shape: Extents) -> list[set[int]]:
    """For each axis, the positions at which a comparison of the axis' index with a constant changes."""
    cuts: list[set[int]] = [set() for _ in shape]
    point = fresh_index("p", shape)
    axes = {s: a for a, s in enumerate(point)}
    for value, at in outputs_at(context, shape, point):
        for node in walk(context.inliner.at(value, at)):
            match node:
                case Apply("lt" | "ge", (IndexValue(index), Const(int() as bound))):
                    symbols = symbols_of(index)
                    axis = axes.get(next(iter(symbols))) if len(symbols) == 1 else None
                    position = sub(index, point[axis]) if axis is not None else None
                    if axis is not None and isinstance(position, int) and 0 < bound - position < most(shape[axis]):
                        cuts[axis].add(bound - position)
    return cuts


def map_domain(context: LoweringContext) -> Extents:
    return max((v.type.shape for v in context.body.outputs), key=lambda shape: most(product(shape)))


def outputs_at(
    context: LoweringContext, shape: Extents, point: tuple[Index, ...]
) -> list[tuple[Value, tuple[Index, ...]]]:
    """Each output with the index it has at a domain point."""
    group = Group("map", shape)
    first = next(v for v in context.body.outputs if v.type.shape == shape)
    group.position[first] = group.identity
    known = 0
    while known < len(group.position):
        known = len(group.position)
        set_positions(group, list(group.position), context.producers, _is_map)
        positions_of(context.body, group)
    return [(v, position_at(_position(v, group), group, point)) for v in context.body.outputs]


def _is_map(op: Op) -> bool:
    return op.definition.kind in ("view", "elementwise")


def _position(value: Value, group: Group) -> Position:
    """Where an output lies; one that shares no points with the others, only their number, takes them in order."""
    if value in group.position:
        return group.position[value]
    if value.type.count != product(group.domain):
        raise LoweringError(f"{value} does not lie over the map's index space {group.domain}")
    return pure(reshape_index(group.identity, group.domain, value.type.shape))


def store_at(
    context: LoweringContext,
    value: Value,
    at: tuple[Index, ...],
    domain: tuple[Iter, ...],
    shift: dict[Symbol, Index],
    *,
    non_temporal: bool = False,
) -> Store:
    element = reindex(context.inliner.at(value, at), shift)
    return Store(domain, context.buffers[value], tuple(substitute(i, shift) for i in at), element, non_temporal)


def memory_order(context: LoweringContext, shape: Extents) -> Order:
    """The axes in the order of the first output's memory, outermost first."""
    first = next(v for v in context.body.outputs if v.type.shape == shape)
    strides = context.buffers[first].strides
    return tuple(sorted(range(len(shape)), key=lambda a: (-most(strides[a]) if shape[a] != 1 else -(10**18), a)))


def scatter(order: Order, index: tuple[Index, ...]) -> tuple[Index, ...]:
    result: list[Index] = [0] * len(order)
    for axis, i in zip(order, index, strict=True):
        result[axis] = i
    return tuple(result)


def _first_lane_axis(context: LoweringContext, shape: Extents, order: Order, box: Box) -> int:
    """The least k such that every access is linear over the box's axes ``order[k:]`` taken as one."""
    extents = tuple(box[a][1] - box[a][0] for a in order)
    for k in range(len(order)):
        lane = symbol("l", 0, last(product(extents[k:])))
        point = _in_box(box, order, (*fresh_index("o", extents[:k]), *delinearize(lane, extents[k:])))
        if k == len(order) - 1 or all(_even(context, v, at, lane) for v, at in outputs_at(context, shape, point)):
            return k
    return 0


def _even(context: LoweringContext, value: Value, at: tuple[Index, ...], lane: Symbol) -> bool:
    element = context.inliner.at(value, at)
    accesses = [*loads(element), Load(context.buffers[value], at)]
    return all(address_step(access, lane) is not None for access in accesses)
