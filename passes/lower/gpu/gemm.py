"""A matrix product on a GPU: a block of the result accumulated in registers, with prologue and epilogue."""

from __future__ import annotations

from fusec.errors import LoweringError
from fusec.ir.graph import Op
from fusec.ir.index import Index, Symbol, add, delinearize, floordiv, minimum, mod, mul, sub, symbol
from fusec.passes.lower.frame import Frame, LoweredGroup
from fusec.passes.lower.gemm import accumulator_dtype, allows_tf32, contraction, epilogue_stores, operand_index
from fusec.passes.schedule.gpu import GpuGemmSchedule
from fusec.tile.nodes import Alloc, Dot, Grid, Iter, Loop, Map, RegisterTile, Statement
from fusec.tile.scalar import Apply, Buffer, Const, Load, ScalarExpr, loads, reindex

_NO_REGISTERS = RegisterTile(0, 0)
"""A GPU's accumulators are laid out by its compiler."""


def lower_gemm(frame: Frame, schedule: GpuGemmSchedule) -> LoweredGroup:
    """Blocks are ordered in groups of rows, so that neighbours in time share operands in L2."""
    return _Gemm(frame, schedule).lower()


class _Gemm:
    def __init__(self, frame: Frame, schedule: GpuGemmSchedule) -> None:
        self.frame, self.schedule = frame, schedule
        self.ops = frame.anchors("dot")
        self.op = self.ops[0]
        self.axes = contraction(self.op)
        self.dtype = accumulator_dtype(self.op)
        self.tf32 = allows_tf32(self.op)
        if schedule.split != 1:
            raise LoweringError("products split along K")
        axes, s = self.axes, schedule
        self.row_blocks, self.column_blocks = -(-axes.m // s.m), -(-axes.n // s.n)
        self.b = symbol("b", 0, max(axes.batches - 1, 0))
        self.pid = symbol("pid", 0, max(self.row_blocks * self.column_blocks - 1, 0))
        self.i, self.j = symbol("i", 0, max(axes.m - 1, 0)), symbol("j", 0, max(axes.n - 1, 0))
        self.k = symbol("k", 0, max(axes.k - 1, 0))
        self.mi, self.ni = symbol("mi", 0, s.m - 1), symbol("ni", 0, s.n - 1)
        self.ki, self.k0 = symbol("ki", 0, s.k - 1), symbol("k0", 0, max(axes.k - 1, 0))
        mo, no = self._tile()
        self.row0, self.column0 = mul(mo, s.m), mul(no, s.n)
        self.shift: dict[Symbol, Index] = {
            self.i: add(self.row0, self.mi),
            self.j: add(self.column0, self.ni),
            self.k: add(self.k0, self.ki),
        }
        self.m = Iter(self.mi, s.m, None if axes.m % s.m == 0 else sub(axes.m, self.row0))
        self.n = Iter(self.ni, s.n, None if axes.n % s.n == 0 else sub(axes.n, self.column0))
        self.depth = Iter(self.ki, s.k, None if axes.k % s.k == 0 else sub(axes.k, self.k0))

    def _tile(self) -> tuple[Index, Index]:
        """Block number to tile: columns within groups of ``group`` row blocks."""
        group = min(self.schedule.group, self.row_blocks)
        if self.column_blocks == 1:
            return self.pid, 0
        per_group = group * self.column_blocks
        first = mul(floordiv(self.pid, per_group), group)
        inside = mod(self.pid, per_group)
        if self.row_blocks % group == 0:
            return add(first, mod(inside, group)), floordiv(inside, group)
        rows = minimum(sub(self.row_blocks, first), group)
        return add(first, mod(inside, rows)), floordiv(inside, rows)

    def lower(self) -> LoweredGroup:
        s, axes = self.schedule, self.axes
        left, left_code = self._operand(self.op, 0)
        accumulators: list[Load] = []
        before: list[Statement] = []
        inside: list[Statement] = [*left_code]
        for op in self.ops:
            name = "acc" if len(self.ops) == 1 else f"acc_{op.result.name}"
            acc = Buffer(self.frame.unique(name), self.dtype, (s.m, s.n), (s.n, 1), "tile")
            index = (self.mi, self.ni)
            zero = Const(0.0 if self.dtype.is_float else 0, self.dtype)
            before += [Alloc(acc), Map((Iter(self.mi, s.m), Iter(self.ni, s.n)), acc, index, zero)]
            right, right_code = self._operand(op, 1)
            accumulators.append(Load(acc, index))
            inside += [
                *right_code,
                Dot(self.m, self.n, self.depth, accumulators[-1], left, right, False, _NO_REGISTERS, self.tf32),
            ]
        loop = Loop(self.k0, 0, axes.k, s.k, tuple(inside))
        point = (
            *self._batch(),
            *(delinearize(self.i, axes.rows) if axes.rows else ()),
            *(delinearize(self.j, axes.columns) if axes.columns else ()),
        )
        stores = epilogue_stores(self.frame, self.ops, point, self.shift, (self.m, self.n), accumulators)
        tiles = self.row_blocks * self.column_blocks
        batch = Iter(self.b, axes.batches)
        body = (*before, loop, *stores)
        if s.walkers and s.walkers < tiles:
            walker = symbol("walker", 0, s.walkers - 1)
            grid = Grid((Iter(walker, s.walkers), batch), (Loop(self.pid, walker, tiles, s.walkers, body),))
        else:
            grid = Grid((Iter(self.pid, tiles), batch), body)
        return self.frame.finish("gemm", (grid,), s.describe())

    def _batch(self) -> tuple[Index, ...]:
        return delinearize(self.b, self.axes.batch) if self.axes.batch else ()

    def _operand(self, op: Op, side: int) -> tuple[Load, list[Statement]]:
        """A load of the operand's block, or a tile that its prologue is computed into."""
        axes = self.axes
        free_symbol, free_shape = ((self.i, axes.rows), (self.j, axes.columns))[side]
        free = delinearize(free_symbol, free_shape) if free_shape else ()
        inner = delinearize(self.k, axes.inner) if axes.inner else ()
        index = operand_index(op, side, self._batch(), free, inner)
        element = reindex(self.frame.inliner.at(op.operands[side], index), self.shift)
        if isinstance(element, Load):
            return element, []
        return self._prologue(element, op.operands[side].type.dtype.name, side)

    def _prologue(self, element: ScalarExpr, dtype: str, side: int) -> tuple[Load, list[Statement]]:
        if not loads(element):
            raise LoweringError("an operand that is no memory")
        rows, columns = ((self.m, self.depth), (self.depth, self.n))[side]
        kind = element.dtype
        shape = (rows.extent, columns.extent)
        tile = Buffer(self.frame.unique(("left", "right")[side]), kind, shape, (shape[1], 1), "tile")
        where = (rows.var, columns.var)
        value = element if element.dtype.name == dtype else Apply("cast", (element,), kind)
        return Load(tile, where), [Alloc(tile), Map((rows, columns), tile, where, value)]
