# SPDX-License-Identifier: Apache-2.0
"""Common subexpressions: ops that are alike become one."""

from __future__ import annotations

from fusec.ir.attributes import Attributes, ConstantAttributes
from fusec.ir.graph import Graph, substitute
from fusec.ir.nodes import Op, Value


def cse(graph: Graph) -> Graph:
    """Equal op, operands and attributes give one op, the first; the names of the others are lost.

    Library calls are left alone. Outputs that become one value are memory of their own by ``own_outputs``.
    """
    merged: dict[Value, Value] = {}
    first: dict[tuple[object, ...], Op] = {}
    dropped: set[Op] = set()
    for op in graph.ops:
        if op.definition.kind in ("extern", "fused"):
            continue
        known = first.setdefault(_key(op, merged), op)
        if known is op:
            continue
        merged[op.result] = known.result
        dropped.add(op)
    if not dropped:
        return graph
    return substitute(graph.with_ops(op for op in graph.ops if op not in dropped), merged)


def _key(op: Op, merged: dict[Value, Value]) -> tuple[object, ...]:
    operands = [id(merged.get(v, v)) for v in op.operands]
    if op.definition.commutative:
        operands.sort()
    return (op.name, *operands, _attributes_key(op.attributes))


def _attributes_key(attributes: Attributes) -> object:
    """Equal for records that mean the same; -0.0 is not 0.0, and NaN is NaN."""
    return repr(attributes) if isinstance(attributes, ConstantAttributes) else attributes
