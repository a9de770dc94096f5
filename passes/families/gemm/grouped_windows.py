# SPDX-License-Identifier: Apache-2.0
"""Convolutions in groups of few channels on a GPU, of images that lie with their channels last."""

from __future__ import annotations

from dataclasses import replace

from fusec.errors import LoweringError
from fusec.ir.index import Index, Symbol, floordiv, mod, symbol
from fusec.ir.nodes import Op
from fusec.passes.convolution import convolution_of
from fusec.passes.families.family import GpuMachine
from fusec.passes.families.gemm.matmul import Matmuls
from fusec.passes.families.gemm.schedule.windows import WindowSchedule, WindowsProblem, fits_groups, window_candidates
from fusec.passes.families.gemm.windows import windows_in_memory
from fusec.passes.lower.blocks import GEMM_BLOCKS
from fusec.passes.lower.context import LoweredGroup, LoweringContext
from fusec.passes.lower.epilogue import epilogue_stores
from fusec.tile.expand import expand
from fusec.tile.nodes import Iter
from fusec.tile.scalar import Load, ScalarExpr, loads, reindex
from fusec.tile.templates import GroupedConvolution, WindowTile

MOST_ELEMENTS = 2**31 - 1
"""Of an array, whose positions are 32-bit numbers here."""


def window_schedules(context: LoweringContext, machine: GpuMachine) -> list[WindowSchedule]:
    """Schedules for the group's dot, best predicted first; none where it is no convolution in few channels' groups, or
    the image does not lie as the kernel reads it."""
    dots = context.anchors("dot")
    if len(dots) != 1 or not machine.writes_cuda(context):
        return []
    try:
        made = _Convolution(context.fresh())
        made.template(WindowTile(1, 1, 1, 1))
    except LoweringError:
        return []
    rows, wide = made.windows.axes
    read, written = machine.moved(context)
    n = made.found.groups, made.found.depth, made.columns
    return window_candidates(WindowsProblem(made.windows.batch, rows, wide, *n, read, written), machine.target)


def lower_grouped_windows(context: LoweringContext, schedule: WindowSchedule) -> LoweredGroup:
    """The kernel. LoweringError for what :func:`window_schedules` has no schedules for."""
    template = _Convolution(context).template(schedule.tile)
    lowered = context.finish("gemm", expand(template), schedule.describe(), GEMM_BLOCKS)
    return replace(lowered, kernel=replace(lowered.kernel, template=template))


class _Convolution(Matmuls):
    """Its columns are those of all groups, side by side."""

    def __init__(self, context: LoweringContext) -> None:
        super().__init__(context)
        (dot,) = self.ops
        found = convolution_of(dot, context.producers)
        if found is None or found.groups == 1 or self.statistics:
            raise LoweringError("no convolution in groups")
        if len({v.type.dtype for v in dot.operands}) > 1 or not dot.operands[0].type.dtype.is_half:
            raise LoweringError("groups of channels are multiplied in 16 bits")
        self.found, self.columns = found, self.axes.n
        if not fits_groups(found.depth, self.columns):
            raise LoweringError(f"groups of {found.depth} channels and {self.columns} columns")
        most = max(found.image.type.most, *(v.type.most for v in context.body.outputs))
        if most > MOST_ELEMENTS:
            raise LoweringError("an array of more elements than 32 bits number")
        self.row = Iter(symbol("row", 0, self.axes.m - 1), self.axes.m)
        whole = found.groups * self.columns
        self.column = Iter(symbol("column", 0, whole - 1), whole)
        self.depth = Iter(symbol("k", 0, self.axes.k - 1), self.axes.k)
        self.whole: dict[Symbol, Index] = {
            self.b: floordiv(self.column.var, self.columns),
            self.i: self.row.var,
            self.j: mod(self.column.var, self.columns),
            self.k: self.depth.var,
        }
        image = self.over_whole(dot, 0)
        windows = windows_in_memory(context, found, image)
        if windows is None or len(windows.axes) != 2:
            raise LoweringError("windows that are not read where they lie")
        self.image, self.windows = image, windows

    def over_whole(self, op: Op, side: int) -> ScalarExpr:
        """An element of an operand, over the whole axes."""
        return reindex(self.element(op, side), self.whole)

    def template(self, tile: WindowTile) -> GroupedConvolution:
        (dot,) = self.ops
        weight = self.over_whole(dot, 1)
        if not loads(weight):
            raise LoweringError("weights that are no memory")
        total = Load(self.context.tile("acc", self.dtype, self.column.extent), (self.column.var,))
        stores = epilogue_stores(self.context, "gemm", self.ops, self.point(), self.whole, (self.column,), [total])
        parts = self.row, self.column, self.depth, self.columns, self.windows, self.image, weight, total
        return GroupedConvolution(*parts, tuple(stores), tile)
