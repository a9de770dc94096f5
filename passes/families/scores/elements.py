# SPDX-License-Identifier: Apache-2.0
"""A score space as loops over its rows and columns: its parts, as fusion found them, and one element of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusec.errors import LoweringError
from fusec.ir.attributes import ReduceAttributes
from fusec.ir.graph import FusedAttributes, ScoresGroup
from fusec.ir.index import Expr, Index, Symbol, symbol, terms_of
from fusec.ir.indexing import last, linearize, most
from fusec.ir.nodes import Op
from fusec.ir.types import Dim
from fusec.passes.contraction import Contraction, accumulator_dtype, contraction, operand_index
from fusec.passes.inline import Inliner, Leaf
from fusec.tile.scalar import Buffer, Load, ScalarExpr, symbols_in
from fusec.tile.views import Subscripts, pure


@dataclass(frozen=True)
class ScoresParts:
    """The parts of a score space: :class:`ScoresGroup` with the ops that make its products and results."""

    products: tuple[Op, ...]
    consumers: tuple[Op, ...]
    sides: tuple[int, ...]
    sums: tuple[Op, ...] = ()
    stored: tuple[Op, ...] = ()

    @property
    def ends(self) -> tuple[Op, ...]:
        """The dots and the sums that consume values of the space."""
        return *self.consumers, *self.sums

    @property
    def group(self) -> ScoresGroup:
        """The values, as a fused op carries them."""
        parts = (self.products, self.consumers, self.sums, self.stored)
        products, results, sums, stored = (tuple(op.result for op in ops) for ops in parts)
        return ScoresGroup(products, results, self.sides, sums, stored)


def scores_parts(op: Op) -> ScoresParts:
    """The parts of a fused op's score space. LoweringError if it has none."""
    attributes = op.expect(FusedAttributes)
    roles, producers = attributes.roles, attributes.body.producers()
    if not isinstance(roles, ScoresGroup):
        raise LoweringError(f"{attributes.body.name} does not hold a score space")
    parts = (roles.products, roles.results, roles.sums, roles.stored)
    products, consumers, sums, stored = (tuple(producers[v] for v in values) for values in parts)
    return ScoresParts(products, consumers, roles.sides, sums, stored)


@dataclass(frozen=True)
class ScoreProduct:
    """A dot that makes a value at each point.

    raw: stands for the value in expressions. row, column: the elements that are multiplied and added over ``depth``, of
    which there are ``extent``; the first depends on the point's row alone, the second on its column. column_side: which
    of the dot's operands the second is.
    """

    raw: Buffer
    row: ScalarExpr
    column: ScalarExpr
    depth: Symbol
    extent: int
    column_side: int


@dataclass(frozen=True)
class ScoreConsumer:
    """A dot along the columns.

    score: what it consumes at a point, over the products' ``raw``. column: the element that multiplies it, of a column
    and one of ``extent`` places along ``place``. point: the index of the result.
    """

    op: Op
    score: ScalarExpr
    column: ScalarExpr
    place: Symbol
    extent: int
    point: tuple[Symbol, ...]


@dataclass(frozen=True)
class ScoreSum:
    """A sum along the columns of ``score``, a value at a point; ``point`` is the index of the result."""

    op: Op
    score: ScalarExpr
    point: tuple[Symbol, ...]


@dataclass(frozen=True)
class StoredScore:
    """A value of the space that is a result: ``score`` at a point, where its own index is ``index``."""

    op: Op
    score: ScalarExpr
    index: tuple[Index, ...]


@dataclass(frozen=True)
class ScoreElements:
    """One element of each part, over tight symbols.

    row, column: the symbols of a point, with the extents of both axes; ``others`` those of the axes that all parts
    share, which are batch axes and free axes of the results that are no rows.
    """

    products: tuple[ScoreProduct, ...]
    consumers: tuple[ScoreConsumer, ...]
    sums: tuple[ScoreSum, ...]
    stored: tuple[StoredScore, ...]
    row: Symbol
    rows: Dim
    column: Symbol
    columns: Dim
    others: tuple[tuple[Symbol, Dim], ...]

    @property
    def scores(self) -> list[ScalarExpr]:
        """What is consumed at a point: by each dot, then by each sum; then what is stored."""
        consumed = [*(c.score for c in self.consumers), *(s.score for s in self.sums)]
        return consumed + [s.score for s in self.stored]


@dataclass(frozen=True)
class _Frame:
    """The symbols that all consumers share: their batch axes, their free axes on the space's side, and the column."""

    batch: tuple[Symbol, ...]
    free: tuple[Symbol, ...]
    column: Symbol
    extents: tuple[Dim, ...]

    @property
    def point(self) -> tuple[Symbol, ...]:
        return (*self.batch, *self.free)


def find_elements(inliner: Inliner, parts: ScoresParts) -> ScoreElements:
    """Follows the index maps from the results to the operands of the products.

    LoweringError where they don't make one loop over the columns of blocks of rows.
    """
    seen: list[set[Subscripts]] = [set() for _ in parts.products]
    raws: list[Buffer] = []
    for number, op in enumerate(parts.products):
        raw = Buffer(f"score{number}", accumulator_dtype(op), (), (), "tile")
        raws.append(raw)
        inliner.add_leaf(op.result, _noted(raw, seen[number]))
    frame = _frame(parts)
    stored = _stored(inliner, frame, parts)
    consumers = [_consumer(inliner, frame, c, side) for c, side in zip(parts.consumers, parts.sides, strict=True)]
    sums = tuple(_sum(inliner, frame, op) for op in parts.sums)
    products: list[ScoreProduct] = []
    for raw, op, at in zip(raws, parts.products, seen, strict=True):
        if len(at) != 1:
            raise LoweringError(f"{op.result} is read at more than one place for a point")
        products.append(_product(inliner, raw, op, at.pop(), frame))
    row = _row(frame, products)
    others = tuple((s, n) for s, n in zip(frame.point, frame.extents, strict=False) if s is not row)
    extent = dict(zip(frame.point, frame.extents, strict=False))[row]
    transposed = tuple(_transposed(p, row, frame.column) for p in products)
    ends = tuple(consumers), sums, stored
    return ScoreElements(transposed, *ends, row, extent, frame.column, frame.extents[-1], others)


def _noted(raw: Buffer, seen: set[Subscripts]) -> Leaf:
    def leaf(index: Subscripts) -> ScalarExpr:
        seen.add(index)
        return Load(raw, ())

    return leaf


def _frame(parts: ScoresParts) -> _Frame:
    """The frame of the first consumer, where it is that of all."""
    found = [_extents(c, side) for c, side in zip(parts.consumers, parts.sides, strict=True)]
    if len(set(found)) > 1:
        raise LoweringError("the results do not have the same rows and columns")
    batch, free, columns = found[0]
    symbols = tuple(symbol(f"o{a}", 0, last(n)) for a, n in enumerate((*batch, *free)))
    column = symbol("column", 0, last(columns))
    return _Frame(symbols[: len(batch)], symbols[len(batch) :], column, (*batch, *free, columns))


def _extents(op: Op, side: int) -> tuple[tuple[Dim, ...], tuple[Dim, ...], Dim]:
    """Batch axes, the space's free axes and the contracted axis of a consumer."""
    axes = contraction(op)
    if len(axes.inner) != 1:
        raise LoweringError("a product that reads the scores contracts more than one axis")
    return axes.batch, _free(axes, side), axes.inner[0]


def _free(axes: Contraction, side: int) -> tuple[Dim, ...]:
    return axes.columns if side else axes.rows


def _consumer(inliner: Inliner, frame: _Frame, op: Op, side: int) -> ScoreConsumer:
    (extent,) = _one(_free(contraction(op), 1 - side), "values with more than one free axis")
    place = symbol("place", 0, last(extent))
    score = inliner.at(op.operands[side], operand_index(op, side, frame.batch, frame.free, (frame.column,)))
    column = inliner.at(op.operands[1 - side], operand_index(op, 1 - side, frame.batch, (place,), (frame.column,)))
    frees = (*frame.free, place) if side == 0 else (place, *frame.free)
    return ScoreConsumer(op, score, column, place, _known(extent), (*frame.batch, *frees))


def _sum(inliner: Inliner, frame: _Frame, op: Op) -> ScoreSum:
    (value,), (axis,) = op.operands, op.expect(ReduceAttributes).axes
    if (*op.result.type.shape, value.type.shape[axis]) != frame.extents:
        raise LoweringError(f"{op.result} does not lie along the rows of the scores")
    index = (*frame.point[:axis], frame.column, *frame.point[axis:])
    return ScoreSum(op, inliner.at(value, index), frame.point)


def _stored(inliner: Inliner, frame: _Frame, parts: ScoresParts) -> tuple[StoredScore, ...]:
    """The values that are results too, each where the consumers read it."""
    found: list[StoredScore] = []
    for op in parts.stored:
        seen: set[Subscripts] = set()
        inliner.add_leaf(op.result, _noted(Buffer("stored", op.result.type.dtype, (), (), "tile"), seen))
        for consumer, side in zip(parts.consumers, parts.sides, strict=True):
            _consumer(inliner, frame, consumer, side)
        for each in parts.sums:
            _sum(inliner, frame, each)
        inliner.drop_leaf(op.result)
        index = seen.pop() if len(seen) == 1 else ()
        if not _is_whole(op, index, frame):
            raise LoweringError(f"{op.result} is stored, and is not read at one point each")
        found.append(StoredScore(op, inliner.at(op.result, index), pure(index)))
    return tuple(found)


def _is_whole(op: Op, index: Subscripts, frame: _Frame) -> bool:
    """Whether an index takes each element of an op's result once, over the points of the space."""
    extents: dict[Expr, Dim] = dict(zip((*frame.point, frame.column), frame.extents, strict=True))
    if not index or any(not isinstance(n, int) for n in extents.values()):
        return False
    constant, terms = terms_of(linearize(pure(index), op.result.type.shape))
    step = 1
    for atom, k in sorted(terms.items(), key=lambda term: term[1]):
        if k != step or atom not in extents:
            return False
        step *= most(extents[atom])
    return constant == 0 and step == op.result.type.count


def _one(dims: Sequence[Dim], reason: str) -> tuple[Dim]:
    if len(dims) != 1:
        raise LoweringError(reason)
    return (dims[0],)


def _known(extent: Dim) -> int:
    if not isinstance(extent, int):
        raise LoweringError("heads of symbolic extent")
    return extent


def _product(inliner: Inliner, raw: Buffer, op: Op, at: Subscripts, frame: _Frame) -> ScoreProduct:
    """The product with its operands in their order."""
    axes = contraction(op)
    (extent,) = _one(axes.inner, "a product that makes scores contracts more than one axis")
    nb, nl = len(axes.batch), len(axes.rows)
    depth = symbol("depth", 0, last(extent))
    sides = (at[nb : nb + nl], at[nb + nl :])
    a, b = (inliner.at(op.operands[s], operand_index(op, s, at[:nb], sides[s], (depth,))) for s in (0, 1))
    return ScoreProduct(raw, a, b, depth, _known(extent), 1)


def _row(frame: _Frame, products: Sequence[ScoreProduct]) -> Symbol:
    """The longest axis that blocks of rows may be cut from: one operand of each product depends on it, and the other
    on the column."""
    extents = dict(zip(frame.point, frame.extents, strict=False))
    found = [s for s in frame.free if all(_is_row(p, s, frame.column) for p in products)]
    if not found:
        raise LoweringError("no axis of the scores is one of rows: each has columns of its own")
    return max(found, key=lambda s: most(extents[s]))


def _is_row(p: ScoreProduct, row: Symbol, column: Symbol) -> bool:
    a, b = symbols_in(p.row), symbols_in(p.column)
    return (row in a and row not in b and column in b and column not in a) or (
        row in b and row not in a and column in a and column not in b
    )


def _transposed(p: ScoreProduct, row: Symbol, column: Symbol) -> ScoreProduct:
    """The product with the operand of rows first."""
    if row in symbols_in(p.row):
        return p
    return ScoreProduct(p.raw, p.column, p.row, p.depth, p.extent, 0)
