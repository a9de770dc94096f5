# SPDX-License-Identifier: Apache-2.0
"""A matrix times a few vectors on a GPU: threads multiply what they read of the matrix, and add up."""

from __future__ import annotations

from fusec.errors import LoweringError
from fusec.ir.index import Index, Symbol, add, mul, sub, symbol
from fusec.ir.indexing import ceildiv, last, pow2
from fusec.ir.nodes import Op
from fusec.ir.types import DType, bool_
from fusec.passes.families.gemm.hoist import hoist
from fusec.passes.families.gemm.matmul import Matmuls
from fusec.passes.families.gemm.schedule.gpu import GpuGemvSchedule
from fusec.passes.lower.blocks import GEMM_BLOCKS
from fusec.passes.lower.context import LoweredGroup, LoweringContext, address_step
from fusec.tile.nodes import Alloc, Grid, Iter, Loop, Map, Reduce, Statement
from fusec.tile.scalar import Apply, Const, IndexValue, Load, ScalarExpr, reindex

ROW_OF_A_WARP = 128 * 32
"""Elements of a row that a warp can hold."""


def lower_gemv(context: LoweringContext, schedule: GpuGemvSchedule) -> LoweredGroup:
    """A block has ``lines`` of the matrix (rows of the left operand or columns of the right), ``depth`` of K at a time.

    Each vector has sums of its own for every position of the block, which are added up across the block at the end.
    """
    return _Gemv(context, schedule).lower()


def reads_across(context: LoweringContext) -> bool:
    """Whether the neighbours of an element of the longer operand are of other rows or columns of the result."""
    matmuls = Matmuls(context)
    side = 0 if matmuls.axes.n < matmuls.axes.m else 1
    element = matmuls.element(matmuls.ops[0], side)
    line = (matmuls.i, matmuls.j)[side]
    return isinstance(element, Load) and address_step(element, matmuls.k) != 1 and address_step(element, line) == 1


class _Gemv:
    def __init__(self, context: LoweringContext, schedule: GpuGemvSchedule) -> None:
        self.context, self.schedule = context, schedule
        self.matmuls = Matmuls(context)
        axes, n, s = self.matmuls.axes, self.matmuls.extents, schedule
        self.side = 0 if axes.n < axes.m else 1
        """Which operand is the matrix."""
        self.lines, vectors = ((n.m, n.n), (n.n, n.m))[self.side]
        if not isinstance(vectors, int):
            raise LoweringError(f"a matrix times {vectors} vectors")
        self.vectors = vectors
        self.line, self.vector = ((self.matmuls.i, self.matmuls.j), (self.matmuls.j, self.matmuls.i))[self.side]
        self.blocks = ceildiv(self.lines, s.lines)
        self.pid = symbol("pid", 0, last(self.blocks))
        self.part = symbol("part", 0, s.split - 1)
        step = s.depth * s.unroll
        self.part_length = mul(ceildiv(n.k, s.split * step), step)
        self.li, self.ki = symbol("li", 0, s.lines - 1), symbol("ki", 0, s.depth - 1)
        self.k0 = symbol("k0", 0, last(n.k))
        self.line0 = mul(self.pid, s.lines)
        self.rows = Iter(self.li, s.lines, None if self.lines % s.lines == 0 else sub(self.lines, self.line0))

    def lower(self) -> LoweredGroup:
        s, matmuls = self.schedule, self.matmuls
        sums = [[self._sums() for _ in range(self.vectors)] for _ in matmuls.ops]
        block = (Iter(self.li, s.lines), Iter(self.ki, s.depth))
        zero = Const(0.0 if matmuls.dtype.is_float else 0, matmuls.dtype)
        code: list[Statement] = []
        for x in (x for of_matmul in sums for x in of_matmul):
            code += [Alloc(x.buffer), Map(block, x.buffer, (self.li, self.ki), zero)]
        code += self._statistics()
        self.matrices = [self._matrix(op, code) for op in matmuls.ops]
        start, stop = matmuls.part_of_depth(self.part, self.part_length, s.split)
        inside = [
            self._multiply(x, p, v, u) for u in range(s.unroll) for p, of in enumerate(sums) for v, x in enumerate(of)
        ]
        code.append(Loop(self.k0, start, stop, s.depth * s.unroll, tuple(inside)))
        partials = matmuls.partials(s.split) if s.split > 1 else None
        for v in range(self.vectors):
            totals: list[Load] = []
            for x in (of_matmul[v] for of_matmul in sums):
                total = self.context.tile("total", matmuls.dtype, s.lines)
                code += [Alloc(total), Reduce(block, total, (self.li,), "sum", x)]
                totals.append(Load(total, (self.li,)))
            shift = self._point(v)
            if partials is None:
                code += matmuls.stores(shift, (self.rows,), totals)
            else:
                stores = (
                    matmuls.part_store(partials, p, self.part, shift, (self.rows,), t) for p, t in enumerate(totals)
                )
                code += stores
        if partials is None:
            grid = Grid((Iter.over(self.pid, self.blocks), matmuls.batch), tuple(code))
            return self.context.finish("gemm", (grid,), s.describe(), GEMM_BLOCKS)
        iters = (Iter.over(self.pid, self.blocks), Iter(self.part, s.split), matmuls.batch)
        grid = Grid(iters, tuple(code))
        return matmuls.finish(grid, partials, s.split, s.describe())

    def _statistics(self) -> list[Statement]:
        """Every block reduces the vector for itself: it is in cache, and another kernel would be more to wait for."""
        axes = self.matmuls.axes
        block = pow2(axes.k)
        if self.matmuls.statistics and block > ROW_OF_A_WARP * self.schedule.launch.warps:
            raise LoweringError(f"a row of {axes.k} elements in {self.schedule.launch.warps} warps")
        at = symbol("at", 0, block - 1)
        code: list[Statement] = []
        for op, found in self.matmuls.statistics.items():
            element = reindex(self.matmuls.row_of(op, 1 - self.side), {self.matmuls.k: at})
            domain = (Iter(at, block, None if block == axes.k else axes.k),)
            code += [Alloc(found.buffer), Reduce(domain, found.buffer, (), op.definition.reduction.name, element)]
        return code

    def _matrix(self, op: Op, code: list[Statement]) -> ScalarExpr:
        """An element of the matrix, at depth k; what is the same along K is computed by ``code``."""
        element = reindex(self.matmuls.element(op, self.side), {self.line: add(self.line0, self.li)})
        if isinstance(element, Load):
            return element
        element, before = hoist(self.context, element, self.rows, self.matmuls.k)
        code += before
        return element

    def _sums(self) -> Load:
        buffer = self.context.tile("sums", self.matmuls.dtype, self.schedule.lines, self.schedule.depth)
        return Load(buffer, (self.li, self.ki))

    def _point(self, vector: int) -> dict[Symbol, Index]:
        return {self.line: add(self.line0, self.li), self.vector: vector}

    def _multiply(self, sums: Load, number: int, vector: int, step: int) -> Map:
        """One step of depth for one matmul and one vector."""
        depth, s = self.matmuls.extents.k, self.schedule
        k0 = add(self.k0, step * s.depth)
        limit = None if depth % (s.depth * s.unroll) == 0 else sub(depth, k0)
        shift = {**self._point(vector), self.matmuls.k: add(k0, self.ki)}
        kind = self.matmuls.dtype
        elements = [self.matrices[number], self.matmuls.element(self.matmuls.ops[number], 1 - self.side)]
        a, b = (_in(reindex(e, shift), kind) for e in (elements if self.side == 0 else elements[::-1]))
        term: ScalarExpr = Apply("mul", (a, b), kind)
        if limit is not None:
            live = Apply("lt", (IndexValue(self.ki), IndexValue(limit)), bool_)
            term = Apply("select", (live, term, Const(0.0 if kind.is_float else 0, kind)), kind)
        value = Apply("add", (sums, term), kind)
        return Map((self.rows, Iter(self.ki, s.depth, limit)), sums.buffer, (self.li, self.ki), value)


def _in(e: ScalarExpr, dtype: DType) -> ScalarExpr:
    return e if e.dtype == dtype else Apply("cast", (e,), dtype)
