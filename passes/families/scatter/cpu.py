# SPDX-License-Identifier: Apache-2.0
"""A scatter kernel on a CPU: each task has some rows of the result, and adds to them what goes there."""

from __future__ import annotations

from fusec.ir.attributes import GatherAttributes
from fusec.ir.index import Index, add, minimum, mul, sub, symbol
from fusec.ir.indexing import ceildiv, last, substitute
from fusec.ir.types import bool_, i64
from fusec.passes.families.scatter.schedule.cpu import ScatterSchedule
from fusec.passes.lower.context import LoweredGroup, LoweringContext
from fusec.tile.nodes import Alloc, Grid, If, Iter, Let, Loop, Map, Store
from fusec.tile.scalar import Apply, Buffer, IndexValue, Load, ScalarExpr, reindex


def lower_scatter(context: LoweringContext, schedule: ScatterSchedule) -> LoweredGroup:
    """Copies what is added to, then goes through the index once: the order of a row's terms is that of the index."""
    (op,) = context.anchors("scatter_add")
    axis, (base, index, value) = op.expect(GatherAttributes).axis, op.operands
    shape, count = base.type.shape, index.type.shape[0]
    others = [a for a in range(len(shape)) if a != axis]
    free = {a: symbol(f"d{a}", 0, last(shape[a])) for a in others}
    rows = ceildiv(shape[axis], schedule.parts)
    g, r, e = symbol("g", 0, schedule.parts - 1), symbol("r", 0, last(rows)), symbol("e", 0, last(count))
    t = symbol("t", 0, last(shape[axis]))
    start: Index = mul(g, rows)
    stop: Index = minimum(add(start, rows), shape[axis])
    leading = tuple(Iter.over(free[a], shape[a]) for a in others if a < axis)
    domain = tuple(Iter.over(free[a], shape[a]) for a in others if a > axis)

    def at(position: Index) -> tuple[Index, ...]:
        return tuple(position if a == axis else free[a] for a in range(len(shape)))

    target = context.buffers[op.result]
    even = isinstance(shape[axis], int) and shape[axis] == rows * schedule.parts
    own = Iter(r, rows, None if even else sub(stop, start)) if isinstance(rows, int) else Iter.over(r, rows)
    row = symbol("row", 0, last(shape[axis]))
    copied = reindex(context.inliner.at(base, at(row)), {row: add(start, r)})
    copy_domain = (own, *domain)
    copy = Store(copy_domain, target, tuple(substitute(i, {row: add(start, r)}) for i in at(row)), copied)

    place = Buffer(context.unique("place"), i64, (), (), "tile")
    found = context.inliner.at(index, (e,))
    wide: ScalarExpr = found if found.dtype is i64 else Apply("cast", (found,), i64)
    added = context.inliner.at(value, at(e))
    total = Apply("add", (Load(target, at(t)), added), target.dtype)
    write = Store(domain, target, at(t), total)
    inside = Apply(
        "logical_and",
        (
            Apply("ge", (IndexValue(t, i64), IndexValue(start, i64)), bool_),
            Apply("lt", (IndexValue(t, i64), IndexValue(stop, i64)), bool_),
        ),
        bool_,
    )
    body = (Map((), place, (), wide), Let(t, Load(place, ())), If(inside, (write,)) if schedule.parts > 1 else write)
    loop = Loop(e, 0, count, 1, body)
    grid = Grid((*leading, Iter.over(g, schedule.parts)), (copy, Alloc(place), loop))
    return context.finish("scatter", (grid,), (("parts", schedule.parts),))
