"""Products by warps' tensor core instructions: a plan for ``mma_gemm.cuh`` with the kernel's own epilogue in it."""

from __future__ import annotations

from dataclasses import replace

from fusec.codegen.cuda.indices import spell_index, step_of
from fusec.codegen.cuda.plan import PlanWriter, product_loop
from fusec.codegen.cuda.rows import InRows, alike, in_rows
from fusec.codegen.cuda.scalars import Scalars, bare, stored
from fusec.codegen.cuda.source import KernelSource
from fusec.codegen.cuda.spelling import memory_type
from fusec.errors import LoweringError
from fusec.ir.index import Index, Symbol, sub, symbol
from fusec.ir.indexing import substitute
from fusec.tile.nodes import Dot, Grid, Iter, Kernel, Loop, Map, Store
from fusec.tile.scalar import Load, ScalarExpr, offset_of, reindex

_GROUP = 8
_EIGHT = 8
"""Neighbours of a row that leave together."""
_OWN_NAMES = """Plan Type Left Right batch row_tile column_tile row column k product values staged output eight left
right finish send mma_gemm InRows kTileM kTileN kTileK kStages kWarpM kWarpN kM kN kK kBatches kGroup kProducts kStaged
kLeftTurned kRightTurned"""


def is_mma(kernel: Kernel) -> bool:
    """Whether a product's operands are such that a warp's tensor core instructions multiply them."""
    loops = [s for grid in kernel.body if isinstance(grid, Grid) for s in grid.body if isinstance(s, Loop)]
    dots = [s for loop in loops for s in loop.body if isinstance(s, Dot)]
    return any(d.registers.rows > 0 and (d.tf32 or d.a.dtype is not d.accumulator.dtype) for d in dots)


def emit_mma_gemm(kernel: Kernel) -> KernelSource:
    """The kernel as CUDA C++. LoweringError for one that is more than a loop over products."""
    source = _Emitter(kernel, vectors=True).emit()
    if _Emitter(kernel, vectors=False).emit().text == source.text:
        return replace(source, aligned=False)
    plain = replace(kernel, name=f"{kernel.name}_unaligned")
    return replace(source, unaligned=_Emitter(plain, vectors=False).emit())


class _Emitter(PlanWriter):
    def __init__(self, kernel: Kernel, *, vectors: bool) -> None:
        grid, self.loop = product_loop(kernel)
        self.dots = [s for s in self.loop.body if isinstance(s, Dot)]
        self.computed = {s.target: s.value for s in self.loop.body if isinstance(s, Map)}
        first = self.dots[0]
        products = {d.accumulator.buffer: f"values[{p}][{{}}]" for p, d in enumerate(self.dots)}
        stores = [s for s in grid.body if isinstance(s, Store)]
        super().__init__(kernel, _OWN_NAMES.split(), first.m, first.n, stores, products, pairs=vectors)
        self.vectors, self.dtype = vectors, first.a.dtype
        self.batches, self.row_tiles, self.column_tiles = grid.iters
        self.symbols |= {
            self.batches.var: "batch",
            self.row_tiles.var: "row_tile",
            self.column_tiles.var: "column_tile",
        }
        self.row, self.column = _whole("row", first.m, self.row_tiles), _whole("column", first.n, self.column_tiles)
        self.k = Iter(symbol("k", 0, int(self.loop.stop) - 1), int(self.loop.stop))  # type: ignore[arg-type]
        self.back: dict[Symbol, Index] = {
            first.m.var: sub(self.row.var, self.row_tiles.var * first.m.extent),
            first.n.var: sub(self.column.var, self.column_tiles.var * first.n.extent),
            first.k.var: sub(self.k.var, self.loop.var),
        }
        self.places = {self.batches.var: "batch", self.row.var: "row", self.column.var: "column", self.k.var: "k"}

    def emit(self) -> KernelSource:
        kernel = self.kernel
        left = self._operand(self.dots[0].a, self.row)
        rights = [self._operand(d.b, self.column) for d in self.dots]
        right = alike(rights)
        leaving = [self._leaves_in_eights(s) for s in self.stores]
        self._constants(left, right, sum(leaving))
        self.members()
        self._elements("left", "int batch, int row, int k", [left], left)
        self._elements("right", "int product, int batch, int k, int column", rights, right)
        self._finish(leaving)
        self._send([s for s, leaves in zip(self.stores, leaving, strict=True) if leaves])
        return KernelSource(
            kernel.name,
            self.text("mma_gemm.cuh", "mma_gemm", 32 * kernel.warps, together=self._together),
            tuple(x.dtype.name for x in kernel.parameters),
            (self.batches.extent * self.row_tiles.extent * self.column_tiles.extent, 1, 1),
            32 * kernel.warps,
            self._shared(),
            aligned=self.vectors,
        )

    # Operands

    def _operand(self, load: Load, free: Iter) -> InRows:
        value: ScalarExpr = self.computed[load.buffer] if load.buffer.space == "tile" else load
        return in_rows(reindex(value, self.back), free, self.k, vectors=self.vectors)

    def _constants(self, left: InRows, right: InRows, staged: int) -> None:
        line, dot = self.writer.line, self.dots[0]
        line(f"using Type = {memory_type(self.dtype) if self.dtype.bits == 16 else 'tf32'};")
        tile = f"kTileM = {dot.m.extent}, kTileN = {dot.n.extent}, kTileK = {dot.k.extent}"
        line(f"static constexpr int {tile}, kStages = {self.kernel.stages};")
        line(
            f"static constexpr int kWarpM = {dot.registers.rows}, kWarpN = {dot.registers.columns}, kGroup = {_GROUP};"
        )
        whole = f"kM = {self.row.extent}, kN = {self.column.extent}, kK = {self.k.extent}"
        line(f"static constexpr int {whole}, kBatches = {self.batches.extent};")
        line(f"static constexpr int kProducts = {len(self.dots)}, kStaged = {staged};")
        line(f"using Left = {left.text()};")
        line(f"using Right = {right.text()};")
        turned = f"kLeftTurned = {str(left.turned).lower()}, kRightTurned = {str(right.turned).lower()}"
        line(f"static constexpr bool {turned};")
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
                with self.writer.block(f"if (product == {number})"), self.names.scope():
                    self._element(operand, way)

    def _element(self, operand: InRows, way: InRows) -> None:
        value = operand.value
        if way.vector:
            assert isinstance(value, Load)
            flat = offset_of(value.buffer, value.index)
            assert flat is not None
            text = self._place(flat)
            self.writer.line(f"return {self.buffers[value.buffer]}{'' if text == '0' else f' + {bare(text)}'};")
            return
        with self.names.scope():
            scalars = Scalars(
                self.style, self.names, lambda x: self._read(x, scalars), self._place, self.writer.line, [value]
            )
            if isinstance(value, Load):
                flat = offset_of(value.buffer, value.index)
                where = bare(self._place(flat)) if flat is not None else scalars.gathered(value)
                self.writer.line(f"return {self.buffers[value.buffer]}[{where}];")
                return
            self.writer.line(f"return {bare(stored(scalars.value(value), value.dtype, self.dtype))};")

    def _read(self, load: Load, scalars: Scalars) -> str:
        if load.buffer.space != "parameter":
            raise LoweringError(f"tile {load.buffer} in a product's operand")
        flat = offset_of(load.buffer, load.index)
        where = bare(self._place(flat)) if flat is not None else scalars.gathered(load)
        text = f"{self.buffers[load.buffer]}[{where}]"
        return f"float({text})" if load.dtype.is_float and load.dtype.bits < 32 else text

    def _place(self, e: Index) -> str:
        """An index in the whole product's row, column and k, not those of a tile."""
        return spell_index(substitute(e, self.back), self.places)

    # The epilogue

    def _leaves_in_eights(self, s: Store) -> bool:
        """Whether eight neighbours of a row of 16-bit results are 16 bytes at a multiple of that."""
        if not self.vectors or s.target.dtype.bits != 16 or not s.target.dtype.is_float:
            return False
        flat, limit = offset_of(s.target, s.index), self.n.limit
        ends = step_of(limit, self.n.var, _EIGHT) if limit is not None else None
        if flat is None or (limit is not None and (ends is None or ends.multiple % _EIGHT)):
            return False
        step = step_of(flat, self.n.var, _EIGHT)
        return step is not None and step.along == 1 and step.multiple % _EIGHT == 0

    def _finish(self, leaving: list[bool]) -> None:
        head = "int batch, int row_tile, int column_tile, int row, int column"
        head += f", const float (&values)[{len(self.dots)}][2], u32 (&staged)[{max(sum(leaving), 1)}]"
        self.writer.line()
        with self.writer.block(f"void finish({head}) const"), self.names.scope():
            self.results(leaving)

    def _send(self, stores: list[Store]) -> None:
        head = "int output, int batch, int row_tile, int column_tile, int row, int column, const Vec<u32, 4>& eight"
        self.writer.line()
        with self.writer.block(f"void send({head}) const"):
            self.leave_outside(0)
            for number, s in enumerate(stores):
                flat = offset_of(s.target, s.index)
                assert flat is not None
                where = self.address(self.buffers[s.target], self.index(flat))
                self.writer.line(f"if (output == {number}) store(reinterpret_cast<u32*>({where}), eight);")

    # The whole

    @property
    def _together(self) -> int:
        """Blocks that are to share a unit, where their registers can."""
        return max(1, 8 // self.kernel.warps)

    def _shared(self) -> int:
        """Bytes, as ``MmaGemm`` in ``mma_gemm.cuh`` counts them."""
        dot = self.dots[0]
        step = (dot.m.extent + len(self.dots) * dot.n.extent) * dot.k.extent * self.dtype.itemsize
        return self.kernel.stages * step


def _whole(name: str, i: Iter, tiles: Iter) -> Iter:
    """The iterator over a whole axis of which ``i`` is a tile."""
    extent = i.extent * tiles.extent
    if i.limit is not None:
        extent = int(i.limit + tiles.var * i.extent)  # type: ignore[arg-type]
    return Iter(symbol(name, 0, extent - 1), extent)
