# SPDX-License-Identifier: Apache-2.0
"""Dead code: ops whose results nothing reads."""

from __future__ import annotations

from fusec.ir.graph import Graph
from fusec.ir.liveness import live_ops
from fusec.ir.raising import is_effect


def dce(graph: Graph) -> Graph:
    """The graph without the ops that no output depends on, but for library calls: these may raise."""
    live = live_ops(graph.ops, graph.outputs, is_effect)
    return graph if len(live) == len(graph.ops) else graph.with_ops(live)
