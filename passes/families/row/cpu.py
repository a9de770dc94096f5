# SPDX-License-Identifier: Apache-2.0
"""A row kernel: reductions over the same rows, and the maps around them, while the row is in cache."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fusec.errors import LoweringError
from fusec.ir.attributes import ReduceAttributes
from fusec.ir.index import Expr, Index, Symbol, add, minimum, mul, product, sub, symbol, symbols_of
from fusec.ir.indexing import ceildiv, delinearize, last, most, substitute
from fusec.ir.nodes import Op, Value
from fusec.ir.ops import OPS
from fusec.ir.types import Dim
from fusec.passes.families.row.schedule.cpu import RowSchedule
from fusec.passes.groups.partition import Group, positions_of, set_positions
from fusec.passes.lower.context import (
    LoweredGroup,
    LoweringContext,
    address_step,
    expect_index,
    is_large,
    position_at,
    prefer_index,
)
from fusec.passes.lower.overlap import pipelined_rows
from fusec.passes.lower.widened import widen_once
from fusec.tile.nodes import Alloc, Block, Grid, Iter, Map, Reduce, Statement, Store
from fusec.tile.scalar import Apply, Buffer, Const, Load, ScalarExpr, Subscript, loads, reindex, symbols_in, walk
from fusec.tile.views import Subscripts, fresh_index

SHORT_ROW = 24
"""Rows of at most so many elements fill vectors badly; from a vector and a half on they do."""

SHORT_ROW_FLOPS = 8
"""Flops of maps on each element from which such rows are worth taking side by side."""

STORE_ABOVE_FLOPS = 4
"""A value read by a later phase is kept in scratch when computing it again costs more than this."""


BRANCHING_BYTES = 128
"""Bytes of memory from which on a branch around reading them pays, though it be guessed wrongly half of the time."""

WIDENING_FLOPS = 2
"""What loading a number of 16 bits costs."""


@dataclass(frozen=True)
class _Space:
    """The loop structure: ``row`` is a loop variable, ``reduced`` an iterator, ``lane`` one of retained elements or
    None.

    ``shift`` turns the lane's tight symbol into block and lane. ``point`` is the domain point they make.
    """

    row: Symbol
    reduced: Iter
    lane: Iter | None
    shift: dict[Symbol, Index]
    point: tuple[Index, ...]
    retained: tuple[Index, ...]

    @property
    def whole(self) -> tuple[Iter, ...]:
        return (self.reduced,) if self.lane is None else (self.reduced, self.lane)

    @property
    def row_domain(self) -> tuple[Iter, ...]:
        if self.lane is None:
            return (Iter(symbol("one", 0, 0), 1),)
        return (self.lane,)

    @property
    def row_index(self) -> tuple[Index, ...]:
        return (0,) if self.lane is None else (self.lane.var,)

    @property
    def whole_index(self) -> tuple[Index, ...]:
        return (self.reduced.var, *self.row_index)


def lower_row(context: LoweringContext, schedule: RowSchedule) -> LoweredGroup:
    """Each task takes some rows; each row is reduced and mapped phase by phase."""
    anchors = [op for op in context.body.ops if op.definition.kind == "reduce"]
    shape = anchors[0].operands[0].type.shape
    axes = anchors[0].expect(ReduceAttributes).axes
    group = row_group(context, anchors)
    retained_axes = tuple(a for a in range(len(shape)) if a not in axes)
    reduced_inner = reduced_is_innermost(context, anchors[0], shape, retained_axes)
    writer = _Phases(context, schedule, group, anchors)
    if not retained_axes or (reduced_inner and not _is_short(context, shape, axes)):
        return writer.rows_on_reduced_lanes(shape, retained_axes, axes)
    return writer.rows_on_retained_lanes(shape, retained_axes, axes, flat=reduced_inner)


def _is_short(context: LoweringContext, shape: tuple[Dim, ...], axes: tuple[int, ...]) -> bool:
    """True where rows are too short to fill vectors with, many, and have enough computed on them to be worth gathering.

    Measured on Zen 5, softmax of 400,000 rows of 4: 0.47 ms with rows on lanes, 1.6 ms row by row. A plain sum
    loses by it at every length.
    """
    length, whole = most(product(shape[a] for a in axes)), most(product(shape))
    work = sum(
        op.definition.flops
        for op in context.body.ops
        if op.definition.kind == "elementwise" and op.result.type.most == whole
    )
    return length <= SHORT_ROW and whole >= 64 * length and work >= SHORT_ROW_FLOPS


def row_group(context: LoweringContext, anchors: list[Op]) -> Group:
    """The positions of a row group's values over the domain of its reductions."""
    attributes = anchors[0].expect(ReduceAttributes)
    shape, axes = anchors[0].operands[0].type.shape, attributes.axes
    group = Group("row", shape, reduced=axes)
    for op in anchors:
        group.position[op.operands[0]] = group.identity
        group.position[op.result] = tuple(i for a, i in enumerate(group.identity) if a not in axes)
    set_positions(group, [op.operands[0] for op in anchors], context.producers, is_map)
    positions_of(context.body, group)
    return group


def is_map(op: Op) -> bool:
    """Whether an op has an element for each of its operands'."""
    return op.definition.kind in ("view", "elementwise")


def reduced_is_innermost(
    context: LoweringContext, anchor: Op, shape: tuple[Dim, ...], retained: tuple[int, ...]
) -> bool:
    """True when neighbours along the reduced axes are nearer in memory than those along the last retained axis."""
    axes = tuple(a for a in range(len(shape)) if a not in retained)
    if not retained or not axes:
        return True
    tight = fresh_index("p", shape)
    try:
        found = loads(context.inliner.at(anchor.operands[0], tight))
    except LoweringError:
        found = []
    largest = max(found, key=lambda x: x.buffer.most, default=None)
    if largest is None:
        return True
    along_reduced = address_step(largest, tight[axes[-1]])
    along_retained = address_step(largest, tight[retained[-1]])
    return not (along_retained in (1, -1) and along_reduced not in (1, -1))


class _Phases:
    """Writes the statements of one row, reduction after reduction, then the stores."""

    def __init__(self, context: LoweringContext, schedule: RowSchedule, group: Group, anchors: list[Op]) -> None:
        self.context = context
        self.schedule = schedule
        self.group = group
        self.anchors = anchors
        self.statements: list[Statement] = []

    def rows_on_reduced_lanes(
        self, shape: tuple[Dim, ...], retained_axes: tuple[int, ...], axes: tuple[int, ...]
    ) -> LoweredGroup:
        retained = tuple(shape[a] for a in retained_axes)
        rows, length = product(retained), product(shape[a] for a in axes)
        r, j = symbol("r", 0, last(rows)), symbol("j", 0, last(length))
        retained_index = delinearize(r, retained) if retained else ()
        point = merge_axes(
            len(shape), retained_axes, retained_index, axes, delinearize(j, tuple(shape[a] for a in axes))
        )
        space = _Space(r, Iter.over(j, length), None, {}, point, retained_index)
        body = self._row(space)
        task = self.schedule.task_rows
        tasks = ceildiv(rows, task)
        g = symbol("g", 0, last(tasks))
        stop: Index = add(mul(g, task), task)
        if rows % task != 0:
            stop = minimum(stop, rows)
        before, body = widen_once(self.context, body, r, space.reduced, self.schedule.wide_bytes if task > 1 else 0)
        block = pipelined_rows(r, (mul(g, task), stop), body, space.reduced, staged=self.schedule.staged)
        grid = Grid((Iter.over(g, tasks),), (*before, *block))
        return self.context.finish("row", (grid,), (("rows", task), ("lanes", most(length))))

    def rows_on_retained_lanes(
        self, shape: tuple[Dim, ...], retained_axes: tuple[int, ...], axes: tuple[int, ...], *, flat: bool
    ) -> LoweredGroup:
        """Neighbours along the last retained axis, or along all of them taken as one (``flat``), lie on lanes."""
        split = 0 if flat else len(retained_axes) - 1
        outer = tuple(shape[a] for a in retained_axes[:split])
        inner = tuple(shape[a] for a in retained_axes[split:])
        rows, length, width = product(outer), product(shape[a] for a in axes), product(inner)
        lanes = min(self.schedule.lanes, most(width))
        r, j = symbol("r", 0, last(rows)), symbol("j", 0, last(length))
        whole, lane = symbol("w", 0, last(width)), symbol("l", 0, lanes - 1)
        blocks = ceildiv(width, lanes)
        c = symbol("c", 0, last(blocks))
        shift: dict[Symbol, Index] = {whole: add(mul(c, lanes), lane)}
        retained_index = (*(delinearize(r, outer) if outer else ()), *delinearize(whole, inner))
        point = merge_axes(
            len(shape), retained_axes, retained_index, axes, delinearize(j, tuple(shape[a] for a in axes))
        )
        limit = None if width % lanes == 0 else sub(width, mul(c, lanes))
        space = _Space(r, Iter.over(j, length), Iter(lane, lanes, limit), shift, point, retained_index)
        body = self._row(space)
        grid = Grid((Iter.over(r, rows), Iter.over(c, blocks)), body)
        return self.context.finish("row", (grid,), (("lanes", lanes), ("reduced", most(length))))

    def _row(self, space: _Space) -> Block:
        done: set[Op] = set()
        for op in self.anchors:
            self._store_shared(space, op.operands[0], done)
            self._reduce(space, op)
            done.add(op)
        for value in self.context.body.outputs:
            self._store(space, value)
        if self.schedule.overlaps and space.lane is None:
            self._fetch_next(space)
        return tuple(self.statements)

    def _fetch_next(self, space: _Space) -> None:
        """Brings the next row to the cache during the last map of this one, which waits for no memory itself.

        Softmax of 4096² on Zen 5: 3.7 ms during the exponentials, 2.9 during the stores.
        """
        whole = [i for i, s in enumerate(self.statements) if isinstance(s, Map | Store) and s.domain == space.whole]
        if not whole:
            return
        before = (s for s in self.statements[: whole[-1]] if isinstance(s, Map | Store | Reduce))
        rows = (x for x in dict.fromkeys(x for s in before for x in loads(s.value)) if _advances(x, space))
        prefetch = tuple(Load(x.buffer, tuple(_next(i, space.row) for i in x.index)) for x in rows)
        statement = self.statements[whole[-1]]
        assert isinstance(statement, Map | Store)
        self.statements[whole[-1]] = replace(statement, prefetch=prefetch)

    def _reduce(self, space: _Space, op: Op) -> None:
        dtype = op.result.type.dtype.accumulator
        width = 1 if space.lane is None else space.lane.extent
        target = Buffer(f"{self.context.name_of(op.result)}", dtype, (width,), (1,), "tile")
        element = self._at(space, op.operands[0], space.point)
        self.statements.append(Alloc(target))
        name = op.definition.reduction.name
        branches = name == "sum" and _is_worth_branching(element, space.whole[-1])
        self.statements.append(Reduce(space.whole, target, space.row_index, name, element, branches=branches))
        where = position_at(self.group.position[op.result], self.group, space.point)
        self._leaf(op.result, where, Load(target, space.row_index))

    def _leaf(self, value: Value, where: tuple[Index, ...], element: ScalarExpr) -> None:
        self.context.inliner.add_leaf(value, expect_index(value, where, element))

    def _store_shared(self, space: _Space, value: Value, done: set[Op]) -> None:
        """Keeps a reduction's operand in scratch when a later phase reads it and it is dear to compute again."""
        producer = self.context.producers.get(value)
        if producer is None or producer.definition.kind != "elementwise" or value in self.context.inliner.leaves:
            return
        if not self._read_later(value, done):
            return
        element = self._at(space, value, space.point)
        length = space.reduced.extent
        width = 1 if space.lane is None else space.lane.extent
        dtype = value.type.dtype.accumulator
        cost = sum(_flops(n) for n in walk(element))
        if cost <= STORE_ABOVE_FLOPS or length * width * dtype.itemsize > self.schedule.scratch_bytes:
            return
        target = Buffer(self.context.name_of(value), dtype, (length, width), (width, 1), "tile")
        self.statements.append(Alloc(target))
        if space.lane is None:
            target = Buffer(target.name, dtype, (length,), (1,), "tile")
            self.statements[-1] = Alloc(target)
            index: tuple[Index, ...] = (space.reduced.var,)
        else:
            index = space.whole_index
        self.statements.append(Map(space.whole, target, index, element))
        where = position_at(self.group.position.get(value, self.group.identity), self.group, space.point)
        self.context.inliner.add_leaf(value, prefer_index(where, Load(target, index)))

    def _read_later(self, value: Value, done: set[Op]) -> bool:
        users = [op for op in self.context.body.ops if value in op.operands and op not in done]
        return len(users) > 1 or value in self.context.body.outputs

    def _store(self, space: _Space, value: Value) -> None:
        position = self.group.position.get(value)
        if position is None:
            raise LoweringError(f"{value} does not lie over the rows of its kernel")
        at = position_at(position, self.group, space.point)
        element = self._at(space, value, at)
        index = tuple(substitute(i, space.shift) for i in at)
        whole = any(s in _symbols(index) for s in (space.reduced.var,)) if space.reduced.extent != 1 else True
        domain = space.whole if whole else space.row_domain
        non_temporal = is_large(value, self.schedule.non_temporal_bytes)
        self.statements.append(Store(domain, self.context.buffers[value], index, element, non_temporal))

    def _at(self, space: _Space, value: Value, index: Subscripts) -> ScalarExpr:
        return reindex(self.context.inliner.at(value, index), space.shift)


def _is_worth_branching(element: ScalarExpr, last: Iter) -> bool:
    """Whether terms of a sum are 0 for all points of the last iterator where a mask that is read doesn't hold, and
    would else read as many bytes as a wrong guess of the branch costs."""
    if not (isinstance(element, Apply) and element.op == "select"):
        return False
    seen, term, other = element.args
    if not isinstance(other, Const) or other.value != 0 or last.var in symbols_in(seen) or not loads(seen):
        return False
    along = [x.dtype.itemsize for x in loads(term) if x.buffer.space == "parameter" and last.var in symbols_in(x)]
    return last.extent * max(along, default=0) >= BRANCHING_BYTES


def _advances(load: Load, space: _Space) -> bool:
    """Whether a load takes neighbours along a row, and others for the next row."""
    steps = address_step(load, space.reduced.var), address_step(load, space.row)
    return load.buffer.space != "tile" and steps[0] == 1 and steps[1] not in (None, 0)


def _next(i: Subscript, row: Symbol) -> Subscript:
    return substitute(i, {row: add(row, 1)}) if isinstance(i, int | Expr) else i


def _symbols(index: tuple[Index, ...]) -> set[Symbol]:
    return {s for i in index for s in symbols_of(i)}


def merge_axes(
    rank: int, left: tuple[int, ...], retained: tuple[Index, ...], axes: tuple[int, ...], reduced: tuple[Index, ...]
) -> tuple[Index, ...]:
    point: list[Index] = [0] * rank
    for axis, i in (*zip(left, retained, strict=True), *zip(axes, reduced, strict=True)):
        point[axis] = i
    return tuple(point)


def _flops(node: ScalarExpr) -> int:
    if isinstance(node, Load) and node.buffer.dtype.is_half:
        return WIDENING_FLOPS
    return OPS[node.op].flops if isinstance(node, Apply) and node.op in OPS else 0
