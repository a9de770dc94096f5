"""Matrix products in plain arithmetic: a plan for ``tiled.cuh`` with the kernel's own operands and epilogue in it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fusec.codegen.cuda.indices import spell_index
from fusec.codegen.cuda.layout import is_vector, vector_step
from fusec.codegen.cuda.scalars import Scalars, Style, bare, stored
from fusec.codegen.cuda.source import KernelSource
from fusec.codegen.cuda.spelling import memory_type
from fusec.codegen.cuda.text import Names, Writer
from fusec.errors import LoweringError
from fusec.ir.index import Index, Symbol, sub, symbol
from fusec.ir.indexing import coefficient, substitute
from fusec.tile.nodes import Alloc, Dot, Grid, Iter, Kernel, Loop, Map, Store
from fusec.tile.scalar import Buffer, Load, ScalarExpr, loads, offset_of, reindex

_FRAGMENT = 4
"""Neighbours of a row that are stored together."""

_GROUP = 8
_LEAST_COPY = 4
"""Bytes that cp.async moves at least."""

_OWN_NAMES = "Plan Type Tiled batch row k column values kCount plan v T"


@dataclass(frozen=True)
class _Operand:
    """One side of the product: the value of its elements, how its memory runs, and neighbours moved together.

    strides: elements from a neighbour along M or N, and along K; -1 where that varies.
    """

    name: str
    value: ScalarExpr
    computed: bool
    along_k: bool
    vector: int
    strides: tuple[int, int] = (-1, -1)


def emit_tiled_gemm(kernel: Kernel) -> KernelSource:
    """The kernel as CUDA C++. LoweringError for one that is more than a loop over one product."""
    aligned = _Emitter(kernel, vectors=True)
    source = aligned.emit()
    if not source.aligned:
        return source
    plain = replace(kernel, name=f"{kernel.name}_unaligned")
    return replace(source, unaligned=_Emitter(plain, vectors=False).emit())


def is_tiled(kernel: Kernel) -> bool:
    """Whether a product's accumulators are laid out over threads, which :func:`emit_tiled_gemm` needs."""
    loops = [s for grid in kernel.body if isinstance(grid, Grid) for s in grid.body if isinstance(s, Loop)]
    return any(isinstance(s, Dot) and s.registers.rows > 0 for loop in loops for s in loop.body)


class _Emitter:
    def __init__(self, kernel: Kernel, *, vectors: bool) -> None:
        (grid,) = kernel.body
        if not isinstance(grid, Grid) or len(grid.iters) != 3:
            raise LoweringError(f"{kernel.name} is no product over batches and tiles")
        self.kernel, self.vectors = kernel, vectors
        self.batches, row_tiles, column_tiles = grid.iters
        self.blocks = self.batches.extent * row_tiles.extent * column_tiles.extent
        self.stores = [s for s in grid.body if isinstance(s, Store)]
        (self.loop,) = (s for s in grid.body if isinstance(s, Loop))
        (self.dot,) = (s for s in self.loop.body if isinstance(s, Dot))
        if any(not isinstance(s, Loop | Store | Alloc | Map) for s in grid.body):
            raise LoweringError(f"{kernel.name} is more than one loop of products")
        self.computed = {s.target: s.value for s in self.loop.body if isinstance(s, Map)}
        m, n, k = self.dot.m, self.dot.n, self.dot.k
        self.row, self.column = _whole("row", m, row_tiles), _whole("column", n, column_tiles)
        self.k = Iter(symbol("k", 0, int(self.loop.stop) - 1), int(self.loop.stop))  # type: ignore[arg-type]
        self.back: dict[Symbol, Index] = {
            m.var: sub(self.row.var, row_tiles.var * m.extent),
            n.var: sub(self.column.var, column_tiles.var * n.extent),
            k.var: sub(self.k.var, self.loop.var),
        }
        self.style = Style(kernel)
        self.names = Names([kernel.name, *_OWN_NAMES.split()])
        self.buffers = {b: self.names.unique(b.name) for b in kernel.parameters}
        self.symbols = {self.batches.var: "batch", self.row.var: "row", self.column.var: "column", self.k.var: "k"}
        self.writer = Writer(1)

    def emit(self) -> KernelSource:
        kernel, dot = self.kernel, self.dot
        left, right = self._operand("left", dot.a, self.row), self._operand("right", dot.b, self.column)
        self._constants(left, right)
        for buffer, name in self.buffers.items():
            self.writer.line(f"{self._pointer(buffer)} {name};")
        self._element(left, "int batch, int row, int k")
        self._element(right, "int batch, int k, int column")
        wide = self._finish()
        threads = 32 * kernel.warps
        dtype = dot.accumulator.dtype
        shared = kernel.stages * dot.k.extent * (dot.m.extent + dot.n.extent + 32 // dtype.itemsize) * dtype.itemsize
        aligned = wide or left.vector > 1 or right.vector > 1
        kinds = tuple(b.dtype.name for b in kernel.parameters)
        return KernelSource(
            kernel.name, self._text(threads), kinds, (self.blocks, 1, 1), threads, shared, aligned=aligned
        )

    # Operands

    def _operand(self, name: str, load: Load, free: Iter) -> _Operand:
        """How an operand is fetched: copied as it lies in memory, or computed element by element."""
        if load.buffer.space == "tile":
            value = self._here(self.computed[load.buffer])
            steps = [vector_step(x, self.k, 1) for x in loads(value) if x.buffer.space == "parameter"]
            along = sum(s is not None and s.along == 1 for s in steps) * 2 > len(steps)
            return _Operand(name, value, True, along, 1)
        value = self._here(load)
        assert isinstance(value, Load)
        flat = offset_of(value.buffer, value.index)
        if flat is None:
            raise LoweringError(f"{load.buffer} read at loaded subscripts in a product")
        step = vector_step(value, self.k, 1)
        unit = max(1, 16 // load.dtype.itemsize)
        vector = unit if self.vectors and free.extent % unit == 0 and is_vector(value, free, unit) else 1
        along = vector == 1 and step is not None and step.along == 1
        if vector * load.dtype.itemsize < _LEAST_COPY:
            return _Operand(name, value, True, along, 1)
        strides = [coefficient(flat, i.var) for i in (free, self.k)]
        even = tuple(-1 if stride is None or stride < 0 else stride for stride in strides)
        return _Operand(name, value, False, along, vector, even if -1 not in even else (-1, -1))  # type: ignore[arg-type]

    def _here(self, e: ScalarExpr) -> ScalarExpr:
        """In the whole product's row, column and k, not those of a tile."""
        return reindex(e, self.back)

    def _constants(self, left: _Operand, right: _Operand) -> None:
        line, dot = self.writer.line, self.dot
        registers = dot.registers

        def flags(*named: tuple[str, bool]) -> str:
            return ", ".join(f"{name} = {str(value).lower()}" for name, value in named)

        line(f"using Type = {memory_type(dot.accumulator.dtype)};")
        tile = f"kTileM = {dot.m.extent}, kTileN = {dot.n.extent}, kTileK = {dot.k.extent}"
        line(f"static constexpr int {tile}, kStages = {self.kernel.stages};")
        line(f"static constexpr int kThreadM = {registers.rows}, kThreadN = {registers.columns}, kGroup = {_GROUP};")
        whole = f"kM = {self.row.extent}, kN = {self.column.extent}, kK = {self.k.extent}"
        line(f"static constexpr int {whole}, kBatches = {self.batches.extent};")
        line(f"static constexpr int kLeftVector = {left.vector}, kRightVector = {right.vector};")
        for side, operand in (("Left", left), ("Right", right)):
            stride, stride_k = operand.strides
            line(f"static constexpr int k{side}Stride = {stride}, k{side}StrideK = {stride_k};")
        line(f"static constexpr bool {flags(('kLeftAlongK', left.along_k), ('kRightAlongK', right.along_k))};")
        line(f"static constexpr bool {flags(('kLeftComputed', left.computed), ('kRightComputed', right.computed))};")
        line()

    def _pointer(self, buffer: Buffer) -> str:
        outputs = self.kernel.parameters[len(self.kernel.parameters) - self.kernel.outputs :]
        return f"{'' if buffer in outputs else 'const '}{memory_type(buffer.dtype)}* __restrict__"

    def _element(self, operand: _Operand, parameters: str) -> None:
        """The member that gives an operand's element, or where it is."""
        self.writer.line()
        if operand.computed:
            with self.writer.block(f"Type {operand.name}({parameters}) const"), self.names.scope():
                text = self._scalars({}, "", [operand.value]).value(operand.value)
                self.writer.line(f"return {bare(stored(text, operand.value.dtype, self.dot.accumulator.dtype))};")
            return
        assert isinstance(operand.value, Load)
        with self.writer.block(f"const Type* {operand.name}({parameters}) const"):
            self.writer.line(f"return {self._address(operand.value)};")

    # The epilogue

    def _finish(self) -> bool:
        """The member that stores neighbours of a row; True where it moves several at once."""
        kind = memory_type(self.dot.accumulator.dtype)
        self.writer.line()
        self.writer.line("template <int kCount>")
        head = f"void finish(int batch, int row, int column, const Vec<{kind}, kCount>& values) const"
        wide = False
        with self.writer.block(head), self.names.scope():
            targets = [self._whole_load(s) for s in self.stores]
            values = [self._here(s.value) for s in self.stores]
            read: dict[Load, str] = {}
            for load in dict.fromkeys(x for value in values for x in loads(value)):
                wide |= self._read_ahead(load, read)
            outs = [self._out(target) for target in targets]
            self.writer.line("#pragma unroll")
            with self.writer.block("for (int v = 0; v < kCount; ++v)"), self.names.scope():
                scalars = self._scalars(read, "v", values)
                for target, value, out in zip(targets, values, outs, strict=True):
                    text = stored(scalars.value(value), value.dtype, target.dtype)
                    self.writer.line(f"{f'{out}[v]' if out else self._subscripted(target, 'v')} = {bare(text)};")
            for target, out in zip(targets, outs, strict=True):
                if out:
                    wide = True
                    self.writer.line(f"store({self._address(target)}, {out});")
        return wide

    def _whole_load(self, s: Store) -> Load:
        target = self._here(Load(s.target, s.index))
        assert isinstance(target, Load)
        return target

    def _is_wide(self, load: Load) -> bool:
        """Whether four neighbours of a row are four neighbours in memory, at a multiple of their size."""
        return self.vectors and self.column.extent % _FRAGMENT == 0 and is_vector(load, self.column, _FRAGMENT)

    def _read_ahead(self, load: Load, read: dict[Load, str]) -> bool:
        """Reads what lies side by side, or is one value, before the loop over neighbours. True for the former."""
        if load.buffer.space != "parameter" or offset_of(load.buffer, load.index) is None:
            return False
        name, kind = self.buffers[load.buffer], memory_type(load.dtype)
        step = vector_step(load, self.column, _FRAGMENT)
        if self._is_wide(load):
            made = self.names.unique(f"{name}_v")
            self.writer.line(f"const Vec<{kind}, kCount> {made} = load<kCount>({self._address(load)});")
            read[load] = f"{made}[v]"
            return True
        if step is not None and step.along == 0:
            made = self.names.unique(f"{name}_here")
            self.writer.line(f"const {kind} {made} = {self._subscripted(load, '')};")
            read[load] = made
        return False

    def _out(self, target: Load) -> str:
        if not self._is_wide(target):
            return ""
        name = self.names.unique(f"{self.buffers[target.buffer]}_v")
        self.writer.line(f"Vec<{memory_type(target.dtype)}, kCount> {name};")
        return name

    # Values

    def _scalars(self, read: dict[Load, str], lane: str, roots: list[ScalarExpr]) -> Scalars:
        def text(load: Load) -> str:
            if load.buffer is self.dot.accumulator.buffer:
                return f"values[{lane}]"
            if load.buffer.space != "parameter":
                raise LoweringError(f"tile {load.buffer} in a product's epilogue")
            found = read.get(load) or self._subscripted(load, lane, scalars)
            return f"float({found})" if load.dtype.is_float and load.dtype.bits < 32 else found

        scalars = Scalars(self.style, self.names, text, lambda e: self._index(e, lane), self.writer.line, roots)
        return scalars

    def _index(self, e: Index, lane: str) -> str:
        column = f"(column + {lane})" if lane else "column"
        return spell_index(substitute(e, self.back), {**self.symbols, self.column.var: column})

    def _subscripted(self, load: Load, lane: str, scalars: Scalars | None = None) -> str:
        flat = offset_of(load.buffer, load.index)
        if flat is not None:
            return f"{self.buffers[load.buffer]}[{bare(self._index(flat, lane))}]"
        if scalars is None:
            raise LoweringError("a result stored at loaded subscripts")
        return f"{self.buffers[load.buffer]}[{scalars.gathered(load)}]"

    def _address(self, load: Load) -> str:
        flat = offset_of(load.buffer, load.index)
        if flat is None:
            raise LoweringError("a result stored at loaded subscripts")
        text = self._index(flat, "")
        return self.buffers[load.buffer] if text == "0" else f"{self.buffers[load.buffer]} + {bare(text)}"

    @property
    def _together(self) -> int:
        """Blocks that are to share a unit, where their registers can."""
        small = self.dot.registers.rows * self.dot.registers.columns <= 64 and self.dot.accumulator.dtype.bits <= 32
        return 2 if small else 1

    def _text(self, threads: int) -> str:
        pointers = ", ".join(f"{self._pointer(b)} {name}" for b, name in self.buffers.items())
        return "\n".join(
            [
                '#include "tiled.cuh"',
                "using namespace fusec;",
                "",
                "struct Plan {",
                *self.writer.lines,
                "};",
                "",
                f'extern "C" __global__ void __launch_bounds__({threads}, {self._together})',
                f"{self.kernel.name}({pointers}) {{",
                f"    Tiled<Plan>::run(Plan{{{', '.join(self.buffers.values())}}});",
                "}",
                "",
            ]
        )


def _whole(name: str, i: Iter, tiles: Iter) -> Iter:
    """The iterator over a whole axis of which ``i`` is a tile."""
    extent = i.extent * tiles.extent
    if i.limit is not None:
        extent = int(i.limit + tiles.var * i.extent)  # type: ignore[arg-type]
    return Iter(symbol(name, 0, extent - 1), extent)
