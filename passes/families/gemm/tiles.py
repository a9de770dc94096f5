"""Products in tiles, for emitters that walk them: what plain arithmetic and tensor cores have in common."""

from __future__ import annotations

from collections.abc import Callable

from fusec.errors import LoweringError
from fusec.ir.index import Index, Symbol, add, mul, sub, symbol
from fusec.ir.nodes import Op
from fusec.ir.types import DType
from fusec.passes.contraction import allows_tf32
from fusec.passes.families.gemm.product import Products
from fusec.passes.lower.frame import Frame, LoweredGroup
from fusec.tile.nodes import Alloc, Dot, Grid, Iter, Loop, Map, RegisterTile, Statement
from fusec.tile.scalar import Buffer, Const, Load, ScalarExpr, loads, reindex

Description = tuple[tuple[str, int | str], ...]
Operand = tuple[Load, list[Statement]]
"""A block of an operand, and the code of a step along K that makes it."""

_NO_REGISTERS = RegisterTile(0, 0)


class TiledProducts(Products):
    """The grid in plain order, batch by row tiles by column tiles, each of ``m`` by ``n`` in steps of ``k``.

    cluster: tiles of rows and of columns that run together, so that some of them may lie beyond the end.
    """

    def __init__(self, frame: Frame, m: int, n: int, k: int, cluster: tuple[int, int] = (1, 1)) -> None:
        super().__init__(frame)
        if self.statistics:
            raise LoweringError("a product of tiles reduces no rows of its operands")
        axes = self.axes
        self.row_tiles, self.column_tiles = -(-axes.m // m), -(-axes.n // n)
        self.mo, self.no = symbol("mo", 0, self.row_tiles - 1), symbol("no", 0, self.column_tiles - 1)
        mi, ni, ki = symbol("mi", 0, m - 1), symbol("ni", 0, n - 1), symbol("ki", 0, k - 1)
        self.k0 = symbol("k0", 0, axes.k - 1)
        row0, column0 = mul(self.mo, m), mul(self.no, n)
        self.shift: dict[Symbol, Index] = {self.i: add(row0, mi), self.j: add(column0, ni), self.k: add(self.k0, ki)}
        self.m = Iter(mi, m, None if axes.m % (m * cluster[0]) == 0 else sub(axes.m, row0))
        self.n = Iter(ni, n, None if axes.n % (n * cluster[1]) == 0 else sub(axes.n, column0))
        self.depth = Iter(ki, k, None if axes.k % k == 0 else sub(axes.k, self.k0))

    def lower(
        self, schedule: Description, operand: Callable[[Op, int], Operand], registers: RegisterTile = _NO_REGISTERS
    ) -> LoweredGroup:
        """The kernel, of the operands that ``operand(op, side)`` gives, sides being 0 and 1."""
        whole = (Iter(self.m.var, self.m.extent), Iter(self.n.var, self.n.extent))
        place, shape = (self.m.var, self.n.var), (self.m.extent, self.n.extent)
        zero = Const(0.0 if self.dtype.is_float else 0, self.dtype)
        totals: list[ScalarExpr] = []
        before: list[Statement] = []
        left, step = operand(self.ops[0], 0)
        for op in self.ops:
            name = "acc" if len(self.ops) == 1 else f"acc_{op.result.name}"
            acc = Load(Buffer(self.frame.unique(name), self.dtype, shape, (shape[1], 1), "tile"), place)
            before += [Alloc(acc.buffer), Map(whole, acc.buffer, place, zero)]
            right, code = operand(op, 1)
            dot = Dot(self.m, self.n, self.depth, acc, left, right, False, registers, self.tf32)
            step = [*step, *code, dot]
            totals.append(self.total(op, acc))
        stores = self.stores(self.shift, (self.m, self.n), totals)
        tiles = (self.batch, Iter(self.mo, self.row_tiles), Iter(self.no, self.column_tiles))
        loop = Loop(self.k0, 0, self.axes.k, self.depth.extent, tuple(step))
        return self.frame.finish("gemm", (Grid(tiles, (*before, loop, *stores)),), schedule)

    def total(self, op: Op, product: Load) -> ScalarExpr:
        """What the epilogue reads of a product."""
        return product

    def loaded_or_computed(self, op: Op, side: int, dtype: DType) -> Operand:
        """A load of the operand's memory, or a tile of ``dtype`` that its value is computed into."""
        element = reindex(self.element(op, side), self.shift)
        if isinstance(element, Load) and element.dtype is dtype:
            return element, []
        if not loads(element):
            raise LoweringError("an operand that is no memory")
        domain = self.domain(side)
        shape = tuple(i.extent for i in domain)
        tile = Buffer(self.frame.unique(("left", "right")[side]), dtype, shape, (shape[1], 1), "tile")
        index = tuple(i.var for i in domain)
        return Load(tile, index), [Alloc(tile), Map(domain, tile, index, element)]

    def domain(self, side: int) -> tuple[Iter, Iter]:
        """Of an operand's block."""
        return ((self.m, self.depth), (self.depth, self.n))[side]

    def multiplied_type(self) -> DType:
        """The operands' one type, of 16 bits or of 32 that may be rounded to TF32, which tensor cores multiply."""
        kinds = {v.type.dtype for op in self.ops for v in op.operands}
        self.tf32 = all(map(allows_tf32, self.ops))
        if len(kinds) > 1 or not all(d.is_float and (d.bits == 16 or (d.bits == 32 and self.tf32)) for d in kinds):
            raise LoweringError(f"tensor cores multiply no {', '.join(map(str, kinds))}, but 16 bits, or 32 as TF32")
        return kinds.pop()
