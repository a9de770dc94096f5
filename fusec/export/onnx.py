# SPDX-License-Identifier: Apache-2.0
"""A graph as an ONNX model, for viewers such as Netron. Its ops are of the domain ``fusec``: no runtime computes them.

Each kernel is a call of a function of the model (domain ``fusec.kernels``), whose body are the fused ops. Constants
are ONNX's own. The user's lines are in ``doc_string``, what the cost model says of a kernel in ``metadata_props``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from fusec.errors import ArtifactError, TargetError
from fusec.export.facts import attributes_of, kernel_facts, kernel_names, name_of, report_of, source_of
from fusec.ir.attributes import ConstantAttributes, ExternAttributes
from fusec.ir.graph import FusedAttributes, Graph
from fusec.ir.nodes import Op, Value
from fusec.ir.types import DType
from fusec.os_errors import told
from fusec.runtime.program import Program

OPS, KERNELS, LIBRARY = "fusec", "fusec.kernels", "fusec.library"
_IR_VERSION, _OPSET = 10, 21
_ELEMENTS = {
    "f32": 1, "u8": 2, "i8": 3, "u16": 4, "i16": 5, "i32": 6, "i64": 7, "bool": 9, "f16": 10, "f64": 11,
    "u32": 12, "u64": 13, "c64": 14, "c128": 15, "bf16": 16, "f8e4m3": 17, "f8e5m2": 19,
}  # fmt: skip
"""onnx.TensorProto.DataType of each dtype (onnx.proto)."""


def write_onnx(graph: Graph, path: str | PathLike[str], program: Program | None = None) -> None:
    """Writes the model. ``program`` is what the graph became. TargetError without the package ``onnx``.

    ArtifactError where the file can't be written.
    """
    data = model_of(graph, program).SerializeToString()
    try:
        Path(path).write_bytes(data)
    except OSError as error:
        raise ArtifactError(f"can't write {path}: {told(error, path)}") from None


def model_of(graph: Graph, program: Program | None = None) -> Any:
    """The graph as an ``onnx.ModelProto`` that onnx.checker accepts."""
    helper = _helper()
    names = kernel_names(graph)
    nodes = [_node(op, names, program) for op in graph.ops]
    outputs = []
    seen = {value.name for value in graph.inputs}
    for number, value in enumerate(graph.outputs):
        name = value.name
        if name in seen:  # ONNX wants each result to have a name of its own
            name = f"{name}.output{number}"
            nodes.append(helper.make_node("Identity", [value.name], [name]))
        seen.add(name)
        outputs.append(_value(value, name))
    ports = zip(graph.inputs, graph.input_ports, strict=True)
    inputs = [_value(value, value.name, f"{port.role} {port.path}".strip()) for value, port in ports]
    inner = [_value(result, result.name) for op in graph.ops for result in op.results if result.name not in seen]
    made = helper.make_graph(nodes, graph.name, inputs, outputs, value_info=inner)
    functions = [_function(name, op) for op, name in names.items()]
    domains = [helper.make_opsetid(domain, 1) for domain in (OPS, KERNELS, LIBRARY)]
    model = helper.make_model(
        made, functions=functions, opset_imports=[helper.make_opsetid("", _OPSET), *domains], producer_name="fusec"
    )
    model.ir_version = _IR_VERSION
    if program is not None:
        helper.set_model_props(model, {"target": program.target})
    return model


def _helper() -> Any:
    try:
        from onnx import helper
    except ImportError:
        raise TargetError("ONNX files need the package onnx: pip install fusec[onnx]") from None
    return helper


def _function(name: str, op: Op) -> Any:
    helper = _helper()
    attributes = op.expect(FusedAttributes)
    body = attributes.body
    made = helper.make_function(
        KERNELS,
        name,
        [value.name for value in body.inputs],
        [value.name for value in body.outputs],
        [_node(inner, {}, None) for inner in body.ops],
        [helper.make_opsetid("", _OPSET), helper.make_opsetid(OPS, 1)],
        doc_string=", ".join(source_of(op).values()),
        value_info=[_value(result, result.name) for inner in body.ops for result in inner.results],
    )
    _set_properties(made, {"kind": attributes.kind})
    return made


def _node(op: Op, names: Mapping[Op, str], program: Program | None) -> Any:
    helper = _helper()
    operands, results = [v.name for v in op.operands], [v.name for v in op.results]
    facts = source_of(op)
    match op.attributes:
        case ConstantAttributes(value=value, dtype=dtype):
            node = helper.make_node("Constant", [], results, value=_tensor(value, dtype))
        case FusedAttributes(kind=kind):
            node = helper.make_node(names[op], operands, results, name=names[op], domain=KERNELS)
            facts = {**facts, "kind": kind, **kernel_facts(report_of(op, program))}
        case ExternAttributes():
            found = {
                "target": op.attributes.target,
                "arguments": op.attributes.arguments,
                "reason": op.attributes.reason,
            }
            target = name_of(op).replace(".", "_")  # a viewer shows what follows the last point
            node = helper.make_node(target, operands, results, domain=LIBRARY, **found)
        case _:
            given = {key: _plain(value) for key, value in attributes_of(op).items()}
            node = helper.make_node(op.name, operands, results, domain=OPS)
            node.attribute.extend(helper.make_attribute(k, v) for k, v in given.items() if v is not None and v != [])
    if not node.name:
        node.name = results[0] if results else op.name
    node.doc_string = facts.get("source", "")
    _set_properties(node, facts)
    return node


def _set_properties(node: Any, properties: Mapping[str, str]) -> None:
    for key, value in properties.items():
        entry = node.metadata_props.add()
        entry.key, entry.value = key, value


def _plain(value: object) -> int | float | str | list[int] | list[str] | None:
    """An attribute as one of ONNX's kinds; what is none of them is text."""
    if isinstance(value, bool | int):
        return int(value)
    if isinstance(value, float | str) or value is None:
        return value
    if isinstance(value, tuple):
        return list(value) if all(isinstance(part, int) for part in value) else [str(part) for part in value]
    return str(value)


def _tensor(value: object, dtype: DType) -> Any:
    from onnx import TensorProto

    data = np.array(value).astype(dtype.numpy)
    return TensorProto(data_type=_ELEMENTS[dtype.name], raw_data=data.tobytes())


def _value(value: Value, name: str, doc: str = "") -> Any:
    shape: Sequence[int | str] = [n if isinstance(n, int) else str(n) for n in value.type.shape]
    return _helper().make_tensor_value_info(name, _ELEMENTS[value.type.dtype.name], shape, doc)
