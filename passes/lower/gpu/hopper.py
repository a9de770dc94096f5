"""A matrix product for Hopper's tensor cores: operands come by bulk copies alone, straight from memory."""

from __future__ import annotations

from fusec.errors import LoweringError
from fusec.ir.graph import Op
from fusec.ir.index import Expr, Index, Symbol, add, delinearize, mul, sub, symbol
from fusec.passes.lower.frame import Frame, LoweredGroup, address_step
from fusec.passes.lower.gemm import accumulator_dtype, allows_tf32, contraction, epilogue_stores, operand_index
from fusec.passes.lower.gpu.product import Products
from fusec.passes.schedule.hopper import HopperGemmSchedule
from fusec.tile.fetch import fetch_of
from fusec.tile.nodes import Alloc, Dot, Grid, Iter, Loop, Map, RegisterTile, Statement, Store
from fusec.tile.scalar import Apply, Buffer, Const, Load, ScalarExpr, loads, reindex, walk

_NO_REGISTERS = RegisterTile(0, 0)


def lower_hopper_gemm(frame: Frame, schedule: HopperGemmSchedule) -> LoweredGroup:
    """The product's grid in plain order, batch by row tiles by column tiles; the emitter walks it.

    LoweringError for operands that a bulk copy can't fetch: computed ones, rows that are no multiple of 16 bytes.
    """
    return _HopperGemm(frame, schedule).lower()


def columns_adjoin(frame: Frame) -> bool:
    """Whether neighbours in the right operands' memory are of different columns of the result."""
    products = Products(frame)
    elements = [products.element(op, 1) for op in products.ops]
    return any(
        isinstance(e, Load) and address_step(e, products.j) == 1 and address_step(e, products.k) != 1 for e in elements
    )


class _HopperGemm:
    def __init__(self, frame: Frame, schedule: HopperGemmSchedule) -> None:
        self.frame, self.schedule = frame, schedule
        self.ops = frame.anchors("dot")
        self.axes = contraction(self.ops[0])
        kinds = {v.type.dtype for op in self.ops for v in op.operands}
        self.tf32 = all(map(allows_tf32, self.ops))
        if len(kinds) > 1 or not all(d.is_float and (d.bits == 16 or (d.bits == 32 and self.tf32)) for d in kinds):
            raise LoweringError(f"Hopper's products are of operands of 16 bits, not of {', '.join(map(str, kinds))}")
        self.dtype = accumulator_dtype(self.ops[0])
        axes, s = self.axes, schedule
        self.row_tiles, self.column_tiles = -(-axes.m // s.m), -(-axes.n // s.n)
        self.b = symbol("b", 0, max(axes.batches - 1, 0))
        self.mo, self.no = symbol("mo", 0, self.row_tiles - 1), symbol("no", 0, self.column_tiles - 1)
        self.i, self.j = symbol("i", 0, axes.m - 1), symbol("j", 0, axes.n - 1)
        self.k = symbol("k", 0, axes.k - 1)
        self.mi, self.ni = symbol("mi", 0, s.m - 1), symbol("ni", 0, s.n - 1)
        self.ki, self.k0 = symbol("ki", 0, s.k - 1), symbol("k0", 0, axes.k - 1)
        row0, column0 = mul(self.mo, s.m), mul(self.no, s.n)
        self.shift: dict[Symbol, Index] = {
            self.i: add(row0, self.mi),
            self.j: add(column0, self.ni),
            self.k: add(self.k0, self.ki),
        }
        whole_m, whole_n = s.m * s.pipeline.cluster_m, s.n * s.pipeline.cluster_n  # a cluster runs all its tiles
        self.m = Iter(self.mi, s.m, None if axes.m % whole_m == 0 else sub(axes.m, row0))
        self.n = Iter(self.ni, s.n, None if axes.n % whole_n == 0 else sub(axes.n, column0))
        self.depth = Iter(self.ki, s.k, None if axes.k % s.k == 0 else sub(axes.k, self.k0))

    def lower(self) -> LoweredGroup:
        s, axes = self.schedule, self.axes
        accumulators: list[Load] = []
        before: list[Statement] = []
        products: list[Statement] = []
        left = self._operand(self.ops[0], 0)
        for op in self.ops:
            name = "acc" if len(self.ops) == 1 else f"acc_{op.result.name}"
            acc = Buffer(self.frame.unique(name), self.dtype, (s.m, s.n), (s.n, 1), "tile")
            accumulators.append(Load(acc, (self.mi, self.ni)))
            domain = (Iter(self.mi, s.m), Iter(self.ni, s.n))
            before += [Alloc(acc), Map(domain, acc, (self.mi, self.ni), Const(0.0, self.dtype))]
            right = self._operand(op, 1)
            dot = Dot(self.m, self.n, self.depth, accumulators[-1], left, right, False, _NO_REGISTERS, self.tf32)
            products.append(dot)
        point = (
            *(delinearize(self.b, axes.batch) if axes.batch else ()),
            *(delinearize(self.i, axes.rows) if axes.rows else ()),
            *(delinearize(self.j, axes.columns) if axes.columns else ()),
        )
        products_read = [self._rounded(op, acc) for op, acc in zip(self.ops, accumulators, strict=True)]
        stores = epilogue_stores(self.frame, self.ops, point, self.shift, (self.m, self.n), products_read)
        if not all(_is_plain(s.value) for s in stores if isinstance(s, Store)):
            raise LoweringError("an epilogue that reads at loaded subscripts, or one of two places")
        grid = Grid(
            (Iter(self.b, axes.batches), Iter(self.mo, self.row_tiles), Iter(self.no, self.column_tiles)),
            (*before, Loop(self.k0, 0, axes.k, s.k, tuple(products)), *stores),
        )
        return self.frame.finish("gemm", (grid,), s.describe())

    def _rounded(self, op: Op, product: Load) -> ScalarExpr:
        """A product is rounded as the code says where the rest of its epilogue is put off until the next tile is
        multiplied (``codegen/cuda/parking.py``): 16 bits of each are kept."""
        dtype, pipeline = op.result.type.dtype, self.schedule.pipeline
        whole = pipeline.turns or pipeline.split > 1 or dtype is product.dtype
        return product if whole else Apply("cast", (product,), dtype)

    def _operand(self, op: Op, side: int) -> Load:
        axes = self.axes
        free_symbol, free_shape = ((self.i, axes.rows), (self.j, axes.columns))[side]
        batch = delinearize(self.b, axes.batch) if axes.batch else ()
        free = delinearize(free_symbol, free_shape) if free_shape else ()
        inner = delinearize(self.k, axes.inner) if axes.inner else ()
        index = operand_index(op, side, batch, free, inner)
        element = reindex(self.frame.inliner.at(op.operands[side], index), self.shift)
        domain = ((self.m, self.depth), (self.depth, self.n))[side]
        fetch = fetch_of(element, domain) if isinstance(element, Load) else None
        if not isinstance(element, Load) or fetch is None:
            raise LoweringError(f"{op.operands[side]} can't be fetched by bulk copies")
        if element.dtype.bits == 32 and fetch.turned != (side == 1):
            raise LoweringError(f"{op.operands[side]} does not lie along K, as tensor cores take 32 bits")
        return element


def _is_plain(value: ScalarExpr) -> bool:
    """Whether every element that is read lies inside its tensor, at an index known without reading another."""
    chosen = [a for e in walk(value) if isinstance(e, Apply) and e.op == "select" for a in e.args[1:]]
    if any(load.buffer.space == "parameter" for a in chosen for load in loads(a)):
        return False
    return all(isinstance(i, int | Expr) for load in loads(value) for i in load.index)
