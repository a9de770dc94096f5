"""Matrix products for Hopper in CUDA C++: a plan for ``gemm.cuh`` with the kernel's own epilogue inlined in it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fusec.codegen.cuda.indices import spell_index, step_of
from fusec.codegen.cuda.scalars import Scalars, Style, bare, offset_of
from fusec.codegen.cuda.source import KernelSource
from fusec.codegen.cuda.spelling import literal, memory_type, register_type
from fusec.codegen.cuda.tensor_map import TensorMap
from fusec.codegen.cuda.text import Names, Writer
from fusec.errors import LoweringError
from fusec.ir.index import Index, Symbol
from fusec.ir.types import DType
from fusec.target.gpu import GpuTarget
from fusec.tile.fetch import Fetch, fetch_of
from fusec.tile.nodes import Alloc, Dot, Grid, Iter, Kernel, Loop, Map, Pipeline, Store
from fusec.tile.scalar import Apply, Buffer, Load, ScalarExpr, loads

_ROW_BYTES = 128
_BOX = 64
"""Elements of 16 bits in a swizzled row; rows and columns of the results that leave shared memory together."""
_CONSUMERS = 2
_THREADS = 384
_ALIGNMENT = 1024
_OWN_NAMES = """Plan batch row_tile column_tile to full blocks row column k product output from values staged fusec plan
Type TensorMap Barrier gemm"""


@dataclass(frozen=True)
class _Moved:
    """A tensor map and where its boxes lie. ``places``: what is added to the coordinate along M or N within a tile."""

    name: str
    map: TensorMap
    fetch: Fetch
    places: dict[Symbol, str]


def emit_hopper_gemm(kernel: Kernel, target: GpuTarget) -> KernelSource:
    """The kernel as CUDA C++. LoweringError where bulk copies can't move its operands."""
    return _Emitter(kernel, target).emit()


class _Emitter:
    def __init__(self, kernel: Kernel, target: GpuTarget) -> None:
        assert kernel.pipeline is not None
        self.kernel, self.target = kernel, target
        self.pipeline: Pipeline = kernel.pipeline
        (grid,) = kernel.body
        if not isinstance(grid, Grid) or len(grid.iters) != 3:
            raise LoweringError(f"{kernel.name} is no product over batches and tiles")
        self.batches, self.row_tiles, self.column_tiles = grid.iters
        self.stores = [s for s in grid.body if isinstance(s, Store)]
        loops = [s for s in grid.body if isinstance(s, Loop)]
        if len(loops) != 1 or any(not isinstance(s, Loop | Store | Alloc | Map) for s in grid.body):
            raise LoweringError(f"{kernel.name} is more than one loop of products")
        self.loop = loops[0]
        self.dots = [s for s in self.loop.body if isinstance(s, Dot)]
        self.m, self.n, self.k = self.dots[0].m, self.dots[0].n, self.dots[0].k
        self.dtype = self.dots[0].a.dtype
        self.names = Names([kernel.name, *_OWN_NAMES.split()])
        self.buffers = {b: self.names.unique(b.name) for b in kernel.parameters}
        self.symbols = {self.batches.var: "batch", self.row_tiles.var: "row_tile", self.column_tiles.var: "column_tile"}
        self.symbols |= {self.loop.var: "k", self.m.var: "row", self.n.var: "column"}
        self.style = Style(kernel)
        self.maps: list[_Moved] = []
        self.writer = Writer(1)

    def emit(self) -> KernelSource:
        kernel, p = self.kernel, self.pipeline
        a = self._operand(self.dots[0].a, (self.m, self.k), 0, self.m.extent // p.cluster_n)
        b = [self._operand(d.b, (self.k, self.n), 1, self.n.extent // p.cluster_m) for d in self.dots]
        if len({m.fetch.turned for m in b}) > 1:
            raise LoweringError("operands of one product turned in different ways")
        outputs = [self._output(s) for s in self.stores]
        staged = [m for m in outputs if m is not None]
        self._constants(a, b, len(staged))
        self._members()
        self._fetches("load_a", "row_tile, int row, int k", [a], self.m)
        self._fetches("load_b", "column_tile, int column, int k, int product", b, self.n)
        self._finish(outputs)
        self._send(staged)
        return KernelSource(
            kernel.name,
            self._text(),
            tuple(x.dtype.name for x in kernel.parameters),
            (self._blocks(), 1, 1),
            _THREADS,
            self._shared(len(staged)),
            (p.cluster_m * p.cluster_n, 1, 1),
            tuple(m.map for m in self.maps),
            (self.n.extent,),
            True,
        )

    # What is moved

    def _operand(self, load: Load, domain: tuple[Iter, Iter], side: int, part: int) -> _Moved:
        """Boxes of 64 elements of memory's rows: ``part`` rows along K, or one of many where they run along M or N."""
        fetch = fetch_of(load, domain)
        if fetch is None or load.dtype is not self.dtype or self.dtype.bits != 16:
            raise LoweringError(f"{load.buffer} can't be fetched by bulk copies")
        along_k = fetch.turned == (side == 1)
        box = (part, _BOX) if along_k else (self.k.extent, _BOX)
        place = {domain[side].var: ("row", "column")[side]}
        return self._add(load, fetch, box, place)

    def _output(self, s: Store) -> _Moved | None:
        """How a result of 16 bits leaves through shared memory; None where it is stored from registers."""
        load = Load(s.target, s.index)
        fetch = fetch_of(load, (self.m, self.n)) if s.target.dtype.bits == 16 and s.target.dtype.is_float else None
        if fetch is None or fetch.turned:
            return None
        return self._add(load, fetch, (_BOX, _BOX), {self.m.var: "row", self.n.var: "column"})

    def _add(self, load: Load, fetch: Fetch, box: tuple[int, int], places: dict[Symbol, str]) -> _Moved:
        whole = (*(1 for _ in fetch.block[:-2]), *box)
        parameter = self.kernel.parameters.index(load.buffer)
        made = TensorMap(parameter, load.dtype.name, fetch.shape, fetch.strides, whole)
        known = next((m for m in self.maps if m.map == made and m.fetch == fetch), None)
        if known is not None:
            return known
        moved = _Moved(self.names.unique(f"{load.buffer.name}_map"), made, fetch, places)
        self.maps.append(moved)
        return moved

    def _coordinates(self, moved: _Moved, along: dict[int, str]) -> str:
        """Fastest axis first. ``along``: what is added to the last axis (-1) and the one before (-2)."""
        texts = [self.index(c) for c in moved.fetch.coordinates]
        for axis, place in along.items():
            texts[axis] = place if texts[axis] == "0" else f"{bare(texts[axis])} + {place}"
        return ", ".join(map(bare, reversed(texts)))

    # The plan

    def _constants(self, a: _Moved, b: list[_Moved], staged: int) -> None:
        p, line = self.pipeline, self.writer.line

        def flag(name: str, value: bool) -> str:
            return f"{name} = {str(value).lower()}"

        line(f"using Type = fusec::{self.dtype.name};")
        line(
            f"static constexpr int kTileM = {self.m.extent}, kTileN = {self.n.extent}, kStages = {self.kernel.stages};"
        )
        line(f"static constexpr int kClusterM = {p.cluster_m}, kClusterN = {p.cluster_n}, kGroup = {p.group};")
        flags = (flag("kPingPong", p.turns), flag("kTurnedA", a.fetch.turned), flag("kTurnedB", not b[0].fetch.turned))
        line(f"static constexpr bool {', '.join(flags)};")
        steps = -(-int(self.loop.stop) // self.loop.step)  # type: ignore[arg-type]
        line(f"static constexpr int kProducts = {len(b)}, kSteps = {steps}, kStaged = {staged};")
        counts = (self.batches.extent, self.row_tiles.extent, self.column_tiles.extent)
        line("static constexpr int kBatches = {}, kRowTiles = {}, kColumnTiles = {};".format(*counts))
        line()

    def _members(self) -> None:
        outputs = self.kernel.parameters[len(self.kernel.parameters) - self.kernel.outputs :]
        for buffer, name in self.buffers.items():
            const = "" if buffer in outputs else "const "
            self.writer.line(f"{const}{memory_type(buffer.dtype)}* __restrict__ {name};")
        if self.maps:
            self.writer.line(f"const TensorMap {', '.join(f'*{m.name}' for m in self.maps)};")

    def _fetches(self, name: str, parameters: str, moved: list[_Moved], free: Iter) -> None:
        line = self.writer.line
        line()
        with self.writer.block(f"void {name}(char* to, Barrier& full, u16 blocks, int batch, int {parameters}) const"):
            for number, m in enumerate(moved):
                last = number == len(moved) - 1
                if len(moved) > 1:
                    line(
                        f"if (product == {number})"
                        if not number
                        else "else"
                        if last
                        else f"else if (product == {number})"
                    )
                where = self._coordinates(m, {self._free_axis(m, free): m.places[free.var]})
                line(f"{'    ' if len(moved) > 1 else ''}fetch_tile(to, {m.name}, full, blocks, {where});")

    def _free_axis(self, moved: _Moved, free: Iter) -> int:
        """The axis along M or N: the last where the memory's rows run along it."""
        turned_b = free is self.n and not moved.fetch.turned
        return -1 if turned_b or (free is self.m and moved.fetch.turned) else -2

    def _send(self, staged: list[_Moved]) -> None:
        head = "int output, const void* from, int batch, int row_tile, int column_tile, int row, int column"
        self.writer.line()
        with self.writer.block(f"void send({head}) const"):
            for number, m in enumerate(staged):
                where = self._coordinates(m, {-1: "column", -2: "row"})
                self.writer.line(f"if (output == {number}) store_tile({m.name}, from, {where});")

    # The epilogue

    def _finish(self, outputs: list[_Moved | None]) -> None:
        count = sum(m is not None for m in outputs)
        head = "int batch, int row_tile, int column_tile, int row, int column"
        head += f", const float (&values)[{len(self.dots)}][2], u32 (&staged)[{max(count, 1)}]"
        self.writer.line()
        with self.writer.block(f"void finish({head}) const"), self.names.scope():
            self._leave_outside(count)
            pairs = self._read_pairs()
            results = [self._values(lane, pairs) for lane in range(2)]
            number = 0
            for k, (store, moved) in enumerate(zip(self.stores, outputs, strict=True)):
                low, high = (bare(r[k]) for r in results)
                if moved is not None:
                    self.writer.line(f"staged[{number}] = {store.target.dtype.name}::pack({low}, {high});")
                    number += 1
                else:
                    self._store_pair(store, low, high)

    def _leave_outside(self, count: int) -> None:
        """Nothing is read or stored beyond the limits; what bulk copies clip there is set."""
        beyond = [
            f"{self.symbols[i.var]} >= {bare(self.index(i.limit))}" for i in (self.m, self.n) if i.limit is not None
        ]
        if beyond:
            for number in range(count):
                self.writer.line(f"staged[{number}] = 0;")
            self.writer.line(f"if ({' || '.join(beyond)}) return;")

    @property
    def _odd(self) -> bool:
        """Whether the second of two neighbours may lie beyond the last column."""
        limit = self.n.limit
        if limit is None:
            return False
        step = step_of(limit, self.n.var, 2)
        return step is None or step.multiple % 2 != 0

    def _read_pairs(self) -> dict[Load, str]:
        """Loads of two neighbours at once."""
        found: dict[Load, str] = {}
        if self._odd:
            return found
        for load in dict.fromkeys(x for s in self.stores for x in loads(s.value)):
            flat = offset_of(load.buffer, load.index) if load.buffer.space == "parameter" else None
            step = step_of(flat, self.n.var, 2) if flat is not None else None
            if flat is not None and step is not None and step.along == 1 and step.multiple % 2 == 0:
                name = self.names.unique(f"{load.buffer.name}_pair")
                where = self._address(self.buffers[load.buffer], self.index(flat))
                self.writer.line(f"const Vec<{memory_type(load.dtype)}, 2> {name} = load<2>({where});")
                found[load] = name
        return found

    def _values(self, lane: int, pairs: dict[Load, str]) -> list[str]:
        """What each store stores, in its value's type, for the first or the second of two neighbours."""
        last = bare(self.index(self.n.limit)) if self._odd and self.n.limit is not None else ""
        column = f"minimum(column + 1, {last} - 1)" if last else "(column + 1)"
        symbols = {**self.symbols, self.n.var: column} if lane else self.symbols
        products = {d.accumulator.buffer: f"values[{k}][{lane}]" for k, d in enumerate(self.dots)}

        def read(load: Load) -> str:
            if load.buffer in products:
                return products[load.buffer]
            flat = offset_of(load.buffer, load.index)
            if load.buffer.space != "parameter" or flat is None:
                raise LoweringError(f"{load.buffer} read at loaded subscripts in a product's epilogue")
            text = f"{pairs[load]}[{lane}]" if load in pairs else f"{self.buffers[load.buffer]}[{bare(index(flat))}]"
            return f"float({text})" if load.dtype.is_float and load.dtype.bits < 32 else text

        def index(e: Index) -> str:
            return spell_index(e, symbols)

        roots = [_unrounded(s) for s in self.stores]
        scalars = Scalars(self.style, self.names, read, index, self.writer.line, roots)
        return [_as_float(scalars.value(e), e, s.target) for e, s in zip(roots, self.stores, strict=True)]

    def _store_pair(self, s: Store, low: str, high: str) -> None:
        flat = offset_of(s.target, s.index)
        if flat is None:
            raise LoweringError("a result stored at loaded subscripts")
        kind, name = memory_type(s.target.dtype), self.buffers[s.target]
        low, high = (_stored(x, _unrounded(s).dtype, s.target.dtype) for x in (low, high))
        step = step_of(flat, self.n.var, 2)
        if not self._odd and step is not None and step.along == 1 and step.multiple % 2 == 0:
            where = self._address(name, self.index(flat))
            self.writer.line(f"store<2>({where}, Vec<{kind}, 2>{{{{{low}, {high}}}}});")
            return
        self.writer.line(f"{name}[{bare(self.index(flat))}] = {low};")
        beside = bare(spell_index(flat, {**self.symbols, self.n.var: "(column + 1)"}))
        guard = f"if (column + 1 < {bare(self.index(self.n.limit))}) " if self._odd and self.n.limit is not None else ""
        self.writer.line(f"{guard}{name}[{beside}] = {high};")

    def _address(self, name: str, offset: str) -> str:
        return name if offset == "0" else f"{name} + {offset}"

    def index(self, e: Index) -> str:
        return spell_index(e, self.symbols)

    # The whole

    def _blocks(self) -> int:
        """As many as run at once, in whole clusters."""
        p = self.pipeline
        cluster = p.cluster_m * p.cluster_n
        rows, columns = -(-self.row_tiles.extent // p.cluster_m), -(-self.column_tiles.extent // p.cluster_n)
        return cluster * min(self.target.units // cluster, rows * columns * self.batches.extent)

    def _shared(self, staged: int) -> int:
        """Bytes, as ``Layout`` in ``gemm.cuh`` counts them."""
        stage = (self.m.extent + len(self.dots) * self.n.extent) * _ROW_BYTES
        staging = _CONSUMERS * (2 if staged == 1 else staged) * _BOX * _ROW_BYTES
        return _ALIGNMENT + self.kernel.stages * stage + staging

    def _text(self) -> str:
        outputs = self.kernel.parameters[len(self.kernel.parameters) - self.kernel.outputs :]
        parameters = []
        for buffer, name in self.buffers.items():
            const = "" if buffer in outputs else "const "
            parameters.append(f"{const}{memory_type(buffer.dtype)}* __restrict__ {name}")
        parameters += [f"const __grid_constant__ TensorMap {m.name}" for m in self.maps]
        given = [*self.buffers.values(), *(f"&{m.name}" for m in self.maps)]
        lines = [
            '#include "gemm.cuh"',
            '#include "scalar.cuh"',
            "using namespace fusec;",
            "",
            "struct Plan {",
            *self.writer.lines,
            "};",
            "",
            f'extern "C" __global__ void __launch_bounds__({_THREADS}, 1)',
            f"{self.kernel.name}({_wrapped(parameters)}) {{",
            f"    gemm(Plan{{{_wrapped(given)}}});",
            "}",
            "",
        ]
        return "\n".join(lines)


def _unrounded(s: Store) -> ScalarExpr:
    """What is stored, without the rounding to the target's type that storing does."""
    value = s.value
    is_rounding = isinstance(value, Apply) and value.op == "cast" and value.dtype is s.target.dtype
    if is_rounding and isinstance(value, Apply) and value.args[0].dtype.name == "f32":
        return value.args[0]
    return value


def _as_float(text: str, value: ScalarExpr, target: Buffer) -> str:
    half = target.dtype.is_float and target.dtype.bits < 32
    return f"float({bare(text)})" if half and not value.dtype.is_float else text


def _stored(value: str, source: DType, target: DType) -> str:
    """A computed value in the type of memory."""
    if target.is_float and target.bits < 32:
        return f"{target.name}({bare(value)})"
    if target.name == "bool" and source.name != "bool":
        return f"({value} != {literal(0, source)})"
    return value if register_type(source) == memory_type(target) else f"{memory_type(target)}({bare(value)})"


def _wrapped(items: Iterable[str]) -> str:
    return ", ".join(items)
