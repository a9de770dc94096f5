# SPDX-License-Identifier: Apache-2.0
"""The softmax online, a block of keys at a time, with queries on a CPU's vector lanes.

The algebra is that of Milakov and Gimelshein, *Online normalizer calculation for softmax* (2018).
"""

from __future__ import annotations

from dataclasses import dataclass

from fusec.ir.index import Expr, Index
from fusec.ir.types import bool_
from fusec.passes.lower.combine import LOG2E, exp_of, finite_or_zero
from fusec.tile.nodes import Alloc, If, Iter, Map, Reduce, SoftmaxExp, Statement
from fusec.tile.scalar import Apply, Const, Load, ScalarExpr


@dataclass(frozen=True)
class Score:
    """A block's scores, ``value * factor``. exact: a query's sums belong to its maximum, however little that grows."""

    value: ScalarExpr
    factor: float
    exact: bool = False


@dataclass(frozen=True)
class OnlineState:
    """What the online softmax keeps of each query, in scratch.

    row_max, row_sum: of the keys so far; the maximum is about that of the scores' values, without their factor. The
    others belong to one block: its maximum, what is subtracted, what earlier sums are multiplied by, and (one number)
    whether they are.
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

    The maximum is subtracted first, then scale and log2(e) are one factor: the product of a large score would lose the
    digits that count. Sums keep their scale while no query's maximum has grown by much: the
    weights are then a few powers of two above 1, which costs floats no digits (Zadouri and others, *FlashAttention-4*,
    2025). A query whose keys so far are all masked has a maximum of -inf; then 0 is subtracted.
    """
    d = state.row_max.dtype
    row_max, row_sum, higher, shift, scale, grown = (
        *(state.row_max, state.row_sum, state.block_max, state.shift),
        *(state.scale, state.grown),
    )
    factor = score.factor * LOG2E
    growth = Const(0.0 if score.exact else GROWTH / factor, d)
    weights_of = SoftmaxExp(keys, queries, weights, row_sum, score.value, shift, factor, prefetch)

    def put(target: Load, value: ScalarExpr, *more: Iter) -> Map:
        return Map((*more, queries), target.buffer, _plain(target), value)

    passes = Apply("gt", (higher, Apply("add", (row_max, growth), d)), bool_)
    one, zero = Const(1.0, d), Const(0.0, d)
    rescaled = (
        put(shift, finite_or_zero(higher)),
        Alloc(scale.buffer),
        put(scale, exp_of(row_max, shift, score.factor)),
        put(row_max, higher),
        put(row_sum, Apply("mul", (row_sum, scale), d)),
        put(sums, Apply("mul", (sums, scale), d), values),
    )
    return [
        Alloc(higher.buffer),
        Reduce((keys, queries), higher.buffer, _plain(higher), "max", score.value, loose=True),
        put(higher, Apply("maximum", (row_max, higher), d)),
        Alloc(grown.buffer),
        Reduce((queries,), grown.buffer, _plain(grown), "max", Apply("select", (passes, one, zero), d)),
        Alloc(shift.buffer),
        put(shift, finite_or_zero(row_max)),
        If(Apply("gt", (grown, zero), bool_), rescaled),
        weights_of,
    ]


def _plain(load: Load) -> tuple[Index, ...]:
    return tuple(i for i in load.index if isinstance(i, int | Expr))
