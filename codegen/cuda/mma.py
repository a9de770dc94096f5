# SPDX-License-Identifier: Apache-2.0
"""Matmuls by mma.sync: a plan for ``mma_gemm.cuh`` with the kernel's own epilogue in it."""

from __future__ import annotations

from dataclasses import replace

from fusec.codegen.cuda.indices import spell_index
from fusec.codegen.cuda.plan import PlanWriter
from fusec.codegen.cuda.rows import InRows, alike, in_rows
from fusec.codegen.cuda.scalars import bare
from fusec.codegen.cuda.source import KernelSource
from fusec.codegen.cuda.spelling import memory_type
from fusec.ir.index import Index
from fusec.tile.expand import tile_stores
from fusec.tile.kernel import Kernel
from fusec.tile.nodes import Iter, Store
from fusec.tile.scalar import Load, offset_of
from fusec.tile.templates import MmaGemm, TemplateOperand

_GROUP = 8
_EIGHT = 8
"""Neighbours of a row that leave together."""
_OWN_NAMES = """Plan Type Left Right batch row_tile column_tile row column k dot values staged output eight left
right finish send mma_gemm InRows kTileM kTileN kTileK kStages kWarpM kWarpN kM kN kK kBatches kGroup kDots kStaged
kLeftTransposed kRightTransposed"""


def emit_mma_gemm(kernel: Kernel, template: MmaGemm) -> KernelSource:
    """The kernel as CUDA C++. LoweringError for operands and results at positions that are loaded."""
    source = _Emitter(kernel, template, vectors=True).emit()
    if _Emitter(kernel, template, vectors=False).emit().text == source.text:
        return replace(source, aligned=False)
    plain = replace(kernel, name=f"{kernel.name}_unaligned")
    return replace(source, unaligned=_Emitter(plain, template, vectors=False).emit())


class _Emitter(PlanWriter):
    def __init__(self, kernel: Kernel, template: MmaGemm, *, vectors: bool) -> None:
        self.nest = nest = template.nest
        self.warp = template.warp
        accumulators = {total.buffer: f"values[{p}][{{}}]" for p, total in enumerate(nest.sums)}
        m, n = nest.row.inner, nest.column.inner
        super().__init__(kernel, _OWN_NAMES.split(), m, n, tile_stores(nest), accumulators, pairs=vectors)
        self.vectors, self.dtype = vectors, nest.left.dtype
        self.symbols |= {
            nest.batch.var: "batch",
            nest.row_tiles.var: "row_tile",
            nest.column_tiles.var: "column_tile",
        }
        self.row, self.column, self.k = nest.row.whole, nest.column.whole, nest.depth.whole
        self.named = {
            nest.batch.var: "batch",
            self.row.var: "row",
            self.column.var: "column",
            self.k.var: "k",
        }

    def emit(self) -> KernelSource:
        kernel = self.kernel
        left = self._operand(self.nest.left, self.row)
        rights = [self._operand(right, self.column) for right in self.nest.rights]
        right = alike(rights)
        leaving = [self.leaves_in_eights(s) for s in self.stores]
        self._constants(left, right, sum(leaving))
        self.members()
        self._elements("left", "int batch, int row, int k", [left], left)
        self._elements("right", "int dot, int batch, int k, int column", rights, right)
        self._finish(leaving)
        self._send([s for s, leaves in zip(self.stores, leaving, strict=True) if leaves])
        return KernelSource(
            kernel.name,
            self.text("mma_gemm.cuh", "mma_gemm", 32 * kernel.warps, together=self._together),
            tuple(x.dtype.name for x in kernel.parameters),
            (self.nest.tiles, 1, 1),
            32 * kernel.warps,
            self._shared(),
            aligned=self.vectors,
        )

    # Operands

    def _operand(self, operand: TemplateOperand, free: Iter) -> InRows:
        return in_rows(operand.element, free, self.k, vectors=self.vectors)

    def _constants(self, left: InRows, right: InRows, staged: int) -> None:
        line, nest, warp = self.writer.line, self.nest, self.warp
        line(f"using Type = {memory_type(self.dtype) if self.dtype.bits == 16 else 'tf32'};")
        m, n, k = (a.inner.extent for a in (nest.row, nest.column, nest.depth))
        tile = f"kTileM = {m}, kTileN = {n}, kTileK = {k}"
        line(f"static constexpr int {tile}, kStages = {self.kernel.stages};")
        line(f"static constexpr int kWarpM = {warp.rows}, kWarpN = {warp.columns}, kGroup = {_GROUP};")
        whole = f"kM = {self.row.extent}, kN = {self.column.extent}, kK = {self.k.extent}"
        line(f"static constexpr int {whole}, kBatches = {nest.batch.extent};")
        line(f"static constexpr int kDots = {len(nest.sums)}, kStaged = {staged};")
        line(f"using Left = {left.text()};")
        line(f"using Right = {right.text()};")
        transposed = (
            f"kLeftTransposed = {str(left.transposed).lower()}, kRightTransposed = {str(right.transposed).lower()}"
        )
        line(f"static constexpr bool {transposed};")
        line()

    def _elements(self, name: str, parameters: str, operands: list[InRows], way: InRows) -> None:
        """The member that gives where an operand's element is, or its value."""
        self.writer.line()
        kind = memory_type(self.dtype)
        result = f"const {kind}*" if way.vector else kind
        with self.writer.block(f"{result} {name}({parameters}) const"):
            for number, operand in enumerate(operands):
                if number == len(operands) - 1:
                    self._element(operand, way)
                    return
                with self.writer.block(f"if (dot == {number})"), self.names.scope():
                    self._element(operand, way)

    def _element(self, operand: InRows, way: InRows) -> None:
        value = operand.value
        if way.vector:
            assert isinstance(value, Load)
            flat = offset_of(value.buffer, value.index)
            assert flat is not None
            text = self._index(flat)
            self.writer.line(f"return {self.buffers[value.buffer]}{'' if text == '0' else f' + {bare(text)}'};")
            return
        self.operand(value, self.dtype, self._index)

    def _index(self, e: Index) -> str:
        """An index in the whole product's row, column and k, not those of a tile."""
        return spell_index(e, self.named)

    # The epilogue

    def _finish(self, leaving: list[bool]) -> None:
        head = "int batch, int row_tile, int column_tile, int row, int column"
        head += f", const float (&values)[{len(self.nest.sums)}][2], u32 (&staged)[{max(sum(leaving), 1)}]"
        self.writer.line()
        with self.writer.block(f"void finish({head}) const"), self.names.scope():
            self.results(leaving)

    def _send(self, stores: list[Store]) -> None:
        head = "int output, int batch, int row_tile, int column_tile, int row, int column, const Vec<u32, 4>& eight"
        self.writer.line()
        with self.writer.block(f"void send({head}) const"):
            self.leave_outside(0)
            self.send_eights(stores)

    # The whole

    @property
    def _together(self) -> int:
        """Blocks that are to share an SM, where their registers can."""
        return max(1, 8 // self.kernel.warps)

    def _shared(self) -> int:
        """Bytes, as ``MmaGemm`` in ``mma_gemm.cuh`` counts them."""
        nest = self.nest
        m, n, k = (a.inner.extent for a in (nest.row, nest.column, nest.depth))
        step = (m + len(nest.sums) * n) * k * self.dtype.itemsize
        return self.kernel.stages * step
