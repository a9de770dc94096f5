# SPDX-License-Identifier: Apache-2.0
"""Rows wider than a block in CUDA C++: each block of a cluster holds its part of a row in shared memory.

What several statements read lies there, brought by TMA; what they compute from it, each computes again. So few
registers are taken that several clusters share the same multiprocessors: one waits for its rows while another stores.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from fusec.codegen.cuda.blocks import BlockEmitter
from fusec.codegen.cuda.layout import MOST_BYTES, is_vector, pointwise, vector_step
from fusec.codegen.cuda.points import Point, guarded
from fusec.codegen.cuda.scalars import Scalars
from fusec.codegen.cuda.source import KernelSource
from fusec.codegen.cuda.spelling import memory_type
from fusec.errors import LoweringError
from fusec.ir.indexing import round_up
from fusec.tile.kernel import Kernel
from fusec.tile.nodes import Alloc, Block, Grid, Iter, Map, Reduce, Statement, Store
from fusec.tile.scalar import Buffer, Load, ScalarExpr, loads, rewrite

_ALIGNED = 128
"""Bytes at a multiple of which each part of a row lies in shared memory."""


def emit_wide_rows(kernel: Kernel) -> KernelSource:
    """A row kernel for clusters of blocks, one row a cluster. LoweringError for what this layout can't say."""
    (grid,) = kernel.body
    if not isinstance(grid, Grid):
        raise LoweringError(f"{kernel.name} does not start with a grid")
    plain = replace(kernel, body=(replace(grid, body=_without_tiles(grid.body)),))
    source = _WideEmitter(plain, vectors=True).emit()
    if not source.aligned:
        return source
    unaligned = _WideEmitter(replace(plain, name=f"{kernel.name}_unaligned"), vectors=False).emit()
    return replace(source, unaligned=unaligned)


def _without_tiles(body: Block) -> Block:
    """The statements with what tiles of whole rows hold written out where it is read."""
    held: dict[Buffer, Map] = {}
    rest: list[Statement] = []

    def change(node: ScalarExpr) -> ScalarExpr | None:
        if not isinstance(node, Load) or node.buffer not in held:
            return None
        made = held[node.buffer]
        if tuple(node.index) != made.index:
            raise LoweringError(f"tile {node.buffer} read at other subscripts than it was written")
        return made.value

    for s in body:
        if isinstance(s, Map | Store | Reduce):
            s = replace(s, value=rewrite(s.value, change))
        if isinstance(s, Map) and len(s.domain) == 2:
            held[s.target] = s
        elif not isinstance(s, Alloc) or len(s.buffer.shape) != 2:
            rest.append(s)
    return tuple(rest)


class _WideEmitter(BlockEmitter):
    header = '#include "wide.cuh"\nusing namespace fusec;\n'

    def __init__(self, kernel: Kernel, *, vectors: bool) -> None:
        super().__init__(kernel, vectors=vectors)
        domains = [s.domain for s in pointwise(self.grid.body) if len(s.domain) == 2]
        if not domains or self.layout.rows > 1 or self.layout.fast_rows:
            raise LoweringError("a cluster of blocks is for one wide row")
        self.row, self.column = domains[0]
        if self.column.limit is not None or any(d != domains[0] for d in domains):
            raise LoweringError("a cluster of blocks with several domains")
        threads, vector = 32 * (kernel.warps or 4), self.layout.vector
        self.layout = replace(self.layout, lanes=threads, heights=1)
        self.length = self.column.extent
        self.part = -(-self.length // (kernel.cluster * vector)) * vector
        if self.part * (kernel.cluster - 1) >= self.length:
            raise LoweringError("a row that is too short for its cluster of blocks")
        self.begin, self.count = (self.names.unique(n) for n in ("begin", "count"))
        self.symbols[self.row.var] = "0"
        self.started = False
        self.staged: dict[Load, str] = {}
        for load in self._read_again():
            self.staged[load] = self.names.unique(f"{load.buffer.name}_part")
            self.shared += round_up(self.part * load.dtype.itemsize, _ALIGNED)

    def _read_again(self) -> list[Load]:
        """Elements along the row that more than one statement reads."""
        readers: dict[Load, int] = {}
        for s in pointwise(self.grid.body):
            choices = guarded(s.value)
            for load in dict.fromkeys(loads(s.value)):
                plain = load.buffer.space == "parameter" and not load.gathers
                step = vector_step(load, self.column, 1) if plain else None
                if len(s.domain) == 2 and step is not None and step.along == 1 and load not in choices:
                    readers[load] = readers.get(load, 0) + 1
        return [load for load, count in readers.items() if count > 1]

    def constants(self) -> list[str]:
        first, *rest = super().constants()
        lines = [first, f"constexpr int CLUSTER = {self.kernel.cluster};  // blocks that share a row"]
        return [*lines, f"constexpr int PART = {self.part};  // elements of it that each of them holds", *rest]

    def positions(self) -> None:
        line = self.writer.line
        line("cluster_arrive();")
        line(f"const int {self.begin} = blockIdx.x % CLUSTER * PART;")
        line(f"const int {self.count} = min(PART, {self.length} - {self.begin});")
        if self.staged:
            line(f"extern __shared__ __align__({_ALIGNED}) u8 memory[];")
        offset = 0
        for load, name in self.staged.items():
            kind = memory_type(load.dtype)
            line(f"{kind}* const {name} = reinterpret_cast<{kind}*>(memory + {offset});")
            offset += round_up(self.part * load.dtype.itemsize, _ALIGNED)
        copied = [load for load in self.staged if self._by_tma(load)]
        if copied:
            self._copies(copied)
        for load in self.staged:
            if load not in copied:
                with self._along() as at:
                    line(f"{self.staged[load]}[{at}] = {self._element(load)};")
        if len(copied) < len(self.staged):
            line("__syncthreads();")
        if copied:
            line("arrived.wait(0);")

    def _by_tma(self, load: Load) -> bool:
        vector = self.layout.vector
        return vector * load.dtype.itemsize % MOST_BYTES == 0 and is_vector(load, self.column, vector)

    def _copies(self, copied: list[Load]) -> None:
        line = self.writer.line
        size = sum(load.dtype.itemsize for load in copied)
        line("__shared__ Barrier arrived;")
        with self.writer.block("if (threadIdx.x == 0)"):
            line("arrived.init(1);")
            line("fence_barrier_init();")
            line("fence_async_shared();")
            line(f"arrived.arrive_expecting({self.count} * {size});")
            self.symbols[self.column.var] = self.begin
            for load in copied:
                line(
                    f"load_bytes({self.staged[load]}, {self._address(load)}, "
                    f"{self.count} * {load.dtype.itemsize}, arrived);"
                )
            del self.symbols[self.column.var]
        line("__syncthreads();")

    @contextmanager
    def _along(self) -> Iterator[str]:
        """A thread's single elements of the part; gives their position in it."""
        with ExitStack() as stack:
            stack.enter_context(self.names.scope())
            at, column = self.names.unique("at"), self.names.unique(self.column.var.name)
            head = f"for (int {at} = threadIdx.x; {at} < {self.count}; {at} += THREADS)"
            stack.enter_context(self.writer.block(head))
            self.writer.line(f"const int {column} = {self.begin} + {at};")
            self.symbols[self.column.var] = column
            yield at
            del self.symbols[self.column.var]

    def slots(self, s: Reduce, repeats: bool) -> str:
        if repeats:
            raise LoweringError("a cluster of blocks that reduces again and again")
        if not self.started:
            self.writer.line("wait_for_cluster();  // the other blocks have started")
            self.started = True
        slots = self.names.unique("parts")
        self.writer.line(f"__shared__ {memory_type(s.target.dtype)} {slots}[CLUSTER];")
        return slots

    @contextmanager
    def points(self, domain: tuple[Iter, ...], *, owner: bool) -> Iterator[Point]:
        """A loop over a thread's part of the row, or one position for the whole row."""
        point, vector = Point(domain), self.layout.vector
        with ExitStack() as stack:
            stack.enter_context(self.names.scope())
            for i in domain:
                point.chunks[i.var] = ""
                if i.var is not self.column.var:
                    self.symbols[i.var] = "0"
            if self.column not in domain:
                head = "if (blockIdx.x % CLUSTER == 0 && threadIdx.x == 0)" if owner else ""
                stack.enter_context(self.writer.block(head))
                yield point
                return
            at = point.at = self.names.unique("at")
            wide = " * VECTOR" if vector > 1 else ""
            self.writer.line("#pragma unroll 4")
            head = f"for (int {at} = threadIdx.x{wide}; {at} < {self.count}; {at} += THREADS{wide})"
            stack.enter_context(self.writer.block(head))
            name = self.symbols[self.column.var] = self.names.unique(self.column.var.name)
            self.writer.line(f"[[maybe_unused]] const int {name} = {self.begin} + {at};")
            point.vector = self.column if vector > 1 else None
            yield point

    def prefetch(self, value: ScalarExpr, point: Point) -> None:
        for load in dict.fromkeys(loads(value)):
            if load not in self.staged or not point.at:
                continue
            name = self.staged[load]
            point.read[load] = f"{name}[{point.at}]"
            if point.vector is not None:
                made = self.names.unique(f"{name}_v")
                kind = memory_type(load.dtype)
                self.writer.line(f"const Vec<{kind}, VECTOR> {made} = load<VECTOR>({name} + {point.at});")
                point.read[load] = f"{made}[LANE]"
        super().prefetch(value, point)

    def read(self, load: Load, point: Point, choice: bool, scalars: Scalars) -> str:
        if load in point.read:
            return point.read[load].replace("LANE", point.lane)
        return super().read(load, point, choice, scalars)
