# SPDX-License-Identifier: Apache-2.0
"""A map kernel on a GPU: each block computes a run of neighbouring output elements, or a tile of a transposition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from math import prod

from fusec.errors import LoweringError
from fusec.ir.index import Expr, Index, Symbol, add, minimum, mul, product, sub, symbol
from fusec.ir.indexing import ceildiv, delinearize, divisions_in, last
from fusec.ir.types import Dim, fixed
from fusec.passes.families.map.coarsen import coarsened_axis
from fusec.passes.families.map.cpu import boxes_of, map_domain, memory_order, outputs_at, scatter, store_at
from fusec.passes.families.map.schedule.gpu import GpuMapSchedule
from fusec.passes.lower.context import LoweredGroup, LoweringContext, address_step
from fusec.tile.nodes import Grid, Iter, Statement
from fusec.tile.scalar import IndexValue, Load, loads, offset_of, walk
from fusec.tile.views import fresh_index

Shift = Callable[[tuple[Index, ...]], tuple[Index, ...]]
"""From one position of a domain to another."""

MOST_PARTS = 4
"""Parts of a domain that one block computes."""

LEAST_TRANSPOSED = 256
"""Positions of a transposition below which a tile does not pay."""


def lower_map(context: LoweringContext, schedule: GpuMapSchedule) -> LoweredGroup:
    """The index space is taken flat, in the order of the first output's memory, or in tiles of two axes."""
    axes = transposed_axes(context) if schedule.transposed else None
    if axes is not None:
        return _tiles(context, schedule, *axes)
    shape = map_domain(context)
    order = memory_order(context, shape)
    if schedule.results > 1:
        extents, shifts = _coarse(context, schedule.results, shape)
    else:
        extents, shifts = _parts(context, shape, order)
    if schedule.vector > 1:
        return _vectors(context, schedule, shape, order)
    size, block = product(extents), schedule.elements
    blocks = ceildiv(size, block)
    g, e = symbol("g", 0, last(blocks)), symbol("e", 0, last(size))
    lane = symbol("i", 0, block - 1)
    index = scatter(order, delinearize(e, tuple(extents[a] for a in order)) if shape else ())
    shift: dict[Symbol, Index] = {e: add(mul(g, block), lane)}
    limit = None if size % block == 0 else sub(size, mul(g, block))
    domain = (Iter(lane, block, limit),)
    body: list[Statement] = []
    for shifted in shifts:
        body += [store_at(context, v, at, domain, shift) for v, at in outputs_at(context, shape, shifted(index))]
    return context.finish("map", (Grid((Iter.over(g, blocks),), tuple(body)),), schedule.describe())


def _vectors(
    context: LoweringContext, schedule: GpuMapSchedule, shape: tuple[Dim, ...], order: tuple[int, ...]
) -> LoweredGroup:
    """Blocks of rows, each of which is a vector along the innermost axis."""
    vector = schedule.vector
    extents = fixed(tuple(shape[a] for a in order))
    counts = (*extents[:-1], extents[-1] // vector)
    size, block = prod(counts), schedule.elements // vector
    blocks = -(-size // block)
    g, e = symbol("g", 0, blocks - 1), symbol("e", 0, size - 1)
    row, lane = symbol("i", 0, block - 1), symbol("j", 0, vector - 1)
    *outer, along = delinearize(e, counts)
    index = scatter(order, (*outer, add(mul(along, vector), lane)))
    shift: dict[Symbol, Index] = {e: add(mul(g, block), row)}
    limit = None if size % block == 0 else sub(size, mul(g, block))
    domain = (Iter(row, block, limit), Iter(lane, vector))
    body = tuple(store_at(context, v, at, domain, shift) for v, at in outputs_at(context, shape, index))
    return context.finish("map", (Grid((Iter(g, blocks),), body),), schedule.describe())


def divisions(context: LoweringContext) -> tuple[int, int]:
    """The extent of the axis along which the first output lies in memory, and how many divisions and choices say where
    the elements that one is made of lie; 1 and 0 where an extent is symbolic, or a domain of equal parts is."""
    domain = map_domain(context)
    if not domain or not all(isinstance(n, int) for n in domain):
        return 1, 0
    shape = fixed(domain)
    order = memory_order(context, shape)
    if len(_parts(context, shape, order)[1]) > 1:
        return 1, 0
    flat = symbol("e", 0, prod(shape) - 1)
    index = scatter(order, delinearize(flat, tuple(shape[a] for a in order)))
    found: set[Expr] = set()
    for value, at in outputs_at(context, shape, index):
        for node in walk(context.inliner.at(value, at)):
            if isinstance(node, Load):
                offset = offset_of(node.buffer, node.index)
                found |= divisions_in(offset) if offset is not None else set()
            elif isinstance(node, IndexValue):
                found |= divisions_in(node.index)
    return shape[order[-1]], len(found)


def _coarse(context: LoweringContext, most: int, shape: tuple[Dim, ...]) -> tuple[tuple[Dim, ...], list[Shift]]:
    """Extents of lanes that compute ``most`` results each along an axis, and from a lane's position to each result's.

    The last lane computes the axis' last result again where it would go beyond.
    """
    axis = coarsened_axis(context, fixed(shape))
    if axis is None:
        raise LoweringError("several results of a lane along no axis")
    extent = fixed(shape)[axis]
    results = min(most, extent)
    extents = tuple(-(-extent // results) if a == axis else n for a, n in enumerate(shape))

    def result(k: int, index: tuple[Index, ...]) -> tuple[Index, ...]:
        along = minimum(add(mul(index[axis], results), k), extent - 1)
        return (*index[:axis], along, *index[axis + 1 :])

    return extents, [partial(result, k) for k in range(results)]


def _parts(
    context: LoweringContext, shape: tuple[Dim, ...], order: tuple[int, ...]
) -> tuple[tuple[Dim, ...], list[Shift]]:
    """Extents of equal parts that the domain falls into where joins turn from one operand to the next, and from a
    position in the first to that in each of them.

    A block computes the same position of each part: what several of them read (both halves of a rotary embedding) it
    loads once, and none of them asks where it is.
    """
    boxes = boxes_of(context, shape, order)
    sizes = {tuple(stop - start for start, stop in box) for box in boxes}
    if len(sizes) > 1 or len(boxes) > MOST_PARTS:
        return shape, [tuple]
    starts = [tuple(start for start, _ in box) for box in boxes]
    return sizes.pop(), [partial(_behind, start) for start in starts]


def _behind(start: tuple[Dim, ...], index: tuple[Index, ...]) -> tuple[Index, ...]:
    return tuple(map(add, index, start))


def transposed_axes(context: LoweringContext) -> tuple[int, int] | None:
    """The axis along which the first output lies in memory and the one along which most that is read does; None if one.

    A block that walks along the first alone would fetch a whole sector of memory for each element it reads.
    """
    domain = map_domain(context)
    if not all(isinstance(n, int) for n in domain):
        return None
    shape = fixed(domain)
    live = [a for a in memory_order(context, shape) if shape[a] > 1]
    if len(live) < 2:
        return None
    along = live[-1]
    point = fresh_index("p", shape)
    found: Counter[int] = Counter()
    for value, at in outputs_at(context, shape, point):
        accesses = [*loads(context.inliner.at(value, at)), Load(context.buffers[value], at)]
        for access in dict.fromkeys(accesses):
            size = prod(fixed(access.buffer.shape))
            if 4 * size < prod(shape) or address_step(access, point[along]) in (None, 0, 1, -1):
                continue
            found.update({a: size for a in live[:-1] if address_step(access, point[a]) in (1, -1)})
    if not found:
        return None
    across = max(found, key=lambda a: found[a])
    return (along, across) if shape[along] * shape[across] >= LEAST_TRANSPOSED else None


def _tiles(context: LoweringContext, schedule: GpuMapSchedule, along: int, across: int) -> LoweredGroup:
    """Blocks neighbouring along the output's memory run one after another."""
    shape = fixed(map_domain(context))
    outer = [a for a in range(len(shape)) if a not in (along, across)]
    point = fresh_index("p", shape)
    steps = {along: schedule.elements, across: schedule.transposed}
    counts = {axis: -(-shape[axis] // step) for axis, step in steps.items()}
    rest = (*(shape[a] for a in outer), counts[across])
    g, o = symbol("g", 0, counts[along] - 1), symbol("o", 0, prod(rest) - 1)
    *outer_index, row = delinearize(o, rest)
    shift: dict[Symbol, Index] = {point[a]: i for a, i in zip(outer, outer_index, strict=True)}
    domain = []
    for axis, block, name in ((across, row, "j"), (along, g, "i")):
        lane = symbol(name, 0, steps[axis] - 1)
        start = mul(block, steps[axis])
        shift[point[axis]] = add(start, lane)
        limit = None if shape[axis] % steps[axis] == 0 else sub(shape[axis], start)
        domain.append(Iter(lane, steps[axis], limit))
    body = tuple(store_at(context, v, at, tuple(domain), shift) for v, at in outputs_at(context, shape, point))
    grid = Grid((Iter(o, prod(rest)), Iter(g, counts[along])), body)
    return context.finish("map", (grid,), schedule.describe())
