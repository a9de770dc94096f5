# SPDX-License-Identifier: Apache-2.0
"""Maps and rows in CUDA C++: a thread computes vectors of a domain's points, tiles lie in its registers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import assert_never

from fusec.codegen.cuda.held import hold_in_registers
from fusec.codegen.cuda.indices import spell_index
from fusec.codegen.cuda.layout import Layout, is_vector, layout_of, pointwise, vector_step
from fusec.codegen.cuda.points import Point, guarded, is_inside
from fusec.codegen.cuda.scalars import Scalars, Style, bare, stored
from fusec.codegen.cuda.source import KernelSource
from fusec.codegen.cuda.spelling import literal, memory_type
from fusec.codegen.cuda.text import Names, Writer
from fusec.errors import LoweringError
from fusec.ir.index import Expr, Index, Symbol, minimum
from fusec.ir.monoid import MONOIDS
from fusec.tile.kernel import Kernel, Move, is_in_range, subscript_of
from fusec.tile.nodes import (
    Alloc,
    Block,
    Choose,
    Dot,
    Grid,
    If,
    Iter,
    Let,
    Loop,
    Map,
    Reduce,
    Scan,
    SoftmaxExp,
    Statement,
    Store,
)
from fusec.tile.scalar import Buffer, Load, ScalarExpr, loads, offset_of

_COMBINE = {
    "sum": "{0} + {1}",
    "prod": "{0} * {1}",
    "max": "maximum({0}, {1})",
    "min": "minimum({0}, {1})",
    "any": "{0} || {1}",
    "all": "{0} && {1}",
}
_FUNCTORS = {"sum": "Sum", "prod": "Product", "max": "Maximum", "min": "Minimum", "any": "Any", "all": "All"}
_HEADER = '#include "reduce.cuh"\nusing namespace fusec;\n'


def emit_blocks(kernel: Kernel) -> KernelSource:
    """A kernel of maps and reductions. LoweringError for what this layout can't say."""
    held = hold_in_registers(kernel)
    source = BlockEmitter(held, vectors=True).emit()
    if not source.aligned:
        return source
    plain = replace(held, name=f"{kernel.name}_unaligned")
    return replace(source, unaligned=BlockEmitter(plain, vectors=False).emit())


class BlockEmitter:
    """One kernel's text. ``vectors``: addresses are multiples of 16 bytes. shared: bytes of dynamic shared memory."""

    header = _HEADER
    shared = 0

    def __init__(self, kernel: Kernel, *, vectors: bool) -> None:
        (grid,) = kernel.body
        if not isinstance(grid, Grid):
            raise LoweringError(f"{kernel.name} does not start with a grid")
        self.kernel, self.grid = kernel, grid
        self.layout: Layout = layout_of(kernel, grid.body, vectors=vectors and not kernel.moves)
        self.style = Style(kernel)
        self.names = Names({kernel.name, "THREADS", "CLUSTER", "LANES", "VECTOR", "ROWS"})
        self.buffers: dict[Buffer, str] = {}
        self.symbols: dict[Symbol, str] = {}
        self.shapes: dict[Buffer, tuple[Iter, ...]] = {}
        self.writer = Writer(1)
        self.in_loop = False

    # The kernel

    def emit(self) -> KernelSource:
        kernel, layout = self.kernel, self.layout
        outputs = kernel.parameters[len(kernel.parameters) - kernel.outputs :]
        parameters = []
        for buffer in kernel.parameters:
            name = self.buffers[buffer] = self.names.unique(buffer.name)
            const = "" if buffer in outputs else "const "
            parameters.append(f"{const}{memory_type(buffer.dtype)}* __restrict__ {name}")
        self._find_shapes(self.grid.body)
        blocks = self._grid()
        self.positions()
        self.block(self.grid.body)
        together = "__cluster_dims__(CLUSTER, 1, 1) " if kernel.cluster > 1 else ""
        bounds = f"{together}__launch_bounds__(THREADS)"
        head = f'extern "C" __global__ void {bounds} {kernel.name}({", ".join(parameters)})'
        text = "\n".join([self.header, *self.constants(), "", f"{head} {{", *self.writer.lines, "}", ""])
        dtypes = tuple(b.dtype.name for b in kernel.parameters)
        grid, cluster = (blocks * kernel.cluster, 1, 1), (kernel.cluster, 1, 1)
        aligned = layout.vector > 1
        return KernelSource(kernel.name, text, dtypes, grid, layout.threads, self.shared, cluster, aligned=aligned)

    def constants(self) -> list[str]:
        layout = self.layout
        lines = [f"constexpr int THREADS = {layout.threads};"]
        if layout.vector > 1:
            lines.append(
                f"constexpr int VECTOR = {layout.vector};  // neighbouring elements that a thread moves at once"
            )
        if layout.heights > 1 or layout.fast_rows:
            side, other = ("rows", "columns") if layout.fast_rows else ("columns", "rows")
            lines.append(f"constexpr int LANES = {self._fast};  // threads along {side}; the others lie along {other}")
        return lines

    @property
    def _fast(self) -> int:
        return self.layout.heights if self.layout.fast_rows else self.layout.lanes

    def _grid(self) -> int:
        """One axis of blocks; the last iterator is the fastest."""
        live = [i for i in self.grid.iters if i.extent != 1]
        for i in self.grid.iters:
            self.symbols[i.var] = "0"
        total, step = 1, 1
        for i in self.grid.iters:
            total *= i.extent
        for i in reversed(live):
            name = self.symbols[i.var] = self.names.unique(i.var.name)
            step_of_blocks = step * self.kernel.cluster
            value = "blockIdx.x" if step_of_blocks == 1 else f"blockIdx.x / {step_of_blocks}"
            self.writer.line(f"const int {name} = {value}{'' if i is live[0] else f' % {i.extent}'};")
            step *= i.extent
        return total

    def positions(self) -> None:
        layout = self.layout
        plain = layout.heights == 1 and not layout.fast_rows
        self.fast = "threadIdx.x" if plain else "threadIdx.x % LANES"
        self.slow = "0" if plain else "threadIdx.x / LANES"
        if not plain:
            self.fast, self.slow = self.names.unique("lane"), self.names.unique("line")
            self.writer.line(
                f"[[maybe_unused]] const int {self.fast} = threadIdx.x % LANES, {self.slow} = threadIdx.x / LANES;"
            )

    def _find_shapes(self, block: Block) -> None:
        """The iterators that each tile lies over, from the statements that write it."""
        for s in pointwise(block):
            if isinstance(s, Map | Reduce):
                found = tuple(i for i in s.domain if i.var in s.index)
                if tuple(i.var for i in found) != tuple(s.index):
                    raise LoweringError(f"tile {s.target} is written at other subscripts than its domain's")
                self.shapes.setdefault(s.target, found)

    # Statements

    def block(self, block: Block) -> None:
        for s in block:
            self.statement(s)

    def statement(self, s: Statement) -> None:
        match s:
            case Alloc():
                self._alloc(s.buffer)
            case Map() | Store():
                self._map(s)
            case Reduce():
                self._reduce(s)
            case Loop():
                self._loop(s)
            case If() | Let() | Choose() | Scan() | SoftmaxExp() | Dot() | Grid():
                raise LoweringError(f"{type(s).__name__.lower()} inside a block of maps and reductions")
            case _:
                assert_never(s)

    def _alloc(self, buffer: Buffer) -> None:
        if buffer not in self.shapes:
            raise LoweringError(f"tile {buffer} is never written")
        name = self.buffers[buffer] = self.names.unique(buffer.name)
        sizes = "".join(f"[{n}]" for n in self._tile_sizes(self.shapes[buffer]))
        self.writer.line(f"{self._tile_type(buffer)} {name}{sizes};")

    def _tile_type(self, buffer: Buffer) -> str:
        return memory_type(buffer.dtype)

    def _tile_sizes(self, iters: tuple[Iter, ...]) -> list[int]:
        """A thread's part of a tile: chunks of each axis, then the vector; extents of 1 are left out."""
        sizes = [n for n in map(self.layout.chunks, iters) if n > 1]
        if any(self.layout.is_row(i) == self.layout.fast_rows for i in iters) and self.layout.vector > 1:
            sizes.append(self.layout.vector)
        return sizes

    def _loop(self, loop: Loop) -> None:
        if loop.within is not None:
            raise LoweringError("a loop whose bounds are data")
        name = self.symbols[loop.var] = self.names.unique(loop.var.name)
        start, stop = self.index(loop.start), self.index(loop.stop)
        outer, self.in_loop = self.in_loop, True
        with self.writer.block(f"for (int {name} = {bare(start)}; {name} < {bare(stop)}; {name} += {loop.step})"):
            self.block(loop.body)
        self.in_loop = outer

    def _map(self, s: Map | Store) -> None:
        target = Load(s.target, s.index)
        with self.points(s.domain, owner=isinstance(s, Store)) as point:
            name = self.buffers[s.target]
            out = ""
            if (
                isinstance(s, Store)
                and point.vector is not None
                and is_vector(target, point.vector, self.layout.vector)
            ):
                out = self.names.unique(f"{name}_v")
                self.writer.line(f"Vec<{memory_type(s.target.dtype)}, VECTOR> {out};")
            self.prefetch(s.value, point)
            with self._each(point):
                value = self._moved(s, point) or stored(self._scalar(s.value, point), s.value.dtype, s.target.dtype)
                if isinstance(s, Map):
                    into = name + self._subscripts(self.shapes[s.target], point)
                elif moves := self.kernel.moves_of(s.target):
                    into = self._moved_element(s, moves, point)
                else:
                    into = f"{out}[{point.lane}]" if out else self._element(target)
                self.writer.line(f"{into} = {bare(value)};")
            if out:
                self.writer.line(f"store({self._address(target)}, {out});")

    def _moved_element(self, s: Store, moves: Sequence[Move], point: Point) -> str:
        """An element at subscripts that are data, after the test that they are in range."""
        index, terms, tests = list(s.index), [], []
        for move in moves:
            to = subscript_of(move, s)
            if is_in_range(move, to):
                assert isinstance(to, int | Expr)
                index[move.axis] = to
                continue
            index[move.axis], name = 0, self.names.unique("to")
            text = self.index(to) if isinstance(to, int | Expr) else self._scalar(to, point)
            self.writer.line(f"const long long {name} = {bare(text)};")
            terms.append(f"{name} * {self.index(s.target.strides[move.axis])}")
            tests.append(f"{name} >= 0 && {name} < {self.index(move.extent)}")
        into = self._element(Load(s.target, tuple(index)))
        if not terms:
            return into
        self.writer.line(f"if ({' && '.join(tests)})")
        return f"{into.removesuffix(']')} + {' + '.join(terms)}]"

    def _reduce(self, s: Reduce) -> None:
        held = self.shapes[s.target]
        name, kind = self.buffers[s.target], memory_type(s.target.dtype)
        if len(held) == len(s.domain):
            self._accumulate(s)
            return
        if len(held) + 1 != len(s.domain) or (len(s.domain) == 2 and not self.layout.is_row(held[0])):
            raise LoweringError("a reduction over other axes than a domain's last")
        part = name if s.fresh else self.names.unique(f"{name}_part")
        if not s.fresh:
            self.writer.line(f"{kind} {part}{''.join(f'[{n}]' for n in self._tile_sizes(held))};")
        with self._registers(held) as slot:
            self.writer.line(f"{part}{slot} = {literal(MONOIDS[s.op].identity(s.target.dtype), s.target.dtype)};")
        self._add_up(s, part)
        self._across_threads(s, part, held)

    def _accumulate(self, s: Reduce) -> None:
        """A reduction that leaves every point of its domain apart: it adds to what is there."""
        if s.fresh:
            raise LoweringError("a reduction over nothing")
        self._add_up(s, self.buffers[s.target])

    def _add_up(self, s: Reduce, part: str) -> None:
        """Each thread's own points into ``part``."""
        with self.points(s.domain, owner=False) as point:
            self.prefetch(s.value, point)
            with self._each(point):
                value = stored(self._scalar(s.value, point), s.value.dtype, s.target.dtype)
                at = part + self._subscripts(self.shapes[s.target], point)
                self.writer.line(f"{at} = {_COMBINE[s.op].format(at, value)};")

    def _across_threads(self, s: Reduce, part: str, held: tuple[Iter, ...]) -> None:
        """Combines the threads' parts; every thread has the result then."""
        layout, functor, name = self.layout, f"{_FUNCTORS[s.op]}{{}}", self.buffers[s.target]
        threads = layout.lanes
        scratch = ""
        if threads > 1 and (layout.fast_rows or threads > 32):
            scratch = self.names.unique("scratch")
            elements = layout.threads if layout.fast_rows else layout.threads // 32
            self.writer.line(f"__shared__ {memory_type(s.target.dtype)} {scratch}[{elements}];")
        repeats = self.in_loop or bool(self._tile_sizes(held))
        slots = self.slots(s, repeats)
        with self._registers(held) as slot:
            value = part + slot
            if scratch:
                if repeats:
                    self.writer.line("__syncthreads();")
                call = f"reduce_strided<{threads}, LANES>" if layout.fast_rows else f"reduce_lanes<{threads}>"
                value = f"{call}({value}, {functor}, {scratch})"
            elif threads > 1:
                value = f"reduce_within_warp<{threads}>({value}, {functor})"
            if slots:
                value = f"reduce_cluster<CLUSTER>({value}, {functor}, {slots})"
            if not s.fresh:
                self.writer.line(f"{name}{slot} = {_COMBINE[s.op].format(name + slot, value)};")
            elif value != name + slot:
                self.writer.line(f"{name}{slot} = {value};")

    def slots(self, s: Reduce, repeats: bool) -> str:
        """The shared memory where the blocks of a cluster leave their parts of a reduction; "" for a single block."""
        return ""

    # Points of a domain

    @contextmanager
    def points(self, domain: tuple[Iter, ...], *, owner: bool) -> Iterator[Point]:
        """Loops over a thread's part of a domain. ``owner``: of threads with the same points only one runs."""
        layout, point = self.layout, Point(domain)
        with ExitStack() as stack:
            stack.enter_context(self.names.scope())
            conditions = []
            if not domain or self.layout.chunks(domain[0]) == 1:
                stack.enter_context(self.writer.block(""))
            for i in domain:
                row = layout.is_row(i)
                fast = row == layout.fast_rows
                threads = layout.heights if row else layout.lanes
                chunk = self._chunk(i, stack)
                point.chunks[i.var] = chunk
                if fast and layout.vector > 1:
                    point.vector = i
                name = self.symbols[i.var] = self.names.unique(i.var.name)
                self.writer.line(f"[[maybe_unused]] const int {name} = {self._position(chunk, threads, fast)};")
                bound = i.extent if i.limit is None else minimum(i.limit, i.extent)
                if i.limit is not None or layout.chunks(i) * threads * (layout.vector if fast else 1) > i.extent:
                    conditions.append(f"{name} < {bare(self.index(bound))}")
            if owner:
                conditions += self._only_one(domain)
            if conditions:
                stack.enter_context(self.writer.block(f"if ({' && '.join(conditions)})"))
            yield point

    def _chunk(self, i: Iter, stack: ExitStack) -> str:
        """Opens the loop over an axis' chunks and names its variable; "" for one chunk."""
        count = self.layout.chunks(i)
        if count == 1:
            return ""
        name = self.names.unique("chunk" if not self.layout.is_row(i) else "part")
        self.writer.line("#pragma unroll")
        stack.enter_context(self.writer.block(f"for (int {name} = 0; {name} < {count}; ++{name})"))
        return name

    def _position(self, chunk: str, threads: int, fast: bool) -> str:
        here = self.fast if fast else self.slow
        text = here if not chunk else f"{chunk} * {threads} + {here}"
        if threads == 1:
            text = chunk or "0"
        if fast and self.layout.vector > 1:
            text = f"({text}) * VECTOR" if not text.isidentifier() else f"{text} * VECTOR"
        return text

    def _only_one(self, domain: tuple[Iter, ...]) -> list[str]:
        layout = self.layout
        conditions = []
        for row, threads in ((False, layout.lanes), (True, layout.heights)):
            if threads > 1 and not any(layout.is_row(i) == row for i in domain):
                conditions.append(f"{self.fast if row == layout.fast_rows else self.slow} == 0")
        return conditions

    @contextmanager
    def _each(self, point: Point) -> Iterator[None]:
        """The loop over the elements of a vector."""
        if point.vector is None:
            yield
            return
        first = self.symbols[point.vector.var]
        point.lane = self.names.unique("v")
        self.writer.line("#pragma unroll")
        with self.writer.block(f"for (int {point.lane} = 0; {point.lane} < VECTOR; ++{point.lane})"):
            self.symbols[point.vector.var] = f"({first} + {point.lane})"
            yield
        self.symbols[point.vector.var] = first

    @contextmanager
    def _registers(self, iters: tuple[Iter, ...]) -> Iterator[str]:
        """Loops over a thread's part of a tile; gives the subscripts."""
        with ExitStack() as stack:
            stack.enter_context(self.names.scope())
            slot = ""
            for size in self._tile_sizes(iters):
                name = self.names.unique("k")
                self.writer.line("#pragma unroll")
                stack.enter_context(self.writer.block(f"for (int {name} = 0; {name} < {size}; ++{name})"))
                slot += f"[{name}]"
            yield slot

    def _subscripts(self, iters: tuple[Iter, ...], point: Point) -> str:
        """The subscripts of a tile's element at a point."""
        slot = "".join(f"[{point.chunks[i.var]}]" for i in iters if point.chunks[i.var])
        if self.layout.vector > 1 and any(self.layout.is_row(i) == self.layout.fast_rows for i in iters):
            slot += f"[{point.lane}]"
        return slot

    # Values

    def prefetch(self, value: ScalarExpr, point: Point) -> None:
        """Loads whole vectors, and what is one value along a vector, before the loop over its elements."""
        if point.vector is None:
            return
        choices = guarded(value)
        for load in loads(value):
            flat = offset_of(load.buffer, load.index)
            if (
                load in point.read
                or load.buffer.space != "parameter"
                or flat is None
                or (load in choices and not is_inside(load, point.domain))
            ):
                continue
            name, kind = self.buffers[load.buffer], memory_type(load.dtype)
            step = vector_step(load, point.vector, self.layout.vector)
            if is_vector(load, point.vector, self.layout.vector):
                made = self.names.unique(f"{name}_v")
                self.writer.line(f"const Vec<{kind}, VECTOR> {made} = load<VECTOR>({self._address(load)});")
                point.read[load] = f"{made}[LANE]"
            elif step is not None and step.along == 0:
                made = self.names.unique(f"{name}_here")
                self.writer.line(f"const {kind} {made} = {self._element(load)};")
                point.read[load] = made

    def _moved(self, s: Map | Store, point: Point) -> str:
        """The text of an element of memory that was loaded ahead and is kept as it is; "" for what is computed."""
        if not isinstance(s.value, Load) or s.value not in point.read or s.value.dtype is not s.target.dtype:
            return ""
        return point.read[s.value].replace("LANE", point.lane)

    def _scalar(self, value: ScalarExpr, point: Point) -> str:
        choices = guarded(value)

        def read(load: Load) -> str:
            text = self.read(load, point, load in choices, scalars)
            half = load.dtype.is_half
            return f"float({text})" if half else text

        scalars = Scalars(self.style, self.names, read, self.index, self.writer.line, [value])
        return scalars.value(value)

    def read(self, load: Load, point: Point, choice: bool, scalars: Scalars) -> str:
        if load.buffer.space == "tile":
            shape = self.shapes[load.buffer]
            if tuple(i.var for i in shape) != tuple(load.index) or any(i.var not in point.chunks for i in shape):
                raise LoweringError(f"tile {load.buffer} read at other subscripts than it was written")
            return self.buffers[load.buffer] + self._subscripts(shape, point)
        if load in point.read:
            return point.read[load].replace("LANE", point.lane)
        if offset_of(load.buffer, load.index) is None or (choice and not is_inside(load, point.domain)):
            return f"{self.buffers[load.buffer]}[{scalars.gathered(load, inside=True)}]"
        return self._element(load)

    def _element(self, load: Load) -> str:
        return f"{self.buffers[load.buffer]}[{bare(self.offset(load))}]"

    def _address(self, load: Load) -> str:
        offset = self.offset(load)
        return self.buffers[load.buffer] if offset == "0" else f"{self.buffers[load.buffer]} + {offset}"

    def offset(self, load: Load) -> str:
        flat = offset_of(load.buffer, load.index)
        if flat is None:
            raise LoweringError("a write at loaded subscripts")
        return self.index(flat)

    def index(self, e: Index) -> str:
        return spell_index(e, self.symbols)
