# SPDX-License-Identifier: Apache-2.0
"""What row kernels on a GPU share: the rows of a group, taken flat, and where its values lie over them."""

from __future__ import annotations

from fusec.errors import LoweringError
from fusec.ir.attributes import ReduceAttributes
from fusec.ir.index import Index, Symbol, add, mul, product, sub, symbol, symbols_of
from fusec.ir.indexing import ceildiv, delinearize, last, substitute
from fusec.ir.nodes import Op, Value
from fusec.passes.families.row.cpu import merge_axes, row_group
from fusec.passes.families.row.online import is_one_or_more
from fusec.passes.families.row.schedule.gpu import GpuRowSchedule
from fusec.passes.groups.columns import rows_and_columns
from fusec.passes.lower.context import LoweringContext, expect_index, position_at
from fusec.passes.lower.lines import by_lines
from fusec.passes.lower.quotients import by_reciprocals
from fusec.tile.nodes import Iter, Store
from fusec.tile.scalar import Buffer, Load, ScalarExpr, reindex, symbols_in
from fusec.tile.views import broadcast_index, pure


class Rows:
    """Rows are the retained axes taken flat; a row is the reduced axes taken flat.

    ``anchors`` are the reductions of rows, ``sums`` those of columns beside them. A block takes ``schedule.rows`` rows.
    ``row`` and ``column`` are the iterators of its tile; ``point`` is the position in the reductions' domain, whose
    tight symbols ``shift`` turns into block and iterators. ``large``: where settled sums lie that are 1 at least.
    """

    def __init__(self, context: LoweringContext, schedule: GpuRowSchedule) -> None:
        self.context, self.schedule = context, schedule
        self.anchors, self.sums = rows_and_columns(context.body.ops, context.producers)
        shape = self.anchors[0].operands[0].type.shape
        axes = self.anchors[0].expect(ReduceAttributes).axes
        self.group = row_group(context, self.anchors)
        retained_axes = tuple(a for a in range(len(shape)) if a not in axes)
        retained = tuple(shape[a] for a in retained_axes)
        self.rows, self.length = product(retained), product(shape[a] for a in axes)
        self.r, self.j = symbol("r", 0, last(self.rows)), symbol("j", 0, last(self.length))
        reduced = delinearize(self.j, tuple(shape[a] for a in axes))
        self.point = merge_axes(
            len(shape), retained_axes, delinearize(self.r, retained) if retained else (), axes, reduced
        )
        self.blocks = ceildiv(self.rows, schedule.rows)
        self.g = symbol("g", 0, last(self.blocks))
        ri, ji = symbol("row", 0, schedule.rows - 1), symbol("col", 0, schedule.columns - 1)
        self.shift: dict[Symbol, Index] = {self.r: add(mul(self.g, schedule.rows), ri), self.j: ji}
        row_limit = None if self.rows % schedule.rows == 0 else sub(self.rows, mul(self.g, schedule.rows))
        self.row = Iter(ri, schedule.rows, row_limit)
        self.column = Iter(ji, schedule.columns, None if schedule.columns == self.length else self.length)
        self.large: set[Buffer] = set()

    @property
    def tile(self) -> tuple[Iter, ...]:
        """The domain of a block's elements."""
        return (self.row, self.column)

    @property
    def tile_index(self) -> tuple[Index, ...]:
        """Subscripts of a buffer that holds a block's elements."""
        return (self.row.var, self.column.var)

    def element(self, value: Value, index: tuple[Index, ...] | None = None) -> ScalarExpr:
        """The value at a point of the domain (by default the block's own) in the block's iterators."""
        made = reindex(self.context.inliner.at(value, self.point if index is None else index), self.shift)
        return by_lines(made, self.along)

    @property
    def along(self) -> frozenset[Symbol]:
        """The symbols of a position in a row."""
        return frozenset({self.column.var})

    def index_of(self, value: Value) -> tuple[Index, ...]:
        """Where an operand of a map over the domain is read at the block's point."""
        return pure(broadcast_index(self.point, value.type.shape))

    def position(self, value: Value) -> tuple[Index, ...]:
        """The value's own index at the block's point. LoweringError where it does not lie over the rows."""
        position = self.group.position.get(value)
        if position is None:
            raise LoweringError(f"{value} does not lie over the rows of its kernel")
        return position_at(position, self.group, self.point)

    def settle(self, op: Op, target: Buffer) -> None:
        """From now on the reduction's result is read from ``target``, which has an element for each row."""
        at = self.position(op.result)
        self.context.inliner.add_leaf(op.result, expect_index(op.result, at, Load(target, (self.row.var,))))
        if is_one_or_more(op, self.context.producers):
            self.large.add(target)

    def is_whole(self, value: Value) -> bool:
        """Whether the value has an element for each position in a row, not one for the row."""
        return self.length != 1 and any(self.j in symbols_of(i) for i in self.position(value))

    def store(self, value: Value) -> Store:
        """The statement that stores an output: what is rounded to a half type is not divided by a row's number, but
        multiplied."""
        at = self.position(value)
        index = tuple(substitute(i, self.shift) for i in at)
        element = self.element(value, at)
        whole = self.is_whole(value) or self.column.var in symbols_in(element)  # a row of one is read at its column
        if whole and value.type.dtype.bits == 16:
            element = by_reciprocals(element, {self.row.var}, self.along, self.large)
        return Store(self.tile if whole else (self.row,), self.context.buffers[value], index, element)
