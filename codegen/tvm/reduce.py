# SPDX-License-Identifier: Apache-2.0
"""Reductions: which loops are around them, and in which order they run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fusec.codegen.tvm.accumulators import Monoid
from fusec.codegen.tvm.context import Context, Numbers
from fusec.codegen.tvm.domain import lane_count, lane_loop, outer_loops
from fusec.codegen.tvm.reduction import Reduction
from fusec.codegen.tvm.scalars import Points
from fusec.codegen.tvm.sums import Sum
from fusec.codegen.tvm.vector import Code
from fusec.ir import index as ix
from fusec.ir.index import Symbol
from fusec.tile.nodes import Iter, Reduce
from fusec.tile.scalar import Const


def emit_reduce(context: Context, code: Code, numbers: Numbers, statement: Reduce) -> None:
    remaining = {s for i in statement.index for s in ix.symbols_of(i)}
    outer, last = statement.domain[:-1], statement.domain[-1]
    outside = [it for it in outer if it.var in remaining]
    inside = [it for it in outer if it.var not in remaining]
    results = [*outside, last] if last.var in remaining else outside
    if _limits_use(results, {it.var for it in (*inside, last)}):
        _in_given_order(context, code, numbers, statement, remaining)
        return
    writer = _writer(context, numbers, statement)

    def innermost(inner: Code) -> None:
        if last.var in remaining:
            writer.across_lanes(inner, inside, last)
        else:
            writer.along_lanes(inner, inside, last)

    outer_loops(context, code, outside, innermost)


def _writer(context: Context, numbers: Numbers, statement: Reduce) -> Reduction:
    floats = statement.op == "sum" and statement.target.dtype.is_float
    return (Sum if floats else Reduction)(context, numbers, statement)


def _limits_use(iters: Sequence[Iter], symbols: set[Symbol]) -> bool:
    return any(it.limit is not None and ix.symbols_of(it.limit) & (symbols - {it.var}) for it in iters)


def _in_given_order(context: Context, code: Code, numbers: Numbers, statement: Reduce, remaining: set[Symbol]) -> None:
    """Every point updates the target in memory: for limits that forbid another order of the loops."""
    if statement.fresh:
        cleared = tuple(replace(it, limit=None) for it in statement.domain if it.var in remaining)
        _fill(context, code, numbers, replace(statement, domain=cleared))
    writer = Reduction(context, numbers, replace(statement, fresh=False))
    last = statement.domain[-1]

    def innermost(inner: Code) -> None:
        if last.var in remaining:
            writer.across_lanes(inner, [], last)
        else:
            writer.along_lanes(inner, [], last)

    outer_loops(context, code, statement.domain[:-1], innermost)


def _fill(context: Context, code: Code, numbers: Numbers, statement: Reduce) -> None:
    """The identity at every element of the target that the reduction reaches."""
    value = Const(Monoid(statement.op, statement.target.dtype).start(), statement.target.dtype)

    def body(points: Points) -> None:
        points.store(statement.target, statement.index, points.value(value))

    def innermost(inner: Code) -> None:
        if not statement.domain:
            body(Points(context, inner, numbers, None, None))
            return
        last = statement.domain[-1]
        lanes = lane_count(context, last, (value,), statement.target.dtype)
        lane_loop(context, inner, numbers, last, lanes, body)

    outer_loops(context, code, statement.domain[:-1], innermost)
