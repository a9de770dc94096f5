# SPDX-License-Identifier: Apache-2.0
"""Checks that a graph keeps the rules that every pass relies on."""

from __future__ import annotations

from dataclasses import fields
from typing import NoReturn

from fusec.errors import TypeRuleError, VerifyError
from fusec.ir.graph import ROLES, AttentionGroup, FusedAttributes, Graph, ScoresGroup
from fusec.ir.nodes import Op, Port, Value
from fusec.ir.ops import OPS
from fusec.ir.print import print_op, symbols_in


def verify(graph: Graph, after: str | None = None) -> None:
    """Raises VerifyError, naming the pass ``after`` and printing the op, unless the graph is well formed.

    Each value is defined once and before its use, names are unique in their graph, types are the inferred
    ones, ports fit their values, and a symbol's name stands for one symbol. Fused bodies are checked too.
    """
    _Verifier(graph, after, ()).run()
    by_name: dict[str, object] = {}
    for s in symbols_in(graph):
        if by_name.setdefault(s.name, s) is not s:
            raise VerifyError(f"{_when(after)}@{graph.name}: two symbols are named {s.name}, with different ranges")


def _when(after: str | None) -> str:
    return f"after pass '{after}': " if after else ""


class _Verifier:
    """The check of one graph; ``path`` names the graphs around it."""

    def __init__(self, graph: Graph, after: str | None, path: tuple[str, ...]) -> None:
        self.graph = graph
        self.after = after
        self.path = (*path, f"@{graph.name}")
        self.defined: set[Value] = set()
        self.names: set[str] = set()

    def fail(self, message: str, op: Op | None = None) -> NoReturn:
        shown = "" if op is None else f"\n  {_safely(op)}"
        location = op.location if op is not None else None
        raise VerifyError(f"{_when(self.after)}{' in '.join(reversed(self.path))}: {message}{shown}", location)

    def run(self) -> None:
        for value in self.graph.inputs:
            self.define(value, None)
        for op in self.graph.ops:
            self.op(op)
        for value in self.graph.outputs:
            if value not in self.defined:
                self.fail(f"output {value} is not defined")
        self.ports()

    def define(self, value: Value, op: Op | None) -> None:
        if value in self.defined:
            self.fail(f"{value} is defined twice", op)
        if value.name in self.names:
            self.fail(f"two values are named {value}", op)
        self.defined.add(value)
        self.names.add(value.name)

    def roles(self, attributes: FusedAttributes, op: Op) -> None:
        """Groups of the kinds that have parts say which of their values are what, and no others do."""
        roles, body = attributes.roles, attributes.body
        record = ROLES.get(attributes.kind)
        held_as = None if roles is None else type(roles)
        if held_as is not record:
            has = f"lacks the parts of {_PARTS_OF[record]}" if record else f"has the parts of {_PARTS_OF[held_as]}"
            self.fail(f"a fused op of kind {attributes.kind} {has}", op)
        held = {*body.inputs, *(v for inner in body.ops for v in inner.results)}
        for name in [f.name for f in fields(roles)] if roles is not None else []:
            found = getattr(roles, name)
            for value in found if isinstance(found, tuple) else (found,):
                if isinstance(value, Value) and value not in held:
                    self.fail(f"{name} is {value}, which is not in the body", op)

    def op(self, op: Op) -> None:
        if OPS.get(op.name) is not op.definition:
            self.fail(f"op {op.name} is not in the op table", op)
        made_later = {r for later in self.graph.ops for r in later.results} if self._has_unknown(op) else set()
        for value in op.operands:
            if value not in self.defined:
                why = "is used before it is defined" if value in made_later else "is not defined in this graph"
                self.fail(f"{value} {why}", op)
        if isinstance(op.attributes, FusedAttributes):
            _Verifier(op.attributes.body, self.after, self.path).run()
            self.roles(op.attributes, op)
        try:
            types = op.definition.infer(tuple(v.type for v in op.operands), op.attributes)
        except TypeRuleError as error:
            self.fail(f"{op.name}: {error}", op)
        if types != tuple(v.type for v in op.results):
            self.fail(f"{op.name} gives {', '.join(map(str, types))}", op)
        for value in op.results:
            self.define(value, op)

    def _has_unknown(self, op: Op) -> bool:
        return any(value not in self.defined for value in op.operands)

    def ports(self) -> None:
        graph = self.graph
        for what, values, ports in (
            ("input", graph.inputs, graph.input_ports),
            ("output", graph.outputs, graph.output_ports),
        ):
            if len(values) != len(ports):
                self.fail(f"{len(values)} {what}s have {len(ports)} {what} ports")
            for value, port in zip(values, ports):
                if port.strides is not None and len(port.strides) != value.type.rank:
                    self.fail(f"{what} {value}: {value.type} has strides {list(port.strides)}")
                if port.offset < 0:
                    self.fail(f"{what} {value} has the negative offset {port.offset}")
        self.mutations()

    def mutations(self) -> None:
        graph = self.graph
        for port in graph.input_ports:
            if port.mutates is not None:
                self.fail("an input port has 'mutates', which is for outputs")
        changed: dict[int, Value] = {}
        for value, port in zip(graph.outputs, graph.output_ports):
            if port.mutates is not None:
                self.mutation(value, port, changed)
                changed[port.mutates] = value

    def mutation(self, value: Value, port: Port, changed: dict[int, Value]) -> None:
        assert port.mutates is not None
        if not 0 <= port.mutates < len(self.graph.inputs):
            self.fail(f"output {value} mutates input {port.mutates}, but there are {len(self.graph.inputs)} inputs")
        target = self.graph.inputs[port.mutates]
        if target.type != value.type:
            self.fail(f"output {value}: {value.type} can't be written to input {target}: {target.type}")
        if port.mutates in changed:
            self.fail(f"outputs {changed[port.mutates]} and {value} both mutate input {target}")


_PARTS_OF = {AttentionGroup: "an attention", ScoresGroup: "a score space", None: "nothing"}


def _safely(op: Op) -> str:
    """The op's text, or its outline where its attributes are too broken to print."""
    try:
        return print_op(op)
    except (AttributeError, TypeError):
        return repr(op)
