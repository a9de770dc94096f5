# SPDX-License-Identifier: Apache-2.0
"""Matmuls in SIMT arithmetic: a plan for ``tiled.cuh`` with the kernel's own operands and epilogue in it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fusec.codegen.cuda.indices import spell_index
from fusec.codegen.cuda.layout import is_vector, vector_step
from fusec.codegen.cuda.scalars import Scalars, Style, bare, stored
from fusec.codegen.cuda.source import KernelSource
from fusec.codegen.cuda.spelling import is_widened, memory_type
from fusec.codegen.cuda.text import Names, Writer
from fusec.errors import LoweringError
from fusec.ir.index import Index
from fusec.ir.indexing import coefficient
from fusec.tile.kernel import Kernel
from fusec.tile.nodes import Iter
from fusec.tile.scalar import Buffer, Load, ScalarExpr, loads, offset_of
from fusec.tile.templates import SimtGemm, TemplateOperand

_FRAGMENT = 4
"""Neighbours of a row that are stored together."""

_GROUP = 8
_LEAST_COPY = 4
"""Bytes that cp.async moves at least."""

_OWN_NAMES = "Plan Type Tiled batch row rows k column values kCount plan v T"


@dataclass(frozen=True)
class _Operand:
    """One side of the matmul: the value of its elements, how its memory runs, and neighbours moved together.

    strides: elements from a neighbour along M or N, and along K; -1 where that varies.
    """

    name: str
    value: ScalarExpr
    computed: bool
    along_k: bool
    vector: int
    strides: tuple[int, int] = (-1, -1)


def emit_tiled_gemm(kernel: Kernel, template: SimtGemm) -> KernelSource:
    """The kernel as CUDA C++. LoweringError for operands and results at positions that are loaded."""
    aligned = _Emitter(kernel, template, vectors=True)
    source = aligned.emit()
    if not source.aligned:
        return source
    plain = replace(kernel, name=f"{kernel.name}_unaligned")
    return replace(source, unaligned=_Emitter(plain, template, vectors=False).emit())


class _Emitter:
    def __init__(self, kernel: Kernel, template: SimtGemm, *, vectors: bool) -> None:
        self.kernel, self.vectors = kernel, vectors
        self.nest = nest = template.nest
        self.thread = template.thread
        (self.sum,) = nest.sums
        self.row, self.column, self.k = nest.row.whole, nest.column.whole, nest.depth.whole
        self.style = Style(kernel)
        self.names = Names([kernel.name, *_OWN_NAMES.split()])
        self.buffers = {b: self.names.unique(b.name) for b in kernel.parameters}
        self.sizes = {s: self.names.unique(s.name) for s in kernel.sizes}
        self.symbols = {nest.batch.var: "batch", self.row.var: "row", self.column.var: "column", self.k.var: "k"}
        self.symbols |= self.sizes
        self.writer = Writer(1)

    def emit(self) -> KernelSource:
        kernel, nest = self.kernel, self.nest
        left = self._operand("left", nest.left, self.row)
        right = self._operand("right", nest.rights[0], self.column)
        self._constants(left, right)
        for buffer, name in self.buffers.items():
            self.writer.line(f"{self._pointer(buffer)} {name};")
        if self.sizes:
            self.writer.line(f"int {', '.join(self.sizes.values())};")
        if not isinstance(self.row.count, int):
            self.writer.line(f"int rows() const {{ return {bare(self._index(self.row.count, ''))}; }}")
        self._element(left, "int batch, int row, int k")
        self._element(right, "int batch, int k, int column")
        wide = self._finish()
        threads = 32 * kernel.warps
        dtype = self.sum.dtype
        m, n, k = (a.inner.extent for a in (nest.row, nest.column, nest.depth))
        shared = kernel.stages * k * (m + n + 32 // dtype.itemsize) * dtype.itemsize
        aligned = wide or left.vector > 1 or right.vector > 1
        kinds = tuple(b.dtype.name for b in kernel.parameters)
        return KernelSource(
            kernel.name,
            self._text(threads),
            kinds,
            (nest.tiles, 1, 1),
            threads,
            shared,
            aligned=aligned,
            sizes=kernel.sizes,
        )

    # Operands

    def _operand(self, name: str, operand: TemplateOperand, free: Iter) -> _Operand:
        """How an operand is fetched: copied as it lies in memory, or computed element by element."""
        value = operand.element
        if operand.tile is not None:
            steps = [vector_step(x, self.k, 1) for x in loads(value) if x.buffer.space == "parameter"]
            along = sum(s is not None and s.along == 1 for s in steps) * 2 > len(steps)
            return _Operand(name, value, True, along, 1)
        assert isinstance(value, Load)
        flat = offset_of(value.buffer, value.index)
        if flat is None:
            raise LoweringError(f"{value.buffer} read at loaded subscripts in a matmul")
        step = vector_step(value, self.k, 1)
        unit = max(1, 16 // value.dtype.itemsize)
        even = isinstance(free.count, int) and free.extent % unit == 0
        vector = unit if self.vectors and even and is_vector(value, free, unit) else 1
        along = vector == 1 and step is not None and step.along == 1
        if vector * value.dtype.itemsize < _LEAST_COPY:
            return _Operand(name, value, True, along, 1)
        strides = [coefficient(flat, i.var) for i in (free, self.k)]
        even_steps = tuple(-1 if stride is None or stride < 0 else stride for stride in strides)
        return _Operand(name, value, False, along, vector, even_steps if -1 not in even_steps else (-1, -1))  # type: ignore[arg-type]

    def _constants(self, left: _Operand, right: _Operand) -> None:
        line, nest, thread = self.writer.line, self.nest, self.thread

        def flags(*named: tuple[str, bool]) -> str:
            return ", ".join(f"{name} = {str(value).lower()}" for name, value in named)

        line(f"using Type = {memory_type(self.sum.dtype)};")
        m, n, k = (a.inner.extent for a in (nest.row, nest.column, nest.depth))
        tile = f"kTileM = {m}, kTileN = {n}, kTileK = {k}"
        line(f"static constexpr int {tile}, kStages = {self.kernel.stages};")
        line(f"static constexpr int kThreadM = {thread.rows}, kThreadN = {thread.columns}, kGroup = {_GROUP};")
        rows = self.row.count if isinstance(self.row.count, int) else -1
        whole = f"kM = {rows}, kN = {self.column.extent}, kK = {self.k.extent}"
        line(f"static constexpr int {whole}, kBatches = {nest.batch.extent};")
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
                self.writer.line(f"return {bare(stored(text, operand.value.dtype, self.sum.dtype))};")
            return
        assert isinstance(operand.value, Load)
        with self.writer.block(f"const Type* {operand.name}({parameters}) const"):
            self.writer.line(f"return {self._address(operand.value)};")

    # The epilogue

    def _finish(self) -> bool:
        """The member that stores neighbours of a row; True where it moves several at once."""
        kind = memory_type(self.sum.dtype)
        self.writer.line()
        self.writer.line("template <int kCount>")
        head = f"void finish(int batch, int row, int column, const Vec<{kind}, kCount>& values) const"
        wide = False
        with self.writer.block(head), self.names.scope():
            targets = [Load(s.target, s.index) for s in self.nest.stores]
            values = [s.value for s in self.nest.stores]
            read: dict[Load, str] = {}
            for load in dict.fromkeys(x for value in values for x in loads(value)):
                wide |= self._prefetch(load, read)
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

    def _is_wide(self, load: Load) -> bool:
        """Whether four neighbours of a row are four neighbours in memory, at a multiple of their size."""
        return self.vectors and self.column.extent % _FRAGMENT == 0 and is_vector(load, self.column, _FRAGMENT)

    def _prefetch(self, load: Load, read: dict[Load, str]) -> bool:
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
            if load.buffer is self.sum.buffer:
                return f"values[{lane}]"
            if load.buffer.space != "parameter":
                raise LoweringError(f"tile {load.buffer} in a matmul's epilogue")
            found = read.get(load) or self._subscripted(load, lane, scalars)
            return f"float({found})" if is_widened(load.dtype) else found

        scalars = Scalars(self.style, self.names, text, lambda e: self._index(e, lane), self.writer.line, roots)
        return scalars

    def _index(self, e: Index, lane: str) -> str:
        column = f"(column + {lane})" if lane else "column"
        return spell_index(e, {**self.symbols, self.column.var: column})

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
        """Blocks that are to share an SM, where their registers can."""
        small = self.thread.rows * self.thread.columns <= 64 and self.sum.dtype.bits <= 32
        return 2 if small else 1

    def _text(self, threads: int) -> str:
        pointers = [f"{self._pointer(b)} {name}" for b, name in self.buffers.items()]
        parameters = ", ".join([*pointers, *(f"int {name}" for name in self.sizes.values())])
        given = ", ".join([*self.buffers.values(), *self.sizes.values()])
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
                f"{self.kernel.name}({parameters}) {{",
                f"    Tiled<Plan>::run(Plan{{{given}}});",
                "}",
                "",
            ]
        )
