# SPDX-License-Identifier: Apache-2.0
"""A graph captured on a CPU, placed on a device that need not be here."""

from __future__ import annotations

from dataclasses import replace

from fusec.ir.attributes import Attributes, ConstantAttributes, ExtentAttributes, ExternAttributes, IotaAttributes
from fusec.ir.graph import Graph
from fusec.ir.nodes import Op, Value
from fusec.ir.types import TensorType


def place(graph: Graph, device: str) -> Graph:
    """The graph with everything on ``device`` instead of the CPU; what lies elsewhere stays."""
    placed: dict[Value, Value] = {}

    def moved(value: Value) -> Value:
        found = placed.get(value)
        if found is None:
            found = placed[value] = replace(value, type=_type(value.type, device))
        return found

    def all_moved(values: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple(map(moved, values))

    ops = [
        Op(
            op.definition,
            all_moved(op.operands),
            placed_attributes(op.attributes, device),
            all_moved(op.results),
            op.location,
        )
        for op in graph.ops
    ]
    return replace(graph, inputs=all_moved(graph.inputs), outputs=all_moved(graph.outputs), ops=tuple(ops))


def _type(type: TensorType, device: str) -> TensorType:
    return replace(type, device=device) if type.device == "cpu" else type


def placed_attributes(attributes: Attributes, device: str) -> Attributes:
    """The attributes of an op that makes on ``device`` what it made on the CPU."""
    match attributes:
        case ConstantAttributes() | ExtentAttributes() | IotaAttributes() if attributes.device == "cpu":
            return replace(attributes, device=device)
        case ExternAttributes():
            types = tuple(_type(t, device) for t in attributes.types)
            text = attributes.arguments.replace("torch.device('cpu')", f"torch.device({device!r})")
            return replace(attributes, types=types, arguments=text)
        case _:
            return attributes
