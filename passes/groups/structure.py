# SPDX-License-Identifier: Apache-2.0
"""What two groups have in common that differ in names and lines alone: the layers of a model, the steps of a loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields

from fusec.ir.attributes import Attributes
from fusec.ir.graph import FusedAttributes, Graph, Roles
from fusec.ir.nodes import Op, Value

Key = tuple[object, ...]


def structure_of(group: Op, told: Callable[[Value], object] = lambda value: None) -> tuple[Key, tuple[Value, ...]]:
    """A key that is equal for two groups whose bodies are the same ops on values of the same types, and the body's
    values in the order in which the key counts them.

    The order of ops counts, names and locations do not. ``told``: what else must agree of an input or an output.
    """
    fused = group.expect(FusedAttributes)
    body = fused.body
    values = (*body.inputs, *(value for op in body.ops for value in op.results))
    number = {value: k for k, value in enumerate(values)}
    ops = tuple(_key_of(op, number) for op in body.ops)
    inputs = tuple((value.type, told(value)) for value in body.inputs)
    outputs = tuple((number[value], told(value)) for value in body.outputs)
    return (fused.kind, inputs, ops, outputs, _roles_key(fused.roles, number)), values


def from_outputs(body: Graph) -> Graph:
    """The body with its ops in an order that follows from its outputs: two that differ in the order of their ops alone
    get the same."""
    producers = body.producers()
    found: dict[Op, None] = {}

    def visit(value: Value) -> None:
        pending: list[tuple[Op, Iterator[Value]]] = []
        op = producers.get(value)
        if op is not None and op not in found:
            pending.append((op, iter(op.operands)))
        while pending:
            op, operands = pending[-1]
            after = next((p for v in operands if (p := producers.get(v)) is not None and p not in found), None)
            if after is None:
                found[pending.pop()[0]] = None
            else:
                pending.append((after, iter(after.operands)))

    for value in body.outputs:
        visit(value)
    found.update(dict.fromkeys(body.ops))
    return body.with_ops(tuple(found))


def _key_of(op: Op, number: dict[Value, int]) -> Key:
    types = tuple(value.type for value in op.results)
    return op.name, tuple(number[v] for v in op.operands), _record_key(op.attributes), types


def _record_key(attributes: Attributes) -> Key:
    """The record, and its text, which tells numbers apart that Python calls equal: 0.0 and -0.0, 1 and 1.0."""
    return attributes, repr(attributes)


def _roles_key(roles: Roles | None, number: dict[Value, int]) -> object:
    """The roles with values as numbers."""

    def counted(part: object) -> object:
        if isinstance(part, Value):
            return number[part]
        return tuple(map(counted, part)) if isinstance(part, tuple) else part

    return None if roles is None else tuple(counted(getattr(roles, f.name)) for f in fields(roles))
