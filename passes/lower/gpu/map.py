"""A map kernel on a GPU: each block computes a run of neighbouring output elements."""

from __future__ import annotations

from math import prod

from fusec.ir.index import Index, Symbol, add, delinearize, mul, sub, symbol
from fusec.ir.types import fixed
from fusec.passes.lower.frame import Frame, LoweredGroup
from fusec.passes.lower.map import map_domain, memory_order, outputs_at, scatter, store_at
from fusec.passes.schedule.gpu import GpuMapSchedule
from fusec.tile.nodes import Grid, Iter


def lower_map(frame: Frame, schedule: GpuMapSchedule) -> LoweredGroup:
    """The index space is taken flat, in the order of the first output's memory."""
    shape = fixed(map_domain(frame))
    order = memory_order(frame, shape)
    size, block = prod(shape), schedule.elements
    blocks = -(-size // block)
    g, e = symbol("g", 0, max(blocks - 1, 0)), symbol("e", 0, max(size - 1, 0))
    lane = symbol("i", 0, block - 1)
    point = scatter(order, delinearize(e, tuple(shape[a] for a in order)) if shape else ())
    shift: dict[Symbol, Index] = {e: add(mul(g, block), lane)}
    limit = None if size % block == 0 else sub(size, mul(g, block))
    domain = (Iter(lane, block, limit),)
    body = tuple(store_at(frame, v, at, domain, shift) for v, at in outputs_at(frame, shape, point))
    return frame.finish("map", (Grid((Iter(g, blocks),), body),), schedule.describe())
