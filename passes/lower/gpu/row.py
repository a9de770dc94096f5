"""A row kernel on a GPU: a block holds whole rows in registers, reduces them and maps them."""

from __future__ import annotations

from math import prod

from fusec.errors import LoweringError
from fusec.ir.attributes import ReduceAttributes
from fusec.ir.graph import Op, Value
from fusec.ir.index import Index, Symbol, add, delinearize, mul, sub, substitute, symbol, symbols_of
from fusec.passes.lower.frame import Frame, LoweredGroup, expect_index, place
from fusec.passes.lower.row import REDUCTIONS, accumulator_of, merge_axes, row_group
from fusec.passes.schedule.gpu import MAX_COLUMNS, GpuRowSchedule
from fusec.tile.nodes import Alloc, Grid, Iter, Map, Reduce, Statement, Store
from fusec.tile.scalar import Buffer, Load, ScalarExpr, reindex


def lower_row(frame: Frame, schedule: GpuRowSchedule) -> LoweredGroup:
    """Rows are the kept axes taken flat; a row is the reduced axes taken flat, padded to a power of two."""
    return _Rows(frame, schedule).lower()


class _Rows:
    def __init__(self, frame: Frame, schedule: GpuRowSchedule) -> None:
        self.frame, self.schedule = frame, schedule
        self.anchors = [op for op in frame.body.ops if op.definition.kind == "reduce"]
        shape = self.anchors[0].operands[0].type.static_shape
        assert isinstance(self.anchors[0].attributes, ReduceAttributes)
        axes = self.anchors[0].attributes.axes
        self.group = row_group(frame, self.anchors)
        kept_axes = tuple(a for a in range(len(shape)) if a not in axes)
        kept = tuple(shape[a] for a in kept_axes)
        self.rows, self.length = prod(kept), prod(shape[a] for a in axes)
        if schedule.columns > MAX_COLUMNS:
            raise LoweringError(f"rows of {self.length} elements are wider than a block")
        r, j = symbol("r", 0, max(self.rows - 1, 0)), symbol("j", 0, max(self.length - 1, 0))
        reduced = delinearize(j, tuple(shape[a] for a in axes))
        self.point = merge_axes(len(shape), kept_axes, delinearize(r, kept) if kept else (), axes, reduced)
        blocks = -(-self.rows // schedule.rows)
        self.g = symbol("g", 0, max(blocks - 1, 0))
        ri, ji = symbol("row", 0, schedule.rows - 1), symbol("col", 0, schedule.columns - 1)
        self.shift: dict[Symbol, Index] = {r: add(mul(self.g, schedule.rows), ri), j: ji}
        row_limit = None if self.rows % schedule.rows == 0 else sub(self.rows, mul(self.g, schedule.rows))
        self.row = Iter(ri, schedule.rows, row_limit)
        self.column = Iter(ji, schedule.columns, None if schedule.columns == self.length else self.length)
        self.blocks = blocks
        self.code: list[Statement] = []

    def lower(self) -> LoweredGroup:
        for op in self.anchors:
            self._keep(op.operands[0])
            self._reduce(op)
        for value in self.frame.body.outputs:
            self._store(value)
        grid = Grid((Iter(self.g, self.blocks),), tuple(self.code))
        return self.frame.finish("row", (grid,), self.schedule.describe())

    def _element(self, value: Value, index: tuple[Index, ...]) -> ScalarExpr:
        return reindex(self.frame.inliner.at(value, index), self.shift)

    def _keep(self, value: Value) -> None:
        """A reduction's operand stays in registers when something else reads it, too."""
        producer = self.frame.producers.get(value)
        users = [op for op in self.frame.body.ops if value in op.operands]
        if producer is None or producer.definition.kind != "elementwise" or value in self.frame.inliner.leaves:
            return
        if len(users) < 2 and value not in self.frame.body.outputs:
            return
        shape = (self.schedule.rows, self.schedule.columns)
        tile = Buffer(self.frame.name_of(value), accumulator_of(value.type.dtype), shape, (shape[1], 1), "tile")
        index = (self.row.var, self.column.var)
        element = self._element(value, self.point)
        self.code += [Alloc(tile), Map((self.row, self.column), tile, index, element)]
        at = place(self.group.position.get(value, self.group.identity), self.group, self.point)
        self.frame.inliner.add_leaf(value, expect_index(value, at, Load(tile, index)))

    def _reduce(self, op: Op) -> None:
        dtype = accumulator_of(op.result.type.dtype)
        target = Buffer(self.frame.name_of(op.result), dtype, (self.schedule.rows,), (1,), "tile")
        element = self._element(op.operands[0], self.point)
        index = (self.row.var,)
        self.code.append(Alloc(target))
        self.code.append(Reduce((self.row, self.column), target, index, REDUCTIONS[op.name], element))
        at = place(self.group.position[op.result], self.group, self.point)
        self.frame.inliner.add_leaf(op.result, expect_index(op.result, at, Load(target, index)))

    def _store(self, value: Value) -> None:
        position = self.group.position.get(value)
        if position is None:
            raise LoweringError(f"{value} does not lie over the rows of its kernel")
        at = place(position, self.group, self.point)
        index = tuple(substitute(i, self.shift) for i in at)
        whole = self.length > 1 and any(self.column.var in symbols_of(i) for i in index)
        domain = (self.row, self.column) if whole else (self.row,)
        self.code.append(Store(domain, self.frame.buffers[value], index, self._element(value, at)))
