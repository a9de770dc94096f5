# SPDX-License-Identifier: Apache-2.0
"""Grouped products by the library: a matmul for each group."""

from __future__ import annotations

from fusec.ir.attributes import ExternAttributes
from fusec.ir.graph import Graph
from fusec.ir.nodes import Op, Value
from fusec.ir.ops import OPS
from fusec.ir.print import print_graph
from fusec.passes.families.gemm.library import Found, pieces_of
from fusec.passes.families.grouped.schedule.gpu import GroupedProblem
from fusec.passes.families.grouped.schedule.outer import OuterProblem
from fusec.passes.lower.context import LoweringContext
from fusec.passes.lower.pieces import Alternative
from fusec.runtime.calls import INTERPRET
from fusec.target.gpu import GpuTarget

_REASON = "the library's kernels were chosen"
_SHARE = 0.5
"""Of the rate of matmuls, which a matmul for each group reaches (H200, 32 groups of some 512 rows: 339 TFLOP/s)."""

_CALLS = 30e-6
"""Seconds of the host for a group: its rows, its matrix, the matmul and the copy of its result; and to wait for the
ends."""


def grouped_calls(context: LoweringContext, target: GpuTarget, p: GroupedProblem) -> list[Alternative]:
    """The products as calls, and one map for the rest: where no kernel of ours can be written."""
    return _calls(context, "grouped_dot", 2.0 * p.rows * p.k * p.n * p.dots, p.groups * p.dots, target)


def outer_calls(context: LoweringContext, target: GpuTarget, p: OuterProblem) -> list[Alternative]:
    """The same for sums of outer products."""
    return _calls(context, "grouped_outer", 2.0 * p.rows * p.p * p.q, p.groups, target)


def _calls(context: LoweringContext, name: str, flops: float, count: int, target: GpuTarget) -> list[Alternative]:
    read = [v for op in context.anchors(name) for v in op.operands]
    if any(v not in context.body.inputs for v in read):
        return []
    seconds = flops / (_SHARE * target.rates.tensor) + (1 + count) * _CALLS
    return [Alternative("library matmuls", lambda c: pieces_of(c, [*map(_call, c.anchors(name))]), seconds)]


def _call(op: Op) -> Found:
    inner = Graph("grouped", _inputs(op), op.results, (op,))
    attributes = ExternAttributes(INTERPRET, print_graph(inner), (op.result.type,), _REASON)
    call = Op(OPS["extern"], inner.inputs, attributes, op.results, op.location)
    return Found(call, op.result, (), frozenset({op}))


def _inputs(op: Op) -> tuple[Value, ...]:
    return tuple(dict.fromkeys(op.operands))
