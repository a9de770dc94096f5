"""Library calls that write one place of an array, as updates: a cache's keys of one token.

A call of many places is left to the library: its time goes into moving them, and which of two elements for one place is
written last is its own business.
"""

from __future__ import annotations

from fusec.ir.attributes import ExternAttributes, UpdateAttributes
from fusec.ir.graph import Graph, Value
from fusec.ir.types import i32, i64
from fusec.passes.rewrite import Outcome, Rewriter, Rule, rewrite, rule
from fusec.runtime.library import Operand, parse_arguments

_TARGETS = ("aten.index_copy.default", "aten.index_put.default")


def with_placed_writes(graph: Graph) -> Graph:
    """The graph with calls that write one place of what is an input's new contents in the end as updates."""
    chained = _chained(graph)
    return rewrite(graph, (_update_rule(chained),)) if chained else graph


def _chained(graph: Graph) -> set[str]:
    """The names of the results of calls between an input and its new contents."""
    producers = graph.producers()
    found: set[str] = set()
    for value, port in zip(graph.outputs, graph.output_ports, strict=True):
        if port.mutates is None:
            continue
        while (op := producers.get(value)) is not None and op.name in ("extern", "update") and op.operands:
            if isinstance(op.attributes, ExternAttributes) and op.attributes.target in _TARGETS:
                found.add(value.name)
            value = op.operands[0]
    return found


def _update_rule(chained: set[str]) -> Rule:
    @rule("extern")
    def call_as_update(r: Rewriter) -> Outcome:
        """index_copy(x, axis, [i], y) ⇒ update(x, y, i)"""
        attributes = r.op.attributes
        assert isinstance(attributes, ExternAttributes)
        if r.op.results[0].name not in chained or len(r.operands) != 3:
            return None
        match attributes.target, parse_arguments(attributes.arguments)[0]:
            case "aten.index_copy.default", (Operand(index=0), int() as axis, Operand(index=1), Operand(index=2)):
                return _update(r, axis % r.operands[0].type.rank)
            case "aten.index_put.default", (Operand(index=0), [*every, Operand(index=1)], Operand(index=2)):
                return _update(r, len(every), wraps=True) if every.count(None) == len(every) else None
        return None

    return call_as_update


def _update(r: Rewriter, axis: int, *, wraps: bool = False) -> Outcome:
    """``wraps``: an index below 0 counts from the end, and the value broadcasts."""
    base, index, value = r.operands
    extent = base.type.shape[axis]
    one = (*base.type.shape[:axis], 1, *base.type.shape[axis + 1 :])
    if (
        index.type.dtype not in ((i32, i64) if wraps else (i64,))
        or index.type.count != 1
        or not isinstance(extent, int)
        or 0 in one
    ):
        return None
    if value.type.dtype != base.type.dtype or (not wraps and value.type.shape != one):
        return None
    place = r.cast(r.reshape(index, (), hint="place"), i64)
    if wraps:
        seen = (*one[:axis], *index.type.shape, *one[axis + 1 :])
        value = r.reshape(r.broadcast(value, seen), one)
        below = r.emit("lt", place, r.constant(0, place))
        place = r.emit("select", below, r.emit("add", place, r.constant(extent, place)), place)
    return r.emit("update", base, value, place, attributes=UpdateAttributes((0,) * len(one), axis))


def library_write(r: Rewriter, base: Value, value: Value, place: Value) -> Value:
    """The update that ``r`` looks at, as a library call."""
    assert isinstance(r.op.attributes, UpdateAttributes)
    text = f"($0, {r.op.attributes.axis}, $1, $2), {{}}"
    attributes = ExternAttributes("aten.index_copy.default", text, (base.type,), "writes through an index")
    return r.emit("extern", base, r.reshape(place, (1,)), value, attributes=attributes)
