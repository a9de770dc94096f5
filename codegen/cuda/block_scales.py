# SPDX-License-Identifier: Apache-2.0
"""What a plan for ``gemm.cuh`` says of operands that are 8-bit floats times scales (``block_scales.cuh``)."""

from __future__ import annotations

from fusec.codegen.cuda.plan import PlanWriter
from fusec.codegen.cuda.scalars import Scalars, bare
from fusec.errors import LoweringError
from fusec.tile.expand import in_tile
from fusec.tile.nodes import Iter
from fusec.tile.scalar import ScalarExpr, is_same_along, reindex, symbols_in
from fusec.tile.templates import SHARED_COLUMNS, GemmNest, TemplateOperand

_WHERE = "int batch, int row_tile, int column_tile, int row, int column"


def write_scales(plan: PlanWriter, nest: GemmNest) -> None:
    """Its members. LoweringError for scales of columns that have none in common and change along K."""
    _Scales(plan, nest).write()


class _Scales:
    def __init__(self, plan: PlanWriter, nest: GemmNest) -> None:
        self.plan, self.nest = plan, nest

    def write(self) -> None:
        plan, line, block = self.plan, self.plan.writer.line, self.plan.writer.block
        line()
        line(f"static constexpr int kScaleColumns = {self._shared_columns()};")
        line()
        with block("float row_scale(int batch, int row_tile, int row, int k) const"), plan.names.scope():
            self._stay_inside(plan.m)
            line(f"return {self._text(self._scale(self.nest.left, 0))};")
        line()
        with block("float column_scale(int batch, int column_tile, int column, int k, int dot) const"):
            self._stay_inside(plan.n)
            for number, right in enumerate(self.nest.rights):
                with block(f"if (dot == {number})"), plan.names.scope():
                    line(f"return {self._text(self._scale(right, 1))};")
            line("return 1.0f;")
        line()
        with block(f"float exact({_WHERE}, int dot) const"):
            self._stay_inside(plan.m, plan.n)
            line("float total = 0.0f;")
            for number, right in enumerate(self.nest.rights):
                if self.nest.left.scales_sums:
                    self._sum_of_steps(number, right)
                    continue
                loop = f"for (int k = 0; dot == {number} && k < {self.nest.depth.whole.extent}; ++k)"
                with block(loop), plan.names.scope():
                    a, b = self._element(self.nest.left.element, 0), self._element(right.element, 1)
                    line(f"total += ({self._text(a)}) * ({self._text(b)});")
            line("return total;")

    def _sum_of_steps(self, number: int, right: TemplateOperand) -> None:
        """The sums of steps along K, each scaled; what is beyond f32 is infinite before it is added."""
        line, block, left = self.plan.writer.line, self.plan.writer.block, self.nest.left
        depth, step = self.nest.depth.whole.extent, self.nest.depth.inner.extent
        assert left.eight is not None
        assert right.eight is not None
        with block(f"for (int start = 0; dot == {number} && start < {depth}; start += {step})"):
            line("float part = 0.0f;")
            inner = f"for (int k = start; k < minimum(start + {step}, {depth}); ++k)"
            with block(inner), self.plan.names.scope():
                a, b = self._element(left.eight, 0), self._element(right.eight, 1)
                line(f"part += {self._text(a)} * {self._text(b)};")
            line("const int k = start;")
            with self.plan.names.scope():
                s, t = self._scale(left, 0), self._scale(right, 1)
                line(f"total += __fmul_rn(__fmul_rn(part, {self._text(s)}), {self._text(t)});")

    def _stay_inside(self, *axes: Iter) -> None:
        """Positions beyond the limits become the last ones: what comes of them does not leave."""
        for i in axes:
            if i.limit is not None:
                name = self.plan.symbols[i.var]
                self.plan.writer.line(f"{name} = minimum({name}, {bare(self.plan.index(i.limit))} - 1);")

    def _shared_columns(self) -> int:
        """Columns side by side that have one scale of each right operand; 0 where they need have none in common."""
        n = self.plan.n.extent
        scales = [right.scale for right in self.nest.rights]
        if all(s is None or self.nest.depth.whole.var not in symbols_in(s) for s in scales):
            own = any(s is not None and self.nest.column.whole.var in symbols_in(s) for s in scales)
            return 0 if own else n
        for count in range(n, SHARED_COLUMNS - 1, -SHARED_COLUMNS):
            if n % count == 0 and all(self._are_same(s, count) for s in scales):
                return count
        raise LoweringError("scales of columns that have none in common")

    def _are_same(self, scale: ScalarExpr | None, count: int) -> bool:
        """Whether so many columns of a tile have one scale, from each multiple on."""
        if scale is None:
            return True
        return is_same_along(in_tile(scale, self.nest.column), self.plan.n.var, count)

    def _scale(self, operand: TemplateOperand, side: int) -> ScalarExpr | None:
        return None if operand.scale is None else self._element(operand.scale, side)

    def _element(self, e: ScalarExpr, side: int) -> ScalarExpr:
        """What is said over whole axes, at a position in a tile and ``k`` along K."""
        nest = self.nest
        inside = in_tile(e, (nest.row, nest.column)[side], nest.depth)
        return reindex(inside, {nest.depth.inner.var: 0})

    def _text(self, e: ScalarExpr | None) -> str:
        if e is None:
            return "1.0f"
        plan = self.plan
        index = plan.speller(plan.symbols)
        scalars = Scalars(plan.style, plan.names, plan.reader({}, index), index, plan.writer.line, [e])
        return bare(scalars.value(e))
