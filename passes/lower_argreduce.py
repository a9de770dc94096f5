# SPDX-License-Identifier: Apache-2.0
"""Searches for an extreme as reductions: row kernels reduce only numbers."""

from __future__ import annotations

from fusec.ir.attributes import ArgReduceAttributes, IotaAttributes
from fusec.ir.graph import Graph
from fusec.ir.indexing import most
from fusec.ir.nodes import Value
from fusec.ir.types import i32, i64, u8
from fusec.passes.rewrite import Outcome, Rewriter, Rule, rewrite, rule


def lower_argreduce(graph: Graph, *, symbolic: bool = False) -> Graph:
    """The graph without ``argmax`` and ``argmin``: one read of a row held near gives position and value.

    ``symbolic``: those of symbolic extents are opened, too. GPUs share rows out only where extents are known.
    """
    return rewrite(graph, SEARCH_RULES if symbolic else (search_of_fixed_extents,))


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
