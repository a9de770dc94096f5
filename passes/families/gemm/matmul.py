# SPDX-License-Identifier: Apache-2.0
"""What every kernel of matmuls on a GPU starts from: the matmuls' points, operands and stores."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod

from fusec.ir.attributes import DotAttributes
from fusec.ir.index import Index, Symbol, add, minimum, mul, product, symbol
from fusec.ir.indexing import ceildiv, delinearize, last, round_up, substitute
from fusec.ir.nodes import Op, Value
from fusec.ir.ops import OPS
from fusec.ir.ops.contract import free_axes
from fusec.ir.types import contiguous_strides, fixed
from fusec.passes.contraction import Contraction, accumulator_dtype, allows_tf32, contraction, operand_index
from fusec.passes.convolution import convolution_of
from fusec.passes.families.gemm.schedule.gpu import Making
from fusec.passes.lower.blocks import GEMM_BLOCKS
from fusec.passes.lower.context import LoweredGroup, LoweringContext, address_step
from fusec.passes.lower.epilogue import epilogue_stores
from fusec.tile.nodes import Grid, Iter, Store
from fusec.tile.scalar import Apply, Buffer, Load, ScalarExpr, loads, walk
from fusec.tile.views import joined, strided_view

FINISH_ELEMENTS = 512
"""Elements of the result that a block adds up from parts. On an H200 512 and 1024 are alike, 256 is slower."""


def prologue_ops(context: LoweringContext) -> tuple[set[Op], set[Value]]:
    """The ops of a group that make its matmuls' operands, and all values that these are or are made of."""
    above = {v for dot in context.anchors("dot") for v in dot.operands}
    ops: set[Op] = set()
    for op in reversed(context.body.ops):
        if op.name != "dot" and not above.isdisjoint(op.results):
            above.update(op.operands)
            ops.add(op)
    return ops, above


def epilogue_inputs(context: LoweringContext) -> list[Value]:
    """What a group reads besides the operands of its matmuls and what makes these."""
    _, above = prologue_ops(context)
    read = {v for o in context.body.ops if o.name != "dot" and above.isdisjoint(o.results) for v in o.operands}
    return [v for v in context.body.inputs if v in read]


_TILE, _FILLED = 128, 0.75
"""Rows or columns of a tile, and how much of them is to be filled where tiles end with an axis of an operand."""


def axes_of(context: LoweringContext) -> Contraction:
    """The axes of a group's matmuls by role.

    Free axes of an operand that are no single axis in memory (``[experts, k, columns]``) would be taken apart for each
    element. The outer ones are in the batch, along which the other operand stays the same: tiles end with the inner
    ones, and descriptors fetch them. Not where that leaves tiles too empty.
    """
    dot = context.anchors("dot")[0]
    axes = contraction(dot)
    attributes = dot.expect(DotAttributes)
    if any(op.definition.kind == "reduce" for op in context.body.ops):
        return axes
    roles = (
        (attributes.lhs_batch, attributes.lhs_contract),
        (attributes.rhs_batch, attributes.rhs_contract),
    )
    rows, columns = (
        _outer_axes(context, value, free_axes(value.type.rank, *role))
        for value, role in zip(dot.operands, roles, strict=True)
    )
    if not (rows or columns) or convolution_of(dot, context.producers) is not None:
        return axes
    return axes.with_outer(rows, columns)


def _outer_axes(context: LoweringContext, value: Value, free: Sequence[int]) -> int:
    """How many of the first free axes of an operand in memory go into the batch."""
    if not value.type.is_static or 0 in value.type.static_shape:
        return 0
    view = strided_view(value, context.producers, context.strides)
    if view is None or view.base not in context.body.inputs:
        return 0
    shape, strides = value.type.static_shape, fixed(view.strides)
    along = [(shape[a], strides[a]) for a in free]
    outer = next(n for n in range(len(along) + 1) if joined(along[n:]) is not None)
    inner = prod(n for n, _ in along[outer:])
    return outer if inner >= _FILLED * round_up(inner, _TILE) else 0


WIDEST_COPY = 16
"""Bytes that a thread copies at once."""


def copy_width(context: LoweringContext) -> int:
    """Bytes that a thread can copy at once of each operand that is in memory, by where its rows start."""
    matmuls = Matmuls(context)
    elements = (matmuls.element(op, side) for op in matmuls.ops for side in (0, 1))
    buffers = [e.buffer for e in elements if isinstance(e, Load)]
    rows = [s * b.dtype.itemsize for b in buffers for s, n in zip(b.strides, b.shape) if s != 1 and n != 1]
    return gcd(WIDEST_COPY, *(row for row in rows if isinstance(row, int)))


def making_of(context: LoweringContext, side: int) -> Making | None:
    """What it takes to have an element of an operand of the group's matmuls; None where it is in memory."""
    matmuls = Matmuls(context)
    dot = matmuls.ops[0]
    element = matmuls.element(dot, side)
    if isinstance(element, Load):
        return None
    size = max(dot.operands[side].type.most, 1)
    read = sum(min(1.0, x.buffer.most / size) * x.dtype.itemsize for x in loads(element))
    rows = (matmuls.row_of(op, side) for op in matmuls.statistics)
    along = [x for x in loads(element) if matmuls.k in x.symbols and not x.gathers]
    uneven = sum(address_step(x, matmuls.k) is None for x in along)
    return Making(read, sum(_operations(e) for e in (element, *rows)), uneven)


def _operations(element: ScalarExpr) -> int:
    return 1 + sum(max(1, OPS[e.op].flops) for e in walk(element) if isinstance(e, Apply))


class Matmuls:
    """The dots of a group, which share their left operand, at batch ``b``, row ``i``, column ``j`` and depth ``k``."""

    def __init__(self, context: LoweringContext) -> None:
        self.context = context
        self.ops = context.anchors("dot")
        self.axes = axes_of(context)
        self.dtype = accumulator_dtype(self.ops[0])
        self.tf32 = allows_tf32(self.ops[0])
        self.extents = n = self.axes.extents
        self.b = symbol("b", 0, last(n.batches))
        self.i, self.j, self.k = symbol("i", 0, last(n.m)), symbol("j", 0, last(n.n)), symbol("k", 0, last(n.k))
        self.statistics = {op: self._statistic(op) for op in context.body.ops if op.definition.kind == "reduce"}
        """Reductions of an operand that is one row, and where their results lie."""

    def _statistic(self, op: Op) -> Load:
        dtype = op.result.type.dtype.accumulator
        found = Load(Buffer(self.context.name_of(op.result), dtype, (), (), "tile"), ())
        self.context.inliner.add_leaf(op.result, lambda index: found)
        return found

    def row_of(self, op: Op, side: int) -> ScalarExpr:
        """The operand of a reduction, at depth ``k`` of the one row that the matmuls' operand is."""
        axes = self.axes
        free = tuple(0 for _ in (axes.rows, axes.columns)[side])
        inner = delinearize(self.k, axes.inner) if axes.inner else ()
        return self.context.inliner.at(op.operands[0], operand_index(self.ops[0], side, (), free, inner))

    @property
    def batch(self) -> Iter:
        return Iter.over(self.b, self.extents.batches)

    def point(self) -> tuple[Index, ...]:
        """The index of an element of the result."""
        return self.axes.result_at(self.b, self.i, self.j)

    def element(self, op: Op, side: int) -> ScalarExpr:
        """An element of an operand, with what the prologue computes."""
        index = self.axes.operand_at(op, side, self.b, self.i, self.j, self.k)
        return self.context.inliner.at(op.operands[side], index)

    def stores(self, shift: dict[Symbol, Index], domain: tuple[Iter, ...], totals: Sequence[ScalarExpr]) -> list[Store]:
        """The stores of the group's outputs over a domain that holds the matmuls."""
        return epilogue_stores(self.context, "gemm", self.ops, self.point(), shift, domain, totals)

    # Sums over K in parts

    def part_of_depth(self, part: Symbol, length: Index, parts: int) -> tuple[Index, Index]:
        """From where to where along K a part of that length is."""
        stop = self.extents.k
        if parts == 1:
            return 0, stop
        start = mul(part, length)
        return start, minimum(add(start, length), stop)

    def partials(self, parts: int) -> Buffer:
        """Memory for the parts' sums of every matmul."""
        shape = (len(self.ops), parts, self.extents.batches, self.extents.m, self.extents.n)
        return Buffer(self.context.unique("partials"), self.dtype, shape, contiguous_strides(shape))

    def part_store(
        self, partials: Buffer, number: int, part: Index, shift: dict[Symbol, Index], domain: tuple[Iter, ...], x: Load
    ) -> Store:
        """The store of one matmul's part."""
        index = tuple(substitute(s, shift) for s in (self.b, self.i, self.j))
        return Store(domain, partials, (number, part, *index), x)

    def finish(
        self, grid: Grid, partials: Buffer, parts: int, schedule: tuple[tuple[str, int | str], ...]
    ) -> LoweredGroup:
        """``grid`` fills the ``parts``; a second kernel adds them up in order, and runs the epilogue."""
        n = self.extents
        size = product((n.batches, n.m, n.n))
        blocks = ceildiv(size, FINISH_ELEMENTS)
        block, e = symbol("block", 0, last(blocks)), symbol("e", 0, FINISH_ELEMENTS - 1)
        limit = None if size % FINISH_ELEMENTS == 0 else size - block * FINISH_ELEMENTS
        flat = block * FINISH_ELEMENTS + e
        index = delinearize(flat, (n.m, n.n) if n.batches == 1 else (n.batches, n.m, n.n))
        shift: dict[Symbol, Index] = dict(zip((self.b, self.i, self.j), (0, *index)[-3:], strict=True))
        totals = [self._total(partials, p, parts, shift) for p in range(len(self.ops))]
        stores = self.stores(shift, (Iter(e, FINISH_ELEMENTS, limit),), totals)
        combined = Grid((Iter.over(block, blocks),), tuple(stores))
        traits = GEMM_BLOCKS, GEMM_BLOCKS
        return self.context.finish_in_two("gemm", (grid,), [partials], "gemm", (combined,), schedule, traits=traits)

    def _total(self, partials: Buffer, number: int, parts: int, shift: dict[Symbol, Index]) -> ScalarExpr:
        index = tuple(shift[s] for s in (self.b, self.i, self.j))
        total: ScalarExpr = Load(partials, (number, 0, *index))
        for part in range(1, parts):
            total = Apply("add", (total, Load(partials, (number, part, *index))), self.dtype)
        return total
