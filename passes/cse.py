"""Common subexpressions: ops that are alike become one."""

from __future__ import annotations

from collections.abc import Mapping

from fusec.ir.attributes import Attributes, ConstantAttributes
from fusec.ir.graph import Graph, Op, Value, substitute
from fusec.passes.rewrite import escaping_values


def cse(graph: Graph) -> Graph:
    """Equal op, operands and attributes give one op, the first; the names of the others are lost.

    Two values that the caller gets as separate memory stay two, and library calls are left alone.
    """
    escaping = escaping_values(graph)
    merged: dict[Value, Value] = {}
    first: dict[tuple[object, ...], Op] = {}
    dropped: set[Op] = set()
    producers = graph.producers()
    for op in graph.ops:
        if op.definition.kind in ("extern", "fused"):
            continue
        known = first.setdefault(_key(op, merged), op)
        if known is op or _both_owned(known, op, escaping):
            continue
        merged[op.result] = known.result
        dropped.add(op)
        if op.result in escaping:
            _expose(known, escaping, producers, merged)
    if not dropped:
        return graph
    return substitute(graph.with_ops(op for op in graph.ops if op not in dropped), merged)


def _expose(op: Op, escaping: set[Value], producers: Mapping[Value, Op], merged: Mapping[Value, Value]) -> None:
    """The caller sees the memory of the op's result from now on, so that no other output may lie there too."""
    made: Op | None = op
    while made is not None:
        escaping.update(made.results)
        source = made.operands[0] if made.definition.kind == "view" else None
        made = producers.get(merged.get(source, source)) if source is not None else None


def _both_owned(a: Op, b: Op, escaping: set[Value]) -> bool:
    return a.definition.kind != "view" and a.result in escaping and b.result in escaping


def _key(op: Op, merged: dict[Value, Value]) -> tuple[object, ...]:
    operands = [id(merged.get(v, v)) for v in op.operands]
    if op.definition.commutative:
        operands.sort()
    return (op.name, *operands, _attributes_key(op.attributes))


def _attributes_key(attributes: Attributes) -> object:
    """Equal for records that mean the same; -0.0 is not 0.0, and NaN is NaN."""
    return repr(attributes) if isinstance(attributes, ConstantAttributes) else attributes
