# SPDX-License-Identifier: Apache-2.0
"""Searches for an extreme as reductions: row kernels reduce only numbers."""

from __future__ import annotations

from math import inf

from fusec.ir.attributes import ArgReduceAttributes, IotaAttributes
from fusec.ir.graph import Graph
from fusec.ir.indexing import most
from fusec.ir.nodes import Value
from fusec.ir.types import i32, i64, u8
from fusec.passes.rewrite import Outcome, Rewriter, Rule, rewrite, rule

LONG = 1 << 15
"""Elements of a row that blocks of a GPU share out: one would take as long as a launch and more."""

LEAST_PART, LARGEST_PART = 1 << 10, 1 << 14
"""Elements of a part of a row, which a block holds."""

BLOCKS_AN_SM = 4


def lower_argreduce(graph: Graph, *, symbolic: bool = False, sms: int = 0) -> Graph:
    """The graph without ``argmax`` and ``argmin``: one read of a row held near gives position and value.

    ``symbolic``: those of symbolic extents are opened, too. GPUs share rows out only where extents are known, among so
    many multiprocessors ``sms``.
    """

    @rule("argmax", "argmin")
    def search_in_parts(r: Rewriter) -> Outcome:
        """argmax(x) ⇒ the first of the parts' own firsts whose extreme is that of the row, or NaN"""
        return _in_parts(r, sms)

    return rewrite(graph, SEARCH_RULES if symbolic else (search_in_parts, search_of_fixed_extents))


@rule("argmax", "argmin")
def search_as_minimum(r: Rewriter) -> Outcome:
    """argmax(x) ⇒ reduce_min(select(x == reduce_max(x) or isnan(x), iota, n)): the first of equals, or the first NaN"""
    axis = r.op.expect(ArgReduceAttributes).axis
    (x,) = r.operands
    if x.type.dtype.name == "bool":
        x = r.cast(x, u8)
    extreme = r.reduce("reduce_max" if r.op.name == "argmax" else "reduce_min", x, [axis], hint="extreme")
    found = r.emit("eq", x, r.keep(extreme, x, [axis]), hint="found")
    if x.type.dtype.is_float:
        found = r.emit("logical_or", found, r.emit("isnan", x))
    positions = _positions(r, x, axis)
    past = r.constant(most(x.type.shape[axis]), positions)
    first = r.reduce("reduce_min", r.emit("select", found, positions, past, hint="positions"), [axis], hint="first")
    return r.cast(first, i64)


def _in_parts(r: Rewriter, sms: int) -> Outcome:
    (x,) = r.operands
    axis = r.op.expect(ArgReduceAttributes).axis
    parts = _parts(x, axis, sms)
    if parts < 2 or x.type.dtype.name == "bool":
        return None
    shape = (*x.type.shape[:-1], parts, x.type.static_shape[-1] // parts)
    apart = r.reshape(x, shape, hint="apart")
    positions = r.reshape(_positions(r, x, axis), (*(1,) * axis, *shape[axis:]), hint="positions_apart")
    extremes, firsts = _first(r, apart, positions, axis + 1)
    return r.cast(_first(r, extremes, firsts, axis)[1], i64)


def _parts(x: Value, axis: int, sms: int) -> int:
    """How many parts a row is shared out in; 1 where it stays whole."""
    if axis != x.type.rank - 1 or not x.type.is_static or not x.type.size:
        return 1
    n = x.type.static_shape[axis]
    rows = x.type.size // n
    if n < LONG or rows >= BLOCKS_AN_SM * sms:
        return 1
    fitting = [p for p in range(-(-n // LARGEST_PART), n // LEAST_PART + 1) if n % p == 0]
    return min(fitting, key=lambda p: abs(rows * p - BLOCKS_AN_SM * sms), default=1)


def _first(r: Rewriter, x: Value, positions: Value, axis: int) -> tuple[Value, Value]:
    """The extreme along an axis, or NaN, and the least position where it is.

    A NaN is found as what compares with nothing: a test on elements alone would be made, and stored, by the kernel that
    makes them.
    """
    largest = r.op.name == "argmax"
    extreme = r.reduce("reduce_max" if largest else "reduce_min", x, [axis], hint="extreme")
    kept = r.keep(extreme, x, [axis])
    found = r.emit("eq", x, kept, hint="found")
    if x.type.dtype.is_float:
        end = r.constant(inf if largest else -inf, kept)
        bound = r.emit("select", r.emit("isnan", kept), end, kept, hint="bound")
        beside = r.emit("logical_not", r.emit("le" if largest else "ge", x, bound, hint="ordered"))
        found = r.emit("logical_or", found, beside)
    past = r.constant(2**31 - 1 if positions.type.dtype is i32 else 2**63 - 1, positions)
    chosen = r.emit("select", found, positions, past, hint="chosen")
    return extreme, r.reduce("reduce_min", chosen, [axis], hint="first")


def _positions(r: Rewriter, x: Value, axis: int) -> Value:
    """The index along the axis, in as few bits as hold it."""
    dtype = i32 if most(x.type.shape[axis]) < 2**31 else i64
    shape = tuple(n if a == axis else 1 for a, n in enumerate(x.type.shape))
    return r.emit("iota", attributes=IotaAttributes(shape, axis, dtype, x.type.device), hint="position")


@rule("argmax", "argmin")
def search_of_fixed_extents(r: Rewriter) -> Outcome:
    """argmax(x) ⇒ reduce_min(select(x == reduce_max(x) or isnan(x), iota, n)), where the extents of x are numbers"""
    return search_as_minimum.rewrite(r) if r.operands[0].type.is_static else None


SEARCH_RULES: tuple[Rule, ...] = (search_as_minimum,)
