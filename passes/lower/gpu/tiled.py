"""A matrix product in plain arithmetic on a GPU, for any element type: operands may be computed on the way."""

from __future__ import annotations

from fusec.errors import LoweringError
from fusec.ir.index import Index, Symbol, add, delinearize, mul, sub, symbol
from fusec.passes.lower.frame import Frame, LoweredGroup
from fusec.passes.lower.gemm import accumulator_dtype, contraction, epilogue_stores, operand_index
from fusec.passes.schedule.tiled import TiledGemmSchedule
from fusec.tile.nodes import Alloc, Dot, Grid, Iter, Loop, Map, Statement
from fusec.tile.scalar import Buffer, Const, Load, ScalarExpr, loads, reindex


def lower_tiled_gemm(frame: Frame, schedule: TiledGemmSchedule) -> LoweredGroup:
    """The product's grid in plain order, batch by row tiles by column tiles; the emitter walks it."""
    return _TiledGemm(frame, schedule).lower()


class _TiledGemm:
    def __init__(self, frame: Frame, schedule: TiledGemmSchedule) -> None:
        self.frame, self.schedule = frame, schedule
        ops = frame.anchors("dot")
        if len(ops) > 1:
            raise LoweringError(f"{len(ops)} products side by side in plain arithmetic")
        self.op = ops[0]
        self.axes = contraction(self.op)
        self.dtype = accumulator_dtype(self.op)
        axes, s = self.axes, schedule
        self.row_tiles, self.column_tiles = -(-axes.m // s.m), -(-axes.n // s.n)
        self.b = symbol("b", 0, max(axes.batches - 1, 0))
        self.mo, self.no = symbol("mo", 0, self.row_tiles - 1), symbol("no", 0, self.column_tiles - 1)
        self.i, self.j = symbol("i", 0, axes.m - 1), symbol("j", 0, axes.n - 1)
        self.k = symbol("k", 0, axes.k - 1)
        mi, ni, ki = symbol("mi", 0, s.m - 1), symbol("ni", 0, s.n - 1), symbol("ki", 0, s.k - 1)
        self.k0 = symbol("k0", 0, axes.k - 1)
        row0, column0 = mul(self.mo, s.m), mul(self.no, s.n)
        self.shift: dict[Symbol, Index] = {self.i: add(row0, mi), self.j: add(column0, ni), self.k: add(self.k0, ki)}
        self.m = Iter(mi, s.m, None if axes.m % s.m == 0 else sub(axes.m, row0))
        self.n = Iter(ni, s.n, None if axes.n % s.n == 0 else sub(axes.n, column0))
        self.depth = Iter(ki, s.k, None if axes.k % s.k == 0 else sub(axes.k, self.k0))

    def lower(self) -> LoweredGroup:
        s, axes = self.schedule, self.axes
        buffer = Buffer(self.frame.unique("acc"), self.dtype, (s.m, s.n), (s.n, 1), "tile")
        accumulator = Load(buffer, (self.m.var, self.n.var))
        whole = (Iter(self.m.var, s.m), Iter(self.n.var, s.n))
        zero = Const(0.0 if self.dtype.is_float else 0, self.dtype)
        left, left_code = self._operand(0)
        right, right_code = self._operand(1)
        dot = Dot(self.m, self.n, self.depth, accumulator, left, right, False, s.registers)
        loop = Loop(self.k0, 0, axes.k, s.k, (*left_code, *right_code, dot))
        point = (
            *self._batch(),
            *(delinearize(self.i, axes.rows) if axes.rows else ()),
            *(delinearize(self.j, axes.columns) if axes.columns else ()),
        )
        stores = epilogue_stores(self.frame, [self.op], point, self.shift, (self.m, self.n), [accumulator])
        grid = Grid(
            (Iter(self.b, axes.batches), Iter(self.mo, self.row_tiles), Iter(self.no, self.column_tiles)),
            (Alloc(buffer), Map(whole, buffer, accumulator.index, zero), loop, *stores),  # type: ignore[arg-type]
        )
        return self.frame.finish("gemm", (grid,), s.describe())

    def _batch(self) -> tuple[Index, ...]:
        return delinearize(self.b, self.axes.batch) if self.axes.batch else ()

    def _operand(self, side: int) -> tuple[Load, list[Statement]]:
        """A load of the operand's memory, or a tile that its value is computed into."""
        axes = self.axes
        free_symbol, free_shape = ((self.i, axes.rows), (self.j, axes.columns))[side]
        free = delinearize(free_symbol, free_shape) if free_shape else ()
        inner = delinearize(self.k, axes.inner) if axes.inner else ()
        index = operand_index(self.op, side, self._batch(), free, inner)
        element = reindex(self.frame.inliner.at(self.op.operands[side], index), self.shift)
        if isinstance(element, Load) and element.dtype is self.dtype:
            return element, []
        return self._computed(element, side)

    def _computed(self, element: ScalarExpr, side: int) -> tuple[Load, list[Statement]]:
        if not loads(element):
            raise LoweringError("an operand that is no memory")
        domain = ((self.m, self.depth), (self.depth, self.n))[side]
        shape = tuple(i.extent for i in domain)
        tile = Buffer(self.frame.unique(("left", "right")[side]), self.dtype, shape, (shape[1], 1), "tile")
        index = tuple(i.var for i in domain)
        return Load(tile, index), [Alloc(tile), Map(domain, tile, index, element)]
