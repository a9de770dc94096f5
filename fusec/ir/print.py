# SPDX-License-Identifier: Apache-2.0
"""Writes a graph as text, which :mod:`fusec.ir.parse` reads back.

    graph @mlp<B in [1, 64]>(%x: f32[B, 768], %w: f32[3072, 768] parameter "fc.weight") {
      %h = dot(%x, %w) {contract=[1]x[1]} : f32[B, 3072]        // model.py:12
      %y = mul(%h, f32(0.5)) : f32[B, 3072]
      return %y
    }

A constant stands where it is used. A fused op's body is an indented region with names of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass

from fusec.errors import FusecError
from fusec.ir.attributes import Attributes, ConstantAttributes
from fusec.ir.index import Expr, Symbol, bounds, symbols_of
from fusec.ir.nodes import Op, Port, Region, RegionAttributes, Value
from fusec.ir.text import PAIRS, has_default, plain_fields, spell_float, spell_name, spell_scalar, spell_string
from fusec.ir.types import DType

LINE = 120
"""A signature longer than this many characters is written with one input a line."""

Constants = Mapping[Value, ConstantAttributes]


def print_graph(graph: Region) -> str:
    """The text of a graph, without a newline at the end. The same graph always gives the same text."""
    clause = _ranges(graph)
    return "\n".join(_graph_lines(graph, "graph ", f"<{clause}>" if clause else "", "}"))


def print_op(op: Op) -> str:
    """The text of one op, with a fused op's region. Constants among its operands show as plain names."""
    return "\n".join(_op_lines(op, {}))


def _graph_lines(graph: Region, head: str, clause: str, tail: str) -> list[str]:
    constants = _constants(graph)
    lines = _signature(graph, f"{head}@{spell_name(graph.name)}", clause)
    for op in graph.ops:
        if not isinstance(op.attributes, ConstantAttributes):
            lines += ["  " + line for line in _op_lines(op, constants)]
    outputs = [
        _operand(value, constants) + _port(port) for value, port in zip(graph.outputs, graph.output_ports, strict=True)
    ]
    lines += [f"  return {', '.join(outputs)}".rstrip(), tail]
    return lines


def _constants(graph: Region) -> Constants:
    return {op.result: op.attributes for op in graph.ops if isinstance(op.attributes, ConstantAttributes)}


def _signature(graph: Region, head: str, clause: str) -> list[str]:
    inputs = [f"{_name(v)}: {v.type}{_port(port)}" for v, port in zip(graph.inputs, graph.input_ports, strict=True)]
    line = f"{head}{clause}({', '.join(inputs)}) {{"
    if len(line) <= LINE or not inputs:
        return [line]
    return [f"{head}{clause}(", *(f"    {text}," for text in inputs[:-1]), f"    {inputs[-1]}", ") {"]


def _name(value: Value) -> str:
    return f"%{spell_name(value.name)}"


def _operand(value: Value, constants: Constants) -> str:
    constant = constants.get(value)
    if constant is None:
        return _name(value)
    return spell_scalar(constant.value, constant.dtype, constant.device)


def _port(port: Port) -> str:
    parts: list[str] = []
    if port.role != "argument" or port.path:
        parts += [port.role, spell_string(port.path)]
    if port.strides is not None:
        parts.append(f"strides={list(port.strides)}")
    if port.offset:
        parts.append(f"offset={port.offset}")
    if port.mutates is not None:
        parts.append(f"mutates={port.mutates}")
    return "".join(f" {part}" for part in parts)


def _op_lines(op: Op, constants: Constants) -> list[str]:
    results = ", ".join(map(_name, op.results))
    operands = ", ".join(_operand(v, constants) for v in op.operands)
    head = f"{results} = {op.name}({operands})" if results else f"{op.name}({operands})"
    types = ", ".join(str(v.type) for v in op.results)
    tail = (f" : {types}" if types else "") + _location(op)
    if isinstance(op.attributes, RegionAttributes):
        kind, body, parts = op.attributes.region()
        written = _attributes(parts, _constants(body)) if parts is not None else ""
        return _graph_lines(body, f"{head} {kind} ", "", f"}}{written}{tail}")
    if isinstance(op.attributes, ConstantAttributes):
        attributes = op.attributes
        return [f"{results} = {spell_scalar(attributes.value, attributes.dtype, attributes.device)}{tail}"]
    return [f"{head}{_attributes(op.attributes)}{tail}"]


def _location(op: Op) -> str:
    """The comment with the user's line; a file name's odd spaces would end the line or be lost."""
    short = " ".join(op.location.short.split()) if op.location else ":"
    return "" if short.startswith(":") else f"        // {short}"


def _attributes(record: Attributes, constants: Constants | None = None) -> str:
    parts: list[str] = []
    for name, (left, right) in PAIRS.get(type(record), {}).items():
        a, b = getattr(record, left), getattr(record, right)
        if a or b or name == "contract":
            parts.append(f"{name}={list(a)}x{list(b)}")
    for field in plain_fields(type(record)):
        value = getattr(record, field.name)
        if not has_default(field, value):
            parts.append(f"{field.name}={_written(value, str(field.type), constants or {})}")
    return f" {{{', '.join(parts)}}}" if parts else ""


def _written(value: object, annotation: str, constants: Constants) -> str:
    if isinstance(value, Value):
        return _operand(value, constants)
    if isinstance(value, tuple) and "Value" in annotation:
        return f"[{', '.join(_operand(v, constants) for v in value)}]"
    return _field(value, annotation)


def _field(value: object, annotation: str) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "true" if value else "false"
        case int() if "float" not in annotation:
            return str(value)
        case int() | float():
            return spell_float(value)
        case DType():
            return value.name
        case str():
            return value if annotation.startswith("Literal") else spell_string(value)
        case tuple():
            return f"[{', '.join(map(str, value))}]"
    raise FusecError(f"IR text has no spelling for a field of type {annotation}; add one to fusec/ir/print.py")


def _ranges(graph: Region) -> str:
    """The ranges of symbols that are not the usual ``[0, inf]``, by name."""
    found = sorted(symbols_in(graph), key=lambda s: s.name)
    return ", ".join(f"{s.name} in [{_end(s.lo, '-inf')}, {_end(bounds(s)[1], 'inf')}]" for s in found if _unusual(s))


def _unusual(s: Symbol) -> bool:
    return s.lo != 0 or s.hi is not None


def _end(bound: int | None, unbounded: str) -> str:
    return unbounded if bound is None else str(bound)


def symbols_in(graph: Region) -> set[Symbol]:
    """Every symbol in the types and attributes of a graph, bodies of fused ops included."""
    values = [*graph.inputs, *(v for op in graph.ops for v in op.results)]
    found = set(_symbols_of_all(d for v in values for d in v.type.shape))
    for op in graph.ops:
        if isinstance(op.attributes, RegionAttributes):
            found |= symbols_in(op.attributes.region()[1])
        else:
            found |= _symbols_of_all([getattr(op.attributes, f.name) for f in fields(op.attributes)])
    return found


def _symbols_of_all(items: Iterable[object]) -> set[Symbol]:
    found: set[Symbol] = set()
    for item in items:
        if isinstance(item, Expr):
            found |= symbols_of(item)
        elif isinstance(item, tuple):
            found |= _symbols_of_all(item)
        elif is_dataclass(item) and hasattr(item, "shape"):
            found |= _symbols_of_all(item.shape)
    return found
