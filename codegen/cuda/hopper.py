"""Matrix products for Hopper in CUDA C++: a plan for ``fusec/gemm.cuh`` with the kernel's own epilogue in it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fusec.codegen.cuda.indices import spell_index, step_of
from fusec.codegen.cuda.scalars import Scalars, Style, bare, offset_of
from fusec.codegen.cuda.source import KernelSource
from fusec.codegen.cuda.spelling import memory_type
from fusec.codegen.cuda.tensor_map import TensorMap
from fusec.codegen.cuda.text import Names, Writer
from fusec.errors import LoweringError
from fusec.ir.index import Expr, Index, Symbol, add, symbols_of
from fusec.target.gpu import GpuTarget
from fusec.tile.fetch import Fetch, fetch_of
from fusec.tile.nodes import Alloc, Dot, Grid, Iter, Kernel, Loop, Map, Pipeline, Store
from fusec.tile.scalar import Buffer, Load, ScalarExpr, loads

_ROW_BYTES = 128
_CHUNK = 64
"""Rows and columns of the results that leave shared memory together."""
_CONSUMERS = 2
_THREADS = 384
_ALIGNMENT = 1024

_PLACES = ("batch", "row_tile", "column_tile")


@dataclass(frozen=True)
class _Moved:
    """A tensor map, and the coordinates of a box: ``free`` is the axis that a place within the tile is added to."""

    name: str
    map: TensorMap
    fetch: Fetch
    free: int


def emit_hopper_gemm(kernel: Kernel, target: GpuTarget) -> KernelSource:
    """The kernel as CUDA C++. LoweringError where its operands or results can't be moved by bulk copies."""
    return _Emitter(kernel, target).emit()


class _Emitter:
    def __init__(self, kernel: Kernel, target: GpuTarget) -> None:
        assert kernel.pipeline is not None
        self.kernel, self.target = kernel, target
        self.pipeline: Pipeline = kernel.pipeline
        (grid,) = kernel.body
        if not isinstance(grid, Grid) or len(grid.iters) != 3:
            raise LoweringError(f"{kernel.name} is no product over batches and tiles")
        self.batch, self.row_tile, self.column_tile = grid.iters
        loops = [s for s in grid.body if isinstance(s, Loop)]
        self.stores = [s for s in grid.body if isinstance(s, Store)]
        if len(loops) != 1 or any(not isinstance(s, Loop | Store | Alloc | Map) for s in grid.body):
            raise LoweringError(f"{kernel.name} does more than one loop of products")
        self.loop = loops[0]
        self.dots = [s for s in self.loop.body if isinstance(s, Dot)]
        first = self.dots[0]
        self.m, self.n, self.k = first.m, first.n, first.k
        self.dtype = first.a.dtype
        if any(d.a != first.a or d.b.dtype is not self.dtype for d in self.dots) or self.dtype.bits != 16:
            raise LoweringError(f"{kernel.name}: operands of different kinds")
        self.names = Names({kernel.name, "Plan", *_PLACES, "to", "full", "blocks", "row", "column", "k", "product"})
        self.names = Names({*self.names.taken, "output", "from", "values", "staged", "fusec"})
        self.buffers = {b: self.names.unique(b.name) for b in kernel.parameters}
        self.maps: list[_Moved] = []
        self.style = Style(kernel)
