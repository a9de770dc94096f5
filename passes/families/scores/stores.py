# SPDX-License-Identifier: Apache-2.0
"""The stores of a score space's results, each with what is computed of it at the same points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from fusec.errors import LoweringError
from fusec.ir.index import Index, Symbol
from fusec.ir.nodes import Op, Value
from fusec.passes.families.scores.elements import ScoreElements, ScoresParts
from fusec.passes.lower.context import LoweringContext, expect_index
from fusec.passes.lower.epilogue import epilogue_stores
from fusec.tile.nodes import Iter, Store
from fusec.tile.scalar import Load


def scores_stores(
    context: LoweringContext,
    parts: ScoresParts,
    e: ScoreElements,
    shift: Mapping[Symbol, Index],
    rows: Iter,
    places: Sequence[tuple[Symbol, Iter]],
    dots: Sequence[Load],
    sums: Sequence[Load],
) -> list[Store]:
    """Of every output that is no value of the space, over what holds the results of the consumers that it is made of,
    which lie at the same points.

    ``places``: each consumer's own axis, and the iterator over it. ``dots``, ``sums``: what holds their results.
    """
    made_of = _origins(context, parts)
    on_space = {op.result for op in parts.stored}
    stores: list[Store] = []
    beside = set(parts.sums)
    for each, held in zip(e.sums, sums, strict=True):
        context.inliner.add_leaf(each.op.result, expect_index(each.op.result, each.point, held))
    alike: dict[tuple[Symbol, ...], list[int]] = {}
    for number, consumer in enumerate(e.consumers):
        alike.setdefault(consumer.point, []).append(number)
    for point, numbers in alike.items():
        own = [e.consumers[n].op for n in numbers]
        others = [v for v in context.body.outputs if not _is_of(made_of[v], own, beside)]
        place, across = places[numbers[0]]
        there = {**shift, place: across.var}
        stores += epilogue_stores(
            context, "scores", own, point, there, (rows, across), [dots[n] for n in numbers], others
        )
    if e.sums:
        others = [v for v in context.body.outputs if v in on_space or not made_of[v] <= beside]
        there = dict(shift)
        stores += epilogue_stores(context, "scores", list(parts.sums), e.sums[0].point, there, (rows,), sums, others)
    if len(stores) + len(on_space) != len(context.body.outputs):
        raise LoweringError("an output is made of results that lie at different points")
    return stores


def _is_of(ops: Set[Op], own: Sequence[Op], beside: Set[Op]) -> bool:
    """Whether a value is made of some of these consumers, and of no others but sums."""
    return not ops <= beside and ops <= {*own, *beside}


def _origins(context: LoweringContext, parts: ScoresParts) -> dict[Value, set[Op]]:
    """Of which consumers and sums each value of the body is made."""
    found: dict[Value, set[Op]] = {v: set() for v in context.body.inputs}
    for op in context.body.ops:
        above = set[Op]().union(*(found[v] for v in op.operands))
        found |= dict.fromkeys(op.results, {op} if op in parts.ends else above)
    return found
