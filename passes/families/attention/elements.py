# SPDX-License-Identifier: Apache-2.0
"""Attention as one loop over keys: its parts, as fusion found them, and one element of each."""

from __future__ import annotations

from dataclasses import dataclass

from fusec.errors import LoweringError
from fusec.ir.graph import AttentionGroup, FusedAttributes
from fusec.ir.index import Index, Symbol, symbol
from fusec.ir.indexing import last, most
from fusec.ir.nodes import Op, Value
from fusec.ir.types import f32
from fusec.passes.contraction import accumulator_dtype, contraction, operand_index
from fusec.passes.inline import Inliner
from fusec.passes.lower.mask import held_in_f32
from fusec.tile.scalar import Apply, Buffer, Const, Load, ScalarExpr, symbols_in, with_loads_replaced
from fusec.tile.views import Subscripts, broadcast_index, fresh_index


@dataclass(frozen=True)
class AttentionParts:
    """The parts of an attention: :class:`AttentionGroup` with the ops that make its dots."""

    score_dot: Op
    scores: Value
    axis: int
    normalized: Value
    value_dot: Op
    weights_side: int
    sink: Value | None = None
    guarded: bool = False
    row_max: Value | None = None
    row_sum: Value | None = None

    @property
    def group(self) -> AttentionGroup:
        """The values, as a fused op carries them."""
        return AttentionGroup(
            self.score_dot.result,
            self.scores,
            self.axis,
            self.normalized,
            self.value_dot.result,
            self.weights_side,
            self.sink,
            self.guarded,
            self.row_max,
            self.row_sum,
        )


def attention_parts(op: Op) -> AttentionParts:
    """The parts of a fused op's attention. LoweringError if it has none."""
    attributes = op.expect(FusedAttributes)
    g, producers = attributes.roles, attributes.body.producers()
    if not isinstance(g, AttentionGroup):
        raise LoweringError(f"{attributes.body.name} does not hold an attention")
    dots = producers[g.product], producers[g.result]
    given = g.weights_side, g.sink, g.guarded, g.row_max, g.row_sum
    return AttentionParts(dots[0], g.scores, g.axis, g.normalized, dots[1], *given)


@dataclass(frozen=True)
class Elements:
    """One element of each operand, of the score and of the outputs, over tight symbols.

    ``query_side``: which operand of the first dot the queries are. ``row``: where the query's row lies among the
    scores, with 0 for the keys' axis. sink: the logit beside those of a query's keys.
    """

    query: ScalarExpr
    key: ScalarExpr
    value: ScalarExpr
    score: ScalarExpr
    raw_score: Buffer
    point: tuple[Symbol, ...]
    query_axis: int
    value_axis: int
    key_symbol: Symbol
    depth: Symbol
    query_side: int
    row: tuple[Index, ...]
    sink: ScalarExpr | None = None


def find_elements(inliner: Inliner, parts: AttentionParts) -> Elements:
    """Follows the index maps from the output through the softmax to the operands of both dots.

    LoweringError where they don't make one loop over keys.
    """
    dot, side = parts.value_dot, parts.weights_side
    axes = contraction(dot)
    shape = dot.result.type.shape
    point = fresh_index("o", shape)
    key = symbol("key", 0, last(axes.extents.k))
    nb, nl = len(axes.batch), len(axes.rows)
    batch, left, right = point[:nb], point[nb : nb + nl], point[nb + nl :]
    frees = (left, right)
    if len(frees[1 - side]) != 1:
        raise LoweringError("values with more than one free axis")
    weights_at = _where(
        inliner, parts.normalized, dot.operands[side], operand_index(dot, side, batch, frees[side], (key,))
    )
    if weights_at[parts.axis] != key:
        raise LoweringError("the dot does not contract the softmax's axis")
    value = inliner.at(dot.operands[1 - side], operand_index(dot, 1 - side, batch, frees[1 - side], (key,)))
    raw = Buffer("score", accumulator_dtype(parts.score_dot), (), (), "tile")
    score, at = _score(inliner, parts, raw, weights_at)
    query_side, query_element, key_element, depth = _score_operands(inliner, parts.score_dot, at, key)
    own = symbols_in(key_element) | symbols_in(value)
    candidates = [a for a, s in enumerate(point) if s in frees[side] and s not in own]
    if not candidates:
        raise LoweringError("every query has keys of its own")
    query_axis = max(candidates, key=lambda a: most(shape[a]))
    value_axis = point.index(frees[1 - side][0])
    sink = None
    of_row = tuple(0 if a == parts.axis else i for a, i in enumerate(weights_at))
    if parts.sink is not None:
        sink = inliner.at(parts.sink, broadcast_index(of_row, parts.sink.type.shape))
    of_points = point, query_axis, value_axis, key, depth, query_side, of_row
    return Elements(query_element, key_element, value, score, raw, *of_points, sink)


def _score(inliner: Inliner, parts: AttentionParts, raw: Buffer, index: Subscripts) -> tuple[ScalarExpr, Subscripts]:
    """The score at ``index`` over ``raw``, an element of the first dot; and that element's index."""
    seen: set[Subscripts] = set()

    def score_leaf(at: Subscripts) -> ScalarExpr:
        seen.add(at)
        return Load(raw, ())

    inliner.add_leaf(parts.score_dot.result, score_leaf)
    score = inliner.at(parts.scores, index)
    if len(seen) != 1:
        raise LoweringError("the scores read the first dot at more than one position")
    return score, seen.pop()


def _score_operands(
    inliner: Inliner, dot: Op, at: Subscripts, key: Symbol
) -> tuple[int, ScalarExpr, ScalarExpr, Symbol]:
    """The queries' side, the elements of query and key of the first dot at ``at``, and the symbol of its depth."""
    axes = contraction(dot)
    nb, nl = len(axes.batch), len(axes.rows)
    depth = symbol("depth", 0, last(axes.extents.k))
    if len(axes.inner) != 1:
        raise LoweringError("the first dot contracts more than one axis")
    sides = (at[nb : nb + nl], at[nb + nl :])
    key_side = 0 if any(i == key for i in sides[0]) else 1
    elements = [inliner.at(dot.operands[s], operand_index(dot, s, at[:nb], sides[s], (depth,))) for s in (0, 1)]
    if key in symbols_in(elements[1 - key_side]):
        raise LoweringError("the queries depend on the key's index")
    return 1 - key_side, elements[1 - key_side], elements[key_side], depth


def _where(inliner: Inliner, wanted: Value, start: Value, index: Subscripts) -> tuple[Index, ...]:
    """The index at which ``start`` at ``index`` reads ``wanted``, through views and casts alone."""
    seen: list[Subscripts] = []

    def leaf(at: Subscripts) -> ScalarExpr:
        seen.append(at)
        return Const(0.0, wanted.type.dtype)

    inliner.add_leaf(wanted, leaf)
    inliner.at(start, index)
    del inliner.leaves[wanted]
    if len(set(seen)) != 1:
        raise LoweringError(f"{start} does not read {wanted} at one position")
    return seen[0]  # type: ignore[return-value]


def score_over(raw: Load, score: ScalarExpr, product: Buffer) -> ScalarExpr:
    """A score in f32, over ``raw`` in the place of the dot of queries and keys."""
    changed = with_loads_replaced(score, product, raw)
    return held_in_f32(changed if changed.dtype is f32 else Apply("cast", (changed,), f32))
