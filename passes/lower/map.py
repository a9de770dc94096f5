"""A map kernel: every output element on its own, over the outputs' shared index space."""

from __future__ import annotations

from math import prod

from fusec.errors import LoweringError
from fusec.ir.graph import Op, Value
from fusec.ir.index import Index, Symbol, add, delinearize, mul, sub, substitute, symbol
from fusec.passes.fuse.partition import Group, Position, place_upstream, positions_of
from fusec.passes.inline import fresh_index, pure, reshape_index
from fusec.passes.lower.frame import Frame, LoweredGroup, address_step, place
from fusec.passes.schedule.map import MapSchedule
from fusec.tile.nodes import Grid, Iter, Store
from fusec.tile.scalar import Load, ScalarExpr, loads, reindex


def lower_map(frame: Frame, schedule: MapSchedule) -> LoweredGroup:
    """Rows of the outermost axes go to tasks; the innermost axes that every load reads evenly are one lane axis."""
    shape = map_domain(frame)
    order = memory_order(frame, shape)
    lanes_from = _first_lane_axis(frame, shape, order)
    outer = tuple(shape[a] for a in order[:lanes_from])
    inner = tuple(shape[a] for a in order[lanes_from:])
    rows, lanes = prod(outer), prod(inner)
    if rows == 1:
        return _lower_flat(frame, schedule, shape, order, lanes)
    per_task = max(1, min(rows, schedule.task_elements // max(lanes, 1)))
    g = symbol("g", 0, -(-rows // per_task) - 1)
    r, lane = symbol("r", 0, rows - 1), symbol("l", 0, lanes - 1)
    row = symbol("row", 0, per_task - 1)
    point = scatter(order, (*delinearize(r, outer), *delinearize(lane, inner)))
    shift: dict[Symbol, Index] = {r: add(mul(g, per_task), row)}
    domain = (Iter(row, per_task, sub(rows, mul(g, per_task))), Iter(lane, lanes))
    body = tuple(store_at(frame, v, at, domain, shift) for v, at in outputs_at(frame, shape, point))
    tasks = -(-rows // per_task)
    return frame.finish("map", (Grid((Iter(g, tasks),), body),), (("rows", per_task), ("lanes", lanes)))


def _lower_flat(
    frame: Frame, schedule: MapSchedule, shape: tuple[int, ...], order: tuple[int, ...], size: int
) -> LoweredGroup:
    chunk = max(1, min(size, schedule.task_elements))
    tasks = -(-size // chunk)
    g, e = symbol("g", 0, max(tasks - 1, 0)), symbol("e", 0, max(size - 1, 0))
    lane = symbol("l", 0, chunk - 1)
    point = scatter(order, delinearize(e, tuple(shape[a] for a in order)) if shape else ())
    shift: dict[Symbol, Index] = {e: add(mul(g, chunk), lane)}
    limit = None if size % chunk == 0 else sub(size, mul(g, chunk))
    domain = (Iter(lane, chunk, limit),)
    body = tuple(store_at(frame, v, at, domain, shift) for v, at in outputs_at(frame, shape, point))
    return frame.finish("map", (Grid((Iter(g, tasks),), body),), (("elements", chunk),))


def map_domain(frame: Frame) -> tuple[int, ...]:
    return max((v.type.static_shape for v in frame.body.outputs), key=prod)


def outputs_at(frame: Frame, shape: tuple[int, ...], point: tuple[Index, ...]) -> list[tuple[Value, tuple[Index, ...]]]:
    """Each output with the index it has at a domain point."""
    group = Group("map", shape)
    first = next(v for v in frame.body.outputs if v.type.static_shape == shape)
    group.position[first] = group.identity
    known = 0
    while known < len(group.position):
        known = len(group.position)
        for value in list(group.position):
            place_upstream(group, value, frame.producers, _is_map)
        positions_of(frame.body, group)
    return [(v, place(_position(v, group), group, point)) for v in frame.body.outputs]


def _is_map(op: Op) -> bool:
    return op.definition.kind in ("view", "elementwise")


def _position(value: Value, group: Group) -> Position:
    """Where an output lies; one that shares no points with the others, only their number, takes them in order."""
    if value in group.position:
        return group.position[value]
    if value.type.size != prod(group.domain):
        raise LoweringError(f"{value} does not lie over the map's index space {group.domain}")
    return pure(reshape_index(group.identity, group.domain, value.type.static_shape))


def store_at(
    frame: Frame, value: Value, at: tuple[Index, ...], domain: tuple[Iter, ...], shift: dict[Symbol, Index]
) -> Store:
    element = reindex(frame.inliner.at(value, at), shift)
    return Store(domain, frame.buffers[value], tuple(substitute(i, shift) for i in at), element)


def memory_order(frame: Frame, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The axes in the order of the first output's memory, outermost first."""
    first = next(v for v in frame.body.outputs if v.type.static_shape == shape)
    strides = frame.buffers[first].strides
    return tuple(sorted(range(len(shape)), key=lambda a: (-strides[a] if shape[a] > 1 else -(10**18), a)))


def scatter(order: tuple[int, ...], index: tuple[Index, ...]) -> tuple[Index, ...]:
    result: list[Index] = [0] * len(order)
    for axis, i in zip(order, index, strict=True):
        result[axis] = i
    return tuple(result)


def _first_lane_axis(frame: Frame, shape: tuple[int, ...], order: tuple[int, ...]) -> int:
    """The least k such that every access is linear over the axes ``order[k:]`` taken as one."""
    for k in range(len(order)):
        inner = tuple(shape[a] for a in order[k:])
        lane = symbol("l", 0, max(prod(inner) - 1, 0))
        outer = fresh_index("o", tuple(shape[a] for a in order[:k]))
        point = scatter(order, (*outer, *delinearize(lane, inner)))
        if k == len(order) - 1 or all(_even(frame, v, at, lane) for v, at in outputs_at(frame, shape, point)):
            return k
    return 0


def _even(frame: Frame, value: Value, at: tuple[Index, ...], lane: Symbol) -> bool:
    element = frame.inliner.at(value, at)
    accesses = [*_all_loads(element), Load(frame.buffers[value], at)]
    return all(address_step(access, lane) is not None for access in accesses)


def _all_loads(element: ScalarExpr) -> list[Load]:
    return loads(element)
