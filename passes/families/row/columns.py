# SPDX-License-Identifier: Apache-2.0
"""A row kernel on a GPU that adds up columns on the way.

Each CTA takes one part of the rows, tile after tile: it reads a tile once, reduces and maps its rows, and adds it to
the sums of columns, which stay in registers until its last row (:mod:`fusec.passes.groups.columns`).
"""

from __future__ import annotations

from dataclasses import replace

from fusec.errors import LoweringError
from fusec.ir.index import Index, add, minimum, mul, sub, symbol
from fusec.ir.indexing import delinearize, last, substitute
from fusec.ir.types import f32
from fusec.passes.families.row.cpu import is_map
from fusec.passes.families.row.gpu import WholeRows
from fusec.passes.families.row.schedule.gpu import GpuRowSchedule
from fusec.passes.groups.columns import ColumnSum
from fusec.passes.groups.partition import positions_of, set_positions
from fusec.passes.lower.blocks import WALKING_BLOCKS
from fusec.passes.lower.context import LoweredGroup, LoweringContext
from fusec.tile.nodes import Alloc, Grid, Iter, Loop, Map, Reduce, Statement, Store
from fusec.tile.scalar import Buffer, Const, Load, ScalarExpr, rewrite, symbols_in

MOST_VECTORS = 2
"""Arguments of columns (a norm's weight) that are held in registers over all rows."""


def lower_rows_and_columns(context: LoweringContext, schedule: GpuRowSchedule) -> LoweredGroup:
    """Rows are read once, padded to a power of two, and leave parts of the columns' sums in memory."""
    return _RowsAndColumns(context, schedule).lower()


class _RowsAndColumns(WholeRows):
    def __init__(self, context: LoweringContext, schedule: GpuRowSchedule) -> None:
        super().__init__(context, schedule)
        first = self.sums[0]
        if any((s.parts, s.height) != (first.parts, first.height) for s in self.sums):
            raise LoweringError("sums of columns over different parts of the rows")
        self.height, self.blocks = first.height, first.parts
        self.g, self.start = symbol("g", 0, last(self.blocks)), symbol("t", 0, last(self.height))
        begin = add(mul(self.g, self.height), self.start)
        self.shift[self.r] = add(begin, self.row.var)
        limit: Index | None = None if self.height % schedule.rows == 0 else sub(self.height, self.start)
        if self.rows != self.height * self.blocks:
            rest = sub(self.rows, begin)
            limit = minimum(sub(self.height, self.start), rest)
        self.row = Iter(self.row.var, schedule.rows, limit)
        self.held: dict[ScalarExpr, Buffer] = {}
        for s in self.sums:
            position = s.position(self.group)
            if position is None:
                raise LoweringError(f"{s.op.result} does not add up columns of the rows of its kernel")
            self.group.position.setdefault(s.added, position)
            set_positions(self.group, [s.added], context.producers, is_map)
        positions_of(context.body, self.group)

    def lower(self) -> LoweredGroup:
        lanes = {s: self.tile_of(self.context.unique("lanes"), f32) for s in self.sums}
        made = {s.op.result for s in self.sums}
        self.reduce_rows()
        self.code += [self.store(value) for value in self.context.body.outputs if value not in made]
        for s, buffer in lanes.items():
            element = self.element(s.added, self.position(s.added))
            self.code.append(Reduce(self.tile, buffer, self.tile_index, "sum", element, fresh=False))
        body = tuple(self._from_held(statement) for statement in self.code)
        before = [x for e, held in self.held.items() for x in (Alloc(held), Map(self._whole, held, self.tile_index, e))]
        for buffer in lanes.values():
            before += [Alloc(buffer), Map(self._whole, buffer, self.tile_index, Const(0.0, buffer.dtype))]
        after = [x for s, buffer in lanes.items() for x in self._leave(s, buffer)]
        walk = Loop(self.start, 0, self.height, self.schedule.rows, body)
        grid = Grid((Iter.over(self.g, self.blocks),), (*before, walk, *after))
        return self.context.finish("row", (grid,), self.schedule.describe(), WALKING_BLOCKS)

    @property
    def _whole(self) -> tuple[Iter, ...]:
        """A tile, the same for all rows."""
        return (Iter(self.row.var, self.schedule.rows), self.column)

    def _from_held(self, s: Statement) -> Statement:
        """The statement with what all rows read alike read from registers."""
        if not isinstance(s, Map | Store | Reduce):
            return s

        def change(node: ScalarExpr) -> ScalarExpr | None:
            if not isinstance(node, Load) or node.buffer.space != "parameter" or node.gathers:
                return None
            if not node.dtype.is_float or node.dtype.bits > 32 or symbols_in(node) != {self.column.var}:
                return None
            if node not in self.held:
                if len(self.held) == MOST_VECTORS:
                    return None
                self.held[node] = self.tile_of(self.context.unique("held"), f32)
            return Load(self.held[node], self.tile_index)

        return replace(s, value=rewrite(s.value, change))

    def _leave(self, s: ColumnSum, lanes: Buffer) -> list[Statement]:
        """Stores the sums of a part's columns."""
        columns = tuple(substitute(i, self.shift) for i in delinearize(self.j, s.rest))
        target, index = self.context.buffers[s.op.result], (self.g, *columns)
        if self.schedule.rows == 1:
            return [Store(self._whole, target, index, Load(lanes, self.tile_index))]
        total = Buffer(self.context.name_of(s.op.result), lanes.dtype, (self.schedule.columns,), (1,), "tile")
        added = Reduce(self._whole, total, (self.column.var,), "sum", Load(lanes, self.tile_index))
        return [Alloc(total), added, Store((self.column,), target, index, Load(total, (self.column.var,)))]
