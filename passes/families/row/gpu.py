# SPDX-License-Identifier: Apache-2.0
"""A row kernel on a GPU: a block holds whole rows in registers, reduces them and maps them."""

from __future__ import annotations

from fusec.ir.nodes import Op, Value
from fusec.ir.types import DType
from fusec.passes.families.row.picks import Picks
from fusec.passes.families.row.rows import Rows
from fusec.passes.families.row.schedule.gpu import GpuRowSchedule
from fusec.passes.lower.blocks import ROW_BLOCKS
from fusec.passes.lower.context import LoweredGroup, LoweringContext, position_at, prefer_index
from fusec.tile.nodes import Alloc, Grid, Iter, Map, Reduce, Statement
from fusec.tile.scalar import Buffer, Load, ScalarExpr


def lower_row(context: LoweringContext, schedule: GpuRowSchedule) -> LoweredGroup:
    """Rows are read once, padded to a power of two."""
    return WholeRows(context, schedule).lower()


class WholeRows(Rows):
    """The statements of a block's rows, in ``code``."""

    def __init__(self, context: LoweringContext, schedule: GpuRowSchedule) -> None:
        super().__init__(context, schedule)
        self.code: list[Statement] = []

    def lower(self) -> LoweredGroup:
        """The kernel."""
        self.reduce_rows()
        self.code += [self.store(value) for value in self.context.body.outputs]
        grid = Grid((Iter.over(self.g, self.blocks),), tuple(self.code))
        return self.context.finish("row", (grid,), self.schedule.describe(), ROW_BLOCKS)

    def reduce_rows(self) -> None:
        """All reductions of the rows, in order."""
        picks = Picks(self)
        self.code += picks.before
        for op in self.anchors:
            if op in picks.ops:
                self._settle_at(op, picks.value(op))
                continue
            self._hold(op.operands[0])
            self._reduce(op)

    def tile_of(self, name: str, dtype: DType) -> Buffer:
        """Scratch with an element for each of the block's."""
        shape = (self.schedule.rows, self.schedule.columns)
        return Buffer(name, dtype, shape, (shape[1], 1), "tile")

    def _hold(self, value: Value) -> None:
        """A reduction's operand stays in registers when something else reads it, too."""
        producer = self.context.producers.get(value)
        users = [op for op in self.context.body.ops if value in op.operands]
        if producer is None or producer.definition.kind != "elementwise" or value in self.context.inliner.leaves:
            return
        if len(users) < 2 and value not in self.context.body.outputs:
            return
        tile = self.tile_of(self.context.name_of(value), value.type.dtype.accumulator)
        element = self.element(value)
        self.code += [Alloc(tile), Map(self.tile, tile, self.tile_index, element)]
        at = position_at(self.group.position.get(value, self.group.identity), self.group, self.point)
        self.context.inliner.add_leaf(value, prefer_index(at, Load(tile, self.tile_index)))

    def _settle_at(self, op: Op, value: ScalarExpr) -> None:
        target = self._of_rows(op)
        self.code.append(Map((self.row,), target, (self.row.var,), value))
        self.settle(op, target)

    def _reduce(self, op: Op) -> None:
        target = self._of_rows(op)
        element = self.element(op.operands[0])
        self.code.append(Reduce(self.tile, target, (self.row.var,), op.definition.reduction.name, element))
        self.settle(op, target)

    def _of_rows(self, op: Op) -> Buffer:
        """Scratch for a reduction, with an element for each row."""
        dtype = op.result.type.dtype.accumulator
        target = Buffer(self.context.name_of(op.result), dtype, (self.schedule.rows,), (1,), "tile")
        self.code.append(Alloc(target))
        return target
