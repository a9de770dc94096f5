# SPDX-License-Identifier: Apache-2.0
"""Which results share memory is read off the graph as it was captured, before any rewrite.

There, an output is a view of an input's memory, or of another output's, where views alone lead from the one to the
other and show the strides that it is to have; all else is memory of its own. :func:`hold_aliases` writes that down,
and ``own_outputs`` keeps to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fusec.ir.attributes import AliasAttributes
from fusec.ir.graph import Graph
from fusec.ir.nodes import Op, Value
from fusec.ir.ops import OPS
from fusec.ir.types import contiguous_strides
from fusec.passes.dce import dce
from fusec.passes.outputs import shown_strides
from fusec.tile.views import same_layout, strided_view


def hold_aliases(graph: Graph) -> Graph:
    """The graph with an ``alias`` before the views that lead from an input, or from one output, to another output."""
    found = _shared(graph)
    if not found:
        return graph
    producers = graph.producers()
    made: list[Op] = []
    outputs = list(graph.outputs)
    names: dict[str, str] = {}
    taken = {v.name for v in (*graph.inputs, *producers)}

    def unique(name: str) -> str:
        shown = name
        while shown in taken:
            shown += "_shown"
        taken.add(shown)
        names[shown] = name
        return shown

    for number, attributes in found.items():
        value = graph.outputs[number]
        chain: list[Op] = []
        root = _owner(graph, attributes)
        while value is not root:
            chain.append(producers[value])
            value = chain[-1].operands[0]
        shown = Value(value.type, unique(value.name))
        made.append(Op(OPS["alias"], (value,), attributes, (shown,)))
        for op in reversed(chain):
            result = Value(op.result.type, unique(op.result.name))
            made.append(replace(op, operands=(shown,), results=(result,)))
            shown = result
        outputs[number] = shown
    return _renamed(dce(graph.with_ops([*graph.ops, *made], outputs)), names)


def _shared(graph: Graph) -> dict[int, AliasAttributes]:
    """By the numbers of outputs that are, or show, an input's or another output's memory: whose."""
    producers = graph.producers()
    changed = {port.mutates for port in graph.output_ports}
    inputs = {value: k for k, value in enumerate(graph.inputs)}
    owners: dict[Value, int] = {}
    for number, (value, port) in enumerate(zip(graph.outputs, graph.output_ports, strict=True)):
        if port.mutates is not None:
            owners[value] = number
    for number, value in enumerate(graph.outputs):
        made = producers.get(value)
        if made is not None and made.definition.kind != "view":
            owners.setdefault(value, number)
    found: dict[int, AliasAttributes] = {}
    for number, (value, port) in enumerate(zip(graph.outputs, graph.output_ports, strict=True)):
        root = _root(value, producers, owners)
        if port.mutates is not None or owners.get(root) == number:
            continue
        if root in owners:
            attributes = AliasAttributes("output", owners[root], itself=value is root)
        elif root in inputs and inputs[root] not in changed:
            attributes = AliasAttributes("input", inputs[root], itself=value is root)
        else:
            continue
        above = {v: op for v, op in producers.items() if v is not root}
        view = strided_view(value, above, {root: shown_strides(graph, attributes)})
        wanted = port.strides if port.strides is not None else contiguous_strides(value.type.shape)
        if view is not None and same_layout(value.type.shape, view.strides, wanted):
            found[number] = attributes
    return found


def _owner(graph: Graph, whose: AliasAttributes) -> Value:
    """The value of the memory that is shown."""
    return (graph.inputs if whose.of == "input" else graph.outputs)[whose.index]


def _root(value: Value, producers: Mapping[Value, Op], owners: Mapping[Value, int]) -> Value:
    """What the value is a view of: an output, or else what no view makes."""
    while value not in owners and (op := producers.get(value)) is not None and op.definition.kind == "view":
        value = op.operands[0]
    return value


def _renamed(graph: Graph, names: Mapping[str, str]) -> Graph:
    """The graph whose new values have the names of those that they stand for, as far as these are free."""
    taken = {v.name for v in (*graph.inputs, *graph.producers())}
    values: dict[Value, Value] = {}
    for op in graph.ops:
        for result in op.results:
            name = names.get(result.name, result.name)
            if name not in taken:
                taken.add(name)
                values[result] = Value(result.type, name)
    ops = [
        replace(
            op,
            operands=tuple(values.get(v, v) for v in op.operands),
            results=tuple(values.get(v, v) for v in op.results),
        )
        for op in graph.ops
    ]
    return graph.with_ops(ops, [values.get(v, v) for v in graph.outputs])
