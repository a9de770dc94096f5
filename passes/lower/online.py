"""The softmax online, a block of keys at a time, with queries on a CPU's vector lanes.

The algebra is that of Milakov and Gimelshein, *Online normalizer calculation for softmax* (2018).
"""

from __future__ import annotations

from dataclasses import dataclass

from fusec.ir.index import Expr, Index
from fusec.ir.types import bool_
from fusec.passes.lower.combine import LOG2E, exp2_of, exp_of, finite_or_zero, times
from fusec.tile.nodes import Alloc, If, Iter, Map, Reduce, SoftmaxExp, Statement
from fusec.tile.scalar import Apply, Const, Load, ScalarExpr


@dataclass(frozen=True)
class Score:
    """A block's scores, ``value * factor``. huge: they may be far beyond products of queries and keys. exact: a query's
    sums belong to its maximum, however little that grows; scores are then taken for huge.
    """

    value: ScalarExpr
    factor: float
    huge: bool
    exact: bool = False


@dataclass(frozen=True)
class OnlineState:
    """What the online softmax keeps of each query, in scratch.

    row_max, row_sum: of the keys so far; the maximum is about the greatest score, times log2(e) where scores are not
    huge. The others belong to one block: its maximum, what is subtracted, what earlier sums are multiplied by, and
    (one number) whether they are.
    """

    row_max: Load
    row_sum: Load
    block_max: Load
    shift: Load
    scale: Load
    grown: Load


GROWTH = 8.0
"""Powers of two by which a query's scores may pass the maximum that its sums belong to, before these are scaled."""


def online_softmax(
    keys: Iter,
    queries: Iter,
    score: Score,
    weights: Load,
    state: OnlineState,
    sums: Load,
    values: Iter,
    prefetch: tuple[Load, ...] = (),
) -> list[Statement]:
    """The weights of a block of keys, their sum, and what was summed up before brought to the same scale.

    Scale and log2(e) are one multiply-add with the maximum; of huge scores the maximum is subtracted first, as their
    product would lose the digits that count. Sums keep their scale while no query's maximum has grown by much: the
    weights are then a few powers of two above 1, which costs floats no digits (Zadouri and others, *FlashAttention-4*,
    2025). A query whose keys so far are all masked has a maximum of -inf; then 0 is subtracted.
    """
    d = state.row_max.dtype
    row_max, row_sum, higher, shift, scale, grown = (
        *(state.row_max, state.row_sum, state.block_max, state.shift),
        *(state.scale, state.grown),
    )
    found = higher if score.huge else times(higher, score.factor * LOG2E)
    power = (exp_of if score.huge else exp2_of)(row_max, shift)
    growth = Const(0.0 if score.exact else GROWTH / LOG2E if score.huge else GROWTH, d)
    if score.huge:
        weights_of = SoftmaxExp(
            keys, queries, weights, row_sum, Apply("sub", (score.value, shift), d), LOG2E, None, prefetch
        )
    else:
        weights_of = SoftmaxExp(keys, queries, weights, row_sum, score.value, score.factor * LOG2E, shift, prefetch)

    def put(target: Load, value: ScalarExpr, *more: Iter) -> Map:
        return Map((*more, queries), target.buffer, _plain(target), value)

    passes = Apply("gt", (higher, Apply("add", (row_max, growth), d)), bool_)
    one, zero = Const(1.0, d), Const(0.0, d)
    rescaled = (
        put(shift, finite_or_zero(higher)),
        Alloc(scale.buffer),
        put(scale, power),
        put(row_max, higher),
        put(row_sum, Apply("mul", (row_sum, scale), d)),
        put(sums, Apply("mul", (sums, scale), d), values),
    )
    return [
        Alloc(higher.buffer),
        Reduce((keys, queries), higher.buffer, _plain(higher), "max", score.value, loose=True),
        put(higher, Apply("maximum", (row_max, found), d)),
        Alloc(grown.buffer),
        Reduce((queries,), grown.buffer, _plain(grown), "max", Apply("select", (passes, one, zero), d)),
        Alloc(shift.buffer),
        put(shift, finite_or_zero(row_max)),
        If(Apply("gt", (grown, zero), bool_), rescaled),
        weights_of,
    ]


def _plain(load: Load) -> tuple[Index, ...]:
    return tuple(i for i in load.index if isinstance(i, int | Expr))
