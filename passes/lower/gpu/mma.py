"""A matrix product for warps' tensor core instructions (sm_80 and later): operands come as they lie, or computed."""

from __future__ import annotations

from fusec.errors import LoweringError
from fusec.ir.graph import Op
from fusec.ir.index import Index, Symbol, add, mul, sub, symbol
from fusec.passes.lower.frame import Frame, LoweredGroup
from fusec.passes.lower.gemm import allows_tf32
from fusec.passes.lower.gpu.product import Products
from fusec.passes.schedule.mma import MmaGemmSchedule
from fusec.tile.nodes import Alloc, Dot, Grid, Iter, Loop, Map, RegisterTile, Statement
from fusec.tile.scalar import Buffer, Const, Load, loads, reindex


def lower_mma_gemm(frame: Frame, schedule: MmaGemmSchedule) -> LoweredGroup:
    """The product's grid in plain order, batch by row tiles by column tiles; the emitter walks it.

    LoweringError for operands that tensor cores don't multiply: not of 16 bits, nor of 32 that may be rounded to TF32.
    """
    return _MmaGemm(frame, schedule).lower()


class _MmaGemm(Products):
    def __init__(self, frame: Frame, schedule: MmaGemmSchedule) -> None:
        super().__init__(frame)
        self.schedule = s = schedule
        kinds = {v.type.dtype for op in self.ops for v in op.operands}
        self.tf32 = all(map(allows_tf32, self.ops))
        if len(kinds) > 1 or not all(d.is_float and (d.bits == 16 or (d.bits == 32 and self.tf32)) for d in kinds):
            raise LoweringError(f"tensor cores multiply no {', '.join(map(str, kinds))}")
        (self.operands,) = kinds
        axes = self.axes
        self.row_tiles, self.column_tiles = -(-axes.m // s.m), -(-axes.n // s.n)
        self.mo, self.no = symbol("mo", 0, self.row_tiles - 1), symbol("no", 0, self.column_tiles - 1)
        mi, ni, ki = symbol("mi", 0, s.m - 1), symbol("ni", 0, s.n - 1), symbol("ki", 0, s.k - 1)
        self.k0 = symbol("k0", 0, axes.k - 1)
        row0, column0 = mul(self.mo, s.m), mul(self.no, s.n)
        self.shift: dict[Symbol, Index] = {self.i: add(row0, mi), self.j: add(column0, ni), self.k: add(self.k0, ki)}
        self.m = Iter(mi, s.m, None if axes.m % s.m == 0 else sub(axes.m, row0))
        self.n = Iter(ni, s.n, None if axes.n % s.n == 0 else sub(axes.n, column0))
        self.depth = Iter(ki, s.k, None if axes.k % s.k == 0 else sub(axes.k, self.k0))

    def lower(self) -> LoweredGroup:
        s = self.schedule
        registers = RegisterTile(s.warp_m, s.warp_n)
        whole = (Iter(self.m.var, s.m), Iter(self.n.var, s.n))
        place = (self.m.var, self.n.var)
        accumulators: list[Load] = []
        before: list[Statement] = []
        left, step = self._operand(self.ops[0], 0)
        for op in self.ops:
            name = "acc" if len(self.ops) == 1 else f"acc_{op.result.name}"
            acc = Buffer(self.frame.unique(name), self.dtype, (s.m, s.n), (s.n, 1), "tile")
            accumulators.append(Load(acc, place))
            before += [Alloc(acc), Map(whole, acc, place, Const(0.0, self.dtype))]
            right, code = self._operand(op, 1)
            dot = Dot(self.m, self.n, self.depth, accumulators[-1], left, right, False, registers, self.tf32)
            step += [*code, dot]
        stores = self.stores(self.shift, (self.m, self.n), accumulators)
        tiles = (self.batch, Iter(self.mo, self.row_tiles), Iter(self.no, self.column_tiles))
        grid = Grid(tiles, (*before, Loop(self.k0, 0, self.axes.k, s.k, tuple(step)), *stores))
        return self.frame.finish("gemm", (grid,), s.describe())

    def _operand(self, op: Op, side: int) -> tuple[Load, list[Statement]]:
        """A load of the operand's memory, or a tile that its value is computed into."""
        element = reindex(self.element(op, side), self.shift)
        if isinstance(element, Load) and element.dtype is self.operands:
            return element, []
        if not loads(element):
            raise LoweringError("an operand that is no memory")
        domain = ((self.m, self.depth), (self.depth, self.n))[side]
        shape = tuple(i.extent for i in domain)
        tile = Buffer(self.frame.unique(("left", "right")[side]), self.operands, shape, (shape[1], 1), "tile")
        index = tuple(i.var for i in domain)
        return Load(tile, index), [Alloc(tile), Map(domain, tile, index, element)]
