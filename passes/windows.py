# SPDX-License-Identifier: Apache-2.0
"""Reductions of small windows (pooling, depthwise convolution): each result from its few elements, without a loop.

A kernel for rows gives a row to some lanes. A window has few elements, which its neighbours share: a map that reads
them all has each in a cache, and its lanes along the results.
"""

from __future__ import annotations

from itertools import product
from math import prod

from fusec.ir.attributes import ReduceAttributes, SliceAttributes
from fusec.ir.graph import Graph
from fusec.ir.library_calls import MOST_TAPS, MOST_WEIGHTED_TAPS
from fusec.ir.nodes import Value
from fusec.passes.rewrite import Outcome, Rewriter, rewrite, rule

FEW_TAPS = 16
"""The same as :data:`MOST_TAPS` for parts that do not overlap."""

MOST_LAID_OUT = 1 << 20
"""Elements of weights that are put in another order first."""

TOGETHER = 16
"""Terms of one chain: an expression of few chains is not deep."""

_COMBINES = {"reduce_sum": "add", "reduce_max": "maximum", "reduce_min": "minimum"}
_DEPTH = 4
"""Elementwise ops between windows and their reduction."""


def open_windows(graph: Graph, *, blocked: bool = False) -> Graph:
    """Afterwards no window of few elements is reduced by a kernel for rows.

    ``blocked``: for a GPU, where any window may have as many elements as one of a single channel, and weights, which
    each lane reads, are widened once.
    """

    @rule(*_COMBINES)
    def reduction_of_windows(r: Rewriter) -> Outcome:
        """reduce(windows(x)) ⇒ x[0::] ∘ x[1::] ∘ ..., one term a position"""
        return _opened(r, blocked)

    return rewrite(graph, (reduction_of_windows,))


def _opened(r: Rewriter, blocked: bool) -> Outcome:
    (x,) = r.operands
    attributes = r.op.expect(ReduceAttributes)
    extents = [x.type.shape[a] for a in attributes.axes]
    if attributes.dtype is not None or not x.type.is_static or not extents:
        return None
    sizes = [n for n in extents if isinstance(n, int)]
    weighted = r.producer(x, "mul") is not None
    if not 1 <= prod(sizes) <= (MOST_WEIGHTED_TAPS if blocked or weighted else MOST_TAPS) or 0 in x.type.shape:
        return None
    if not _shows_windows(r, x, _DEPTH) and not (prod(sizes) <= FEW_TAPS and _is_parted(r, x, attributes.axes)):
        return None
    x = _laid_out(r, x, attributes.axes, _DEPTH, blocked)
    terms = [_at(r, x, dict(zip(attributes.axes, tap, strict=True)), _DEPTH) for tap in product(*map(range, sizes))]
    combine = _COMBINES[r.op.name]
    while len(terms) > 1:
        terms = [_chained(r, combine, terms[n : n + TOGETHER]) for n in range(0, len(terms), TOGETHER)]
    return r.reshape(terms[0], r.op.result.type.shape)


def _chained(r: Rewriter, combine: str, terms: list[Value]) -> Value:
    total = terms[0]
    for term in terms[1:]:
        total = r.emit(combine, total, term)
    return total


def _is_parted(r: Rewriter, value: Value, axes: tuple[int, ...]) -> bool:
    """Whether a value shows an image in parts of one size, of two axes or more, which are reduced."""
    names = set[str]()
    made = r.producer(value)
    while made is not None and len(made.operands) == 1 and made.definition.kind in ("view", "elementwise"):
        names.add(made.name)
        made = r.producer(made.operands[0])
    return len(axes) > 1 and {"permute", "reshape"} <= names


def _shows_windows(r: Rewriter, value: Value, depth: int) -> bool:
    """Whether a value is made of windows, or of parts of an image that are read across: its elements side by side are
    of different results."""
    made = r.producer(value)
    while made is not None and made.definition.kind == "view":
        if made.name == "windows":
            return True
        made = r.producer(made.operands[0])
    if made is None or made.definition.kind != "elementwise" or not depth:
        return False
    return any(_shows_windows(r, v, depth - 1) for v in made.operands)


def _laid_out(r: Rewriter, value: Value, axes: tuple[int, ...], depth: int, widened: bool) -> Value:
    """The value with what is no windows, weights, put in an order where elements of one position are side by side;
    ``widened`` as they are used."""
    made = r.producer(value)
    whole = widened and not _shows_windows(r, value, depth)
    if made is not None and made.definition.kind == "elementwise" and depth and not whole:
        operands = []
        for v in made.operands:
            behind = value.type.rank - v.type.rank
            own = tuple(a - behind for a in axes if a >= behind and v.type.shape[a - behind] != 1)
            operands.append(_laid_out(r, v, own, depth - 1, widened) if own else v)
        if tuple(operands) == made.operands:
            return value
        return r.emit(made.name, *operands, attributes=made.attributes)
    if not axes or value.type.size > MOST_LAID_OUT or _shows_windows(r, value, depth):
        return value
    order = (*axes, *(a for a in range(value.type.rank) if a not in axes))
    laid = r.emit("copy", r.permute(value, order), hint="laid_out")
    return r.permute(laid, tuple(order.index(a) for a in range(value.type.rank)))


def _at(r: Rewriter, value: Value, tap: dict[int, int], depth: int) -> Value:
    """The value at one position of some axes, which have extent 1 then."""
    made = r.producer(value)
    if made is not None and made.definition.kind == "elementwise" and depth:
        operands = []
        for v in made.operands:
            behind = value.type.rank - v.type.rank
            own = {a - behind: at for a, at in tap.items() if a >= behind and v.type.shape[a - behind] != 1}
            operands.append(_at(r, v, own, depth - 1) if own else v)
        return r.emit(made.name, *operands, attributes=made.attributes)
    cut = SliceAttributes.of_axes(value.type.shape, {a: (at, at + 1) for a, at in tap.items()})
    return r.emit("slice", value, attributes=cut)
