# SPDX-License-Identifier: Apache-2.0
"""Graphs as Model Explorer's JSON (https://github.com/google-ai-edge/model-explorer/wiki).

Each kernel is a namespace that opens to show the ops in it; its attributes are what the cost model says of it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from fusec.errors import ArtifactError
from fusec.export.facts import attributes_of, kernel_facts, kernel_names, name_of, report_of, source_of
from fusec.ir.attributes import ConstantAttributes
from fusec.ir.graph import FusedAttributes, Graph
from fusec.ir.nodes import Op, Value
from fusec.os_errors import told
from fusec.runtime.program import Program

Json = dict[str, Any]


def write_explorer(label: str, graphs: Sequence[tuple[str, Graph, Program | None]], path: str | PathLike[str]) -> None:
    """Writes graphs, each with a name of its own and what it became. ArtifactError where it can't be written."""
    found = [graph_of(name, graph, program) for name, graph, program in graphs]
    text = json.dumps({"label": label, "graphs": found, "graphSorting": "name_asc"}, indent=1)
    try:
        Path(path).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ArtifactError(f"can't write {path}: {told(error, path)}") from None


def graph_of(name: str, graph: Graph, program: Program | None = None) -> Json:
    """One graph in Model Explorer's form."""
    w = _Writer()
    for value, port in zip(graph.inputs, graph.input_ports, strict=True):
        label = port.path.removeprefix("self.") or value.name
        w.node(label, "", {"role": port.role, "path": port.path}, [], [value])
    names = kernel_names(graph)
    groups: dict[str, dict[str, str]] = {}
    for op in graph.ops:
        if isinstance(op.attributes, FusedAttributes):
            facts = {"kind": op.attributes.kind, **source_of(op), **kernel_facts(report_of(op, program))}
            groups[names[op]] = facts
            w.kernel(op, names[op])
        else:
            w.op(op, "")
    for number, value in enumerate(graph.outputs):
        w.node(f"output {number}", "", {}, [value], [])
    return {"id": name, "nodes": w.nodes, "groupNodeAttributes": groups}


@dataclass
class _Writer:
    """Nodes so far. ``made``: the node and the number of its output that a value comes from."""

    nodes: list[Json] = field(default_factory=list)
    made: dict[Value, tuple[str, int]] = field(default_factory=dict)

    def op(self, op: Op, namespace: str) -> None:
        facts = {key: str(value) for key, value in attributes_of(op).items() if value not in (None, "", ())}
        label = name_of(op)
        if isinstance(op.attributes, ConstantAttributes):
            label = f"{op.attributes.dtype}({op.attributes.value})"
        self.node(label, namespace, {**source_of(op), **facts}, op.operands, op.results)

    def kernel(self, op: Op, namespace: str) -> None:
        """The ops of a kernel. Its body's inputs and outputs are the values around it."""
        body = op.expect(FusedAttributes).body
        self.made.update({inner: self.made[outer] for inner, outer in zip(body.inputs, op.operands, strict=True)})
        for inner in body.ops:
            self.op(inner, namespace)
        self.made.update({outer: self.made[inner] for outer, inner in zip(op.results, body.outputs, strict=True)})

    def node(
        self, label: str, namespace: str, facts: dict[str, str], operands: Sequence[Value], results: Sequence[Value]
    ) -> None:
        number = str(len(self.nodes))
        edges = []
        for port, value in enumerate(operands):
            source, output = self.made[value]
            edges.append({"sourceNodeId": source, "sourceNodeOutputId": str(output), "targetNodeInputId": str(port)})
        self.made.update({value: (number, port) for port, value in enumerate(results)})
        self.nodes.append(
            {
                "id": number,
                "label": label,
                "namespace": namespace,
                "attrs": [{"key": key, "value": text} for key, text in facts.items() if text],
                "incomingEdges": edges,
                "outputsMetadata": [_metadata(port, value) for port, value in enumerate(results)],
            }
        )


def _metadata(port: int, value: Value) -> Json:
    shape = f"{value.type.dtype}[{', '.join(map(str, value.type.shape))}]"
    attrs = [{"key": "__tensor_tag", "value": value.name}, {"key": "tensor_shape", "value": shape}]
    return {"id": str(port), "attrs": attrs}
