# SPDX-License-Identifier: Apache-2.0
"""Thread coarsening: a lane computes several neighbouring results of a map, which share what they read.

Windows of results side by side overlap: of a 7×7 window the next one along a row reads 7 positions more, not 49.
"""

from __future__ import annotations

from math import prod

from fusec.ir.index import Symbol
from fusec.ir.types import fixed
from fusec.passes.families.map.cpu import map_domain, memory_order, outputs_at
from fusec.passes.families.map.schedule.gpu import SharedLoads
from fusec.passes.lower.context import LoweringContext
from fusec.tile.scalar import Load, ScalarExpr, loads, reindex
from fusec.tile.views import fresh_index

FEWEST_LOADS = 4
MOST_FURTHER = 0.75
"""The part of its loads that another result adds, up to which results are computed together."""


def shared_loads(context: LoweringContext) -> SharedLoads | None:
    """What neighbours along the axis before the lanes' share; None where that is little."""
    domain = map_domain(context)
    if not all(isinstance(n, int) for n in domain):
        return None
    shape = fixed(domain)
    axis = coarsened_axis(context, shape)
    if axis is None:
        return None
    point = fresh_index("p", shape)
    elements = [context.inliner.at(value, at) for value, at in outputs_at(context, shape, point)]
    if len(_read(elements)) < FEWEST_LOADS:
        return None
    symbol = point[axis]
    assert isinstance(symbol, Symbol)
    # A position in the middle of the axis, and the one beside it: no padding is in the way of the numbers.
    middle = shape[axis] // 2
    first, second = (_read([reindex(e, {symbol: middle + k}) for e in elements]) for k in (0, 1))
    large, more = (sum(_is_large(load, shape) for load in reads) for reads in (first, second - first))
    if large < FEWEST_LOADS or more > MOST_FURTHER * large:
        return None
    return SharedLoads(axis, shape[axis], len(first), len(second - first))


def _is_large(load: Load, shape: tuple[int, ...]) -> bool:
    """Whether a load reads an array of about the domain's size, not a vector that lies in a cache."""
    return 32 * prod(fixed(load.buffer.shape)) >= prod(shape)


def coarsened_axis(context: LoweringContext, shape: tuple[int, ...]) -> int | None:
    """The axis before the one along which the first output lies in memory; None where it has one axis."""
    live = [a for a in memory_order(context, shape) if shape[a] > 1]
    return live[-2] if len(live) > 1 else None


def _read(elements: list[ScalarExpr]) -> set[Load]:
    return {load for element in elements for load in loads(element)}
