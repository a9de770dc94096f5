# SPDX-License-Identifier: Apache-2.0
"""Gives every output memory of its own where it needs it, and leaves views as views where the code returned views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from fusec.errors import LoweringError
from fusec.ir.attributes import NO_ATTRIBUTES, AliasAttributes, CopyAtAttributes, UpdateAttributes
from fusec.ir.graph import Graph
from fusec.ir.nodes import Op, Port, Value
from fusec.ir.ops import OPS
from fusec.ir.types import contiguous_strides
from fusec.location import Location
from fusec.passes.indices import is_check
from fusec.passes.inline import index_only
from fusec.tile.views import Strides, same_layout, strided_view

KERNEL_KINDS = ("elementwise", "data", "reduce", "scan", "dot", "scatter")
"""Kinds of the ops that kernels compute; their results can have any strides."""


def is_call(op: Op) -> bool:
    """True for an op that a library, or the interpreter, runs: it reads and makes whole arrays."""
    if op.definition.kind == "scan" and op.result.type.dtype.kind not in ("float", "int", "uint"):
        return True
    return op.definition.kind not in (*KERNEL_KINDS, "view", "create", "write", "alias", "fused")


def input_strides(graph: Graph) -> dict[Value, Strides]:
    """The strides of each graph input, contiguous where its port says nothing."""
    return {
        v: p.strides if p.strides is not None else contiguous_strides(v.type.shape)
        for v, p in zip(graph.inputs, graph.input_ports, strict=True)
    }


def memory_strides(graph: Graph) -> dict[Value, Strides]:
    """The strides of inputs, what is written in place among them, of computed outputs whose port asks for some, and of
    what is shown of either; all else is contiguous."""
    strides = input_strides(graph)
    producers = graph.producers()
    for value, port in zip(graph.outputs, graph.output_ports, strict=True):
        op = producers.get(value)
        if op is not None and op.definition.kind in KERNEL_KINDS and port.strides is not None:
            strides.setdefault(value, made_strides(value, port))
    for op in graph.ops:
        if op.definition.kind == "write":
            strides[op.result] = strides.get(op.operands[0], contiguous_strides(op.result.type.shape))
        elif op.definition.kind == "alias":
            strides[op.result] = shown_strides(graph, op.expect(AliasAttributes))
    return strides


def shown_strides(graph: Graph, whose: AliasAttributes) -> Strides:
    """The strides of the memory that an ``alias`` shows."""
    index = whose.index
    if whose.of == "output":
        port = graph.output_ports[index]
        if port.mutates is None:
            return made_strides(graph.outputs[index], port)
        index = port.mutates
    port = graph.input_ports[index]
    return port.strides if port.strides is not None else contiguous_strides(graph.inputs[index].type.shape)


def made_strides(value: Value, port: Port) -> Strides:
    """The strides of memory that is made for an output: its port's, where these can be a new array's.

    What is copied into an argument that runs backwards, or over itself, comes from an array that does not.
    """
    shape = value.type.shape
    wanted = port.strides
    if wanted is None or any(isinstance(s, int) and s <= 0 and n != 1 for n, s in zip(shape, wanted, strict=True)):
        return contiguous_strides(shape)
    return wanted


def own_outputs(graph: Graph, apart: Set[str] = frozenset()) -> Graph:
    """Inserts a ``copy`` before each output, or operand of a call, that no plain view of memory can be.

    What kernels compute from indices wherever they need it lies in no memory: an ``alias`` of such an output shows its
    copy.

    An output that shows no ``alias`` lies in memory that is no input's and no other output's.
    LoweringError for one that does, and that the memory's strides can't show.
    What an update writes is a copy of its own; two, one after another, for those updates whose names are in ``apart``.
    """
    owner = _Owner(graph)
    for op in graph.ops:
        owner.add(op, 2 if op.definition.kind == "write" and op.result.name in apart else 1)
    return graph.with_ops(owner.ops, [owner.output(number) for number in range(len(graph.outputs))])


class _Owner:
    """The graph's ops so far, with the copies before them."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.producers = graph.producers()
        self.strides = memory_strides(graph)
        self.indices = index_only(graph)
        self.ops: list[Op] = []
        self.taken = {v.name for v in (*graph.inputs, *(r for op in graph.ops for r in op.results))}
        self.copies: dict[tuple[Value, Strides | None], Value] = {}
        self.shown: dict[int, Value] = {}
        """Copies of outputs that an ``alias`` shows, by the outputs' positions."""
        self.given: set[Value] = set()
        """Memory that is an output's."""

    def fresh(self, value: Value, location: Location | None = None) -> Value:
        """A copy of its own."""
        name = value.name
        while name in self.taken:
            name += "_own"
        self.taken.add(name)
        copy = Value(value.type, name)
        self.ops.append(Op(OPS["copy"], (value,), NO_ATTRIBUTES, (copy,), location))
        return copy

    def copied(self, value: Value, layout: Strides | None = None) -> Value:
        """A copy that all who ask for one of this layout share."""
        key = (value, layout)
        if key not in self.copies:
            self.copies[key] = self.fresh(value)
        return self.copies[key]

    def add(self, op: Op, copies: int) -> None:
        """The op, after the copies that it needs: so many, one of the other, of what an update writes."""
        if is_call(op):
            operands = tuple(v if self._is_operand(v) else self.copied(v) for v in op.operands)
            op = op if operands == op.operands else replace(op, operands=operands)
        elif op.definition.kind == "write":
            base, value, *positions = op.operands
            for _ in range(copies):
                value = self.fresh(value, op.location)
            if positions:
                self.ops[-1] = _copy_at(self.ops[-1], positions, op)
            op = replace(op, operands=(base, value, *positions))
        elif (
            isinstance(op.attributes, AliasAttributes)
            and op.attributes.of == "output"
            and op.operands[0] in self.indices
        ):
            number = op.attributes.index
            if number not in self.shown:
                value, port = op.operands[0], self.graph.output_ports[number]
                self.shown[number] = self.fresh(value) if port.mutates is None else self.copied(value, port.strides)
            op = replace(op, operands=(self.shown[number],))
        self.ops.append(op)

    def output(self, number: int) -> Value:
        """An output: the value itself, or a copy of it. LoweringError as :func:`own_outputs`."""
        if number in self.shown:
            return self.shown[number]
        value, port = self.graph.outputs[number], self.graph.output_ports[number]
        root = memory_of(value, self.producers)
        made = self.producers.get(root)
        is_memory = self._is_output_memory(value, port)
        if made is not None and made.definition.kind == "alias":
            if not is_memory:
                raise LoweringError(f"{value} shares memory that its strides {port.strides} do not fit", made.location)
            return value
        if port.mutates is not None:
            return value if is_memory else self.copied(value, port.strides)
        if is_memory and made is not None and made.definition.kind != "write" and root not in self.given:
            self.given.add(root)
            return value
        return self.fresh(value)

    def _is_operand(self, value: Value) -> bool:
        """True for what a library call can be given as it lies. PyTorch has no tensors that run backwards."""
        if not self._in_memory(value):
            return False
        view = strided_view(value, self.producers, self.strides)
        return view is None or not any(isinstance(s, int) and s < 0 for s in view.strides)

    def _in_memory(self, value: Value) -> bool:
        op = self.producers.get(value)
        if op is None or op.definition.kind != "view":
            return value not in self.indices
        view = strided_view(value, self.producers, self.strides)
        return view is not None and view.base not in self.indices

    def _is_output_memory(self, value: Value, port: Port) -> bool:
        op, shape = self.producers.get(value), value.type.shape
        if op is None:
            return True
        wanted = port.strides if port.strides is not None else contiguous_strides(shape)
        if op.definition.kind == "alias":
            return same_layout(shape, self.strides[value], wanted)
        if not self._in_memory(value):
            return False
        if op.definition.kind == "write" and port.mutates is not None:  # in the argument, which may run backwards
            return same_layout(shape, self.strides[value], wanted)
        if op.definition.kind != "view":
            return same_layout(shape, self.strides.get(value, contiguous_strides(shape)), made_strides(value, port))
        view = strided_view(value, self.producers, self.strides)
        return view is not None and same_layout(shape, view.strides, wanted)


def memory_of(value: Value, producers: Mapping[Value, Op]) -> Value:
    """The value in whose memory this one lies if it is in memory: through views, and checks that give it back."""
    while (op := producers.get(value)) is not None and (op.definition.kind == "view" or is_check(op)):
        value = op.operands[0]
    return value


def _copy_at(copy: Op, positions: Sequence[Value], update: Op) -> Op:
    """The copy that an update writes, at positions that are known when it is made."""
    axes = update.expect(UpdateAttributes).axes
    attributes = CopyAtAttributes(axes, tuple(update.operands[0].type.shape[a] for a in axes))
    return Op(OPS["copy_at"], (*copy.operands, *positions), attributes, copy.results, copy.location)
