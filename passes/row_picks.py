# SPDX-License-Identifier: Apache-2.0
"""One element picked from a row by an index, as a sum over the row where the row is reduced anyway.

A loss picks the logit of each row's target beside the row's maximum and sum. Picked in the kernel that reads the row,
it needs no kernel of its own, and nothing needs the logits in memory afterwards.
"""

from __future__ import annotations

from fusec.ir.attributes import GatherAttributes, IotaAttributes, ReduceAttributes
from fusec.ir.graph import Graph
from fusec.ir.nodes import Value
from fusec.ir.types import i64
from fusec.passes.rewrite import Outcome, Rewriter, Rule, rewrite

FEWEST = 4096
"""Elements of a row for which the sum stands: of a short one a kernel of its own costs no more."""


def pick_in_rows(graph: Graph) -> Graph:
    """The graph where elements picked from rows that are reduced are sums over these rows."""
    if not any(op.name == "gather_elements" for op in graph.ops):
        return graph
    reduced = _reduced_rows(graph)

    def pick(r: Rewriter) -> Outcome:
        source, index = r.operands
        axis, shape = r.op.expect(GatherAttributes).axis, source.type.shape
        once = tuple(1 if a == axis else n for a, n in enumerate(shape))
        if not source.type.is_static or index.type.shape != once or not source.type.dtype.is_float:
            return None
        extent = shape[axis]
        assert isinstance(extent, int)
        if extent < FEWEST or (source, axis) not in reduced:
            return None
        line = tuple(n if a == axis else 1 for a, n in enumerate(shape))
        positions = r.emit("iota", attributes=IotaAttributes(line, axis, i64, source.type.device), hint="position")
        found = r.emit("eq", r.broadcast(positions, shape), r.broadcast(r.cast(index, i64), shape), hint="found")
        zero = r.broadcast(r.constant(0.0, source), shape)
        total = r.reduce("reduce_sum", r.emit("select", found, source, zero, hint="picked"), [axis], hint="total")
        return r.reshape(total, once)

    equation = "gather_elements(x, i) ⇒ sum(select(iota == i, x, 0)), where rows of x are reduced"
    return rewrite(graph, (Rule("pick-in-row", ("gather_elements",), equation, pick),))


def _reduced_rows(graph: Graph) -> set[tuple[Value, int]]:
    """Values, each with an axis, along which it or what elementwise ops make it of, or of it, is reduced."""
    found: set[tuple[Value, int]] = set()
    near: dict[Value, list[Value]] = {}
    waiting: list[tuple[Value, int]] = []
    for op in graph.ops:
        if op.definition.kind == "elementwise" and len(op.results) == 1:
            for operand in op.operands:
                if operand.type.shape == op.result.type.shape:
                    near.setdefault(operand, []).append(op.result)
                    near.setdefault(op.result, []).append(operand)
        elif isinstance(op.attributes, ReduceAttributes) and len(op.attributes.axes) == 1:
            waiting.append((op.operands[0], op.attributes.axes[0]))
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            waiting += [(value, each[1]) for value in near.get(each[0], ())]
    return found
