# SPDX-License-Identifier: Apache-2.0
"""A matmul for Hopper's tensor cores: operands come by TMA alone, straight from memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fusec.errors import LoweringError
from fusec.ir.attributes import DotAttributes
from fusec.ir.nodes import Op
from fusec.ir.types import f32
from fusec.passes.block_scales import ScaledElement, scaled_element
from fusec.passes.families.gemm.matmul import Matmuls
from fusec.passes.families.gemm.schedule.hopper import HopperGemmSchedule
from fusec.passes.families.gemm.tiles import TiledMatmuls, TileSizes
from fusec.passes.families.gemm.windows import windows_of
from fusec.passes.lower.context import LoweredGroup, LoweringContext, address_step
from fusec.tile.expand import in_tile
from fusec.tile.fetch import fetch_of
from fusec.tile.nodes import Store
from fusec.tile.scalar import Apply, IndexValue, Load, ScalarExpr, loads, reads_memory, walk
from fusec.tile.templates import HopperGemm, TemplateOperand


def check_hopper_gemm(context: LoweringContext, schedule: HopperGemmSchedule) -> None:
    """LoweringError for matmuls that :func:`lower_hopper_gemm` refuses, of any sizes."""
    matmuls = _HopperGemm(context.fresh(), schedule)
    matmuls.nest(matmuls.fetched)


def lower_hopper_gemm(context: LoweringContext, schedule: HopperGemmSchedule) -> LoweredGroup:
    """The matmul's grid in plain order, batch by row tiles by column tiles; the emitter walks it.

    LoweringError for operands that a TMA copy can't fetch: computed ones, rows that are no multiple of 16 bytes.
    """
    matmuls = _HopperGemm(context, schedule)
    template = HopperGemm(matmuls.nest(matmuls.fetched), schedule.pipeline)
    return matmuls.finish_template(template, schedule.describe())


def columns_adjoin(context: LoweringContext) -> bool:
    """Whether neighbours in the right operands' memory are of different columns of the result."""
    matmuls = Matmuls(context)
    elements = [matmuls.element(op, 1) for op in matmuls.ops]
    return any(
        isinstance(e, Load) and address_step(e, matmuls.j) == 1 and address_step(e, matmuls.k) != 1 for e in elements
    )


class _HopperGemm(TiledMatmuls):
    def __init__(self, context: LoweringContext, schedule: HopperGemmSchedule) -> None:
        s, self.pipeline = schedule, schedule.pipeline
        super().__init__(context, TileSizes(s.m, s.n, s.k, (s.pipeline.cluster_m, s.pipeline.cluster_n)))
        self.scaled = scaled_elements(self)
        if self.scaled is None:
            self.multiplied_type(eight=True)

    def total(self, op: Op, accumulator: Load) -> ScalarExpr:
        """A matmul is rounded as the code says where the rest of its epilogue is put off until the next tile is
        multiplied (``codegen/cuda/deferred.py``): 16 bits of each are kept."""
        p = self.pipeline
        whole = p.ping_pong or p.split > 1 or op.result.type.dtype is accumulator.dtype
        return accumulator if whole else Apply("cast", (accumulator,), op.result.type.dtype)

    def results(self, totals: Sequence[ScalarExpr]) -> list[Store]:
        """LoweringError where what an element is made from depends on other elements."""
        stores = super().results(totals)
        if not all(_is_plain(s.value) for s in stores):
            raise LoweringError("an epilogue that reads at loaded subscripts, or one of two positions")
        return stores

    def fetched(self, op: Op, side: int) -> TemplateOperand:
        """A load that TMA can do."""
        element = self.over_whole(op, side)
        if self.scaled is not None:
            return self._scaled(op, side, element)
        windows = windows_of(self.context, op, element) if side == 0 else None
        if windows is not None:
            return replace(self.loaded_or_computed(op, side, op.operands[0].type.dtype, through=True), windows=windows)
        return TemplateOperand(self._in_memory(op, side, element))

    def _in_memory(self, op: Op, side: int, element: ScalarExpr) -> Load:
        axes = ((self.row, self.depth), (self.depth, self.column))[side]
        block = in_tile(element, *axes)
        fetch = fetch_of(block, (axes[0].inner, axes[1].inner)) if isinstance(block, Load) else None
        if not isinstance(element, Load) or fetch is None:
            raise LoweringError(f"{op.operands[side]} can't be fetched by TMA")
        if element.dtype.bits != 16 and fetch.transposed != (side == 1):
            raise LoweringError(f"{op.operands[side]} does not lie along K, as tensor cores take all but 16 bits")
        return element

    def _scaled(self, op: Op, side: int, element: ScalarExpr) -> TemplateOperand:
        """Numbers of 8 bits that TMA fetches, and what sums of their products are multiplied by."""
        found = scaled_element(element)
        if found is None or not _is_plain(element):
            raise LoweringError(f"{op.operands[side]} is no 8-bit float times a scale")
        made = self.loaded_or_computed(op, side, f32, through=True)
        given = op.expect(DotAttributes).scales_sums
        return replace(made, eight=self._in_memory(op, side, found.eight), scale=found.scale, scales_sums=given)


def scaled_elements(matmuls: Matmuls) -> tuple[ScaledElement, ...] | None:
    """The elements of the operands of scaled dots, where all of them are 8-bit floats times scales; None elsewhere."""
    if not all(op.expect(DotAttributes).scaled for op in matmuls.ops):
        return None
    found = [scaled_element(matmuls.element(op, side)) for op in matmuls.ops for side in (0, 1)]
    elements = tuple(e for e in found if e is not None)
    return elements if len(elements) == len(found) else None


def _is_plain(value: ScalarExpr) -> bool:
    """Whether every element that is read lies inside its tensor, at an index known without reading another.

    What values choose (a clamp) is read by the code as written, too; what positions choose may lie outside."""
    selects = [e for e in walk(value) if isinstance(e, Apply) and e.op == "select"]
    by_position = [e for e in selects if any(isinstance(x, IndexValue) for x in walk(e.args[0]))]
    chosen = [a for e in by_position for a in e.args[1:]]
    return not any(map(reads_memory, chosen)) and not any(load.gathers for load in loads(value))
