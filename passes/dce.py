"""Dead code: ops whose results nothing reads."""

from __future__ import annotations

from fusec.ir.graph import Graph
from fusec.ir.nodes import Op, Value
from fusec.ir.raising import is_effect


def dce(graph: Graph) -> Graph:
    """The graph without the ops that no output depends on, but for library calls: these may raise."""
    live: set[Value] = set(graph.outputs)
    kept: list[Op] = []
    for op in reversed(graph.ops):
        if live.isdisjoint(op.results) and not is_effect(op):
            continue
        kept.append(op)
        live.update(op.operands)
    return graph if len(kept) == len(graph.ops) else graph.with_ops(reversed(kept))
