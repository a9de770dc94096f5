"""Gives every output memory of its own where it needs it, and leaves views as views where the code returned views."""

from __future__ import annotations

from collections.abc import Mapping, Set
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

KERNEL_KINDS = ("elementwise", "data", "reduce", "dot")
"""Kinds of the ops that kernels compute; their results can have any strides."""


def is_call(op: Op) -> bool:
    """True for an op that a library, or the interpreter, runs: it reads and makes whole arrays."""
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
            assert isinstance(op.attributes, AliasAttributes)
            strides[op.result] = shown_strides(graph, op.attributes)
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
    producers = graph.producers()
    strides = memory_strides(graph)
    indices = index_only(graph)
    ops: list[Op] = []
    outputs: list[Value] = []
    taken = {v.name for v in (*graph.inputs, *(r for op in graph.ops for r in op.results))}
    copies: dict[tuple[Value, Strides | None], Value] = {}

    def fresh(value: Value, where: list[Op], location: Location | None = None) -> Value:
        name = value.name
        while name in taken:
            name += "_own"
        taken.add(name)
        copy = Value(value.type, name)
        where.append(Op(OPS["copy"], (value,), NO_ATTRIBUTES, (copy,), location))
        return copy

    def copied(value: Value, where: list[Op], layout: Strides | None = None) -> Value:
        key = (value, layout)
        if key not in copies:
            copies[key] = fresh(value, where)
        return copies[key]

    def output_copy(value: Value, port: Port) -> Value:
        return fresh(value, ops) if port.mutates is None else copied(value, ops, port.strides)

    early: dict[int, Value] = {}
    for op in graph.ops:
        if is_call(op):
            operands = tuple(v if _is_operand(v, producers, strides, indices) else copied(v, ops) for v in op.operands)
            ops.append(op if operands == op.operands else replace(op, operands=operands))
        elif op.definition.kind == "write":
            base, value, *place = op.operands
            for _ in range(2 if op.result.name in apart else 1):
                value = fresh(value, ops, op.location)
            if place:
                ops[-1] = _copy_at(ops[-1], place[0], op)
            ops.append(replace(op, operands=(base, value, *place)))
        elif isinstance(op.attributes, AliasAttributes) and op.attributes.of == "output" and op.operands[0] in indices:
            number = op.attributes.index
            if number not in early:
                early[number] = output_copy(op.operands[0], graph.output_ports[number])
            ops.append(replace(op, operands=(early[number],)))
        else:
            ops.append(op)
    given: set[Value] = set()
    for number, (value, port) in enumerate(zip(graph.outputs, graph.output_ports, strict=True)):
        if number in early:
            outputs.append(early[number])
            continue
        root = memory_of(value, producers)
        made = producers.get(root)
        is_memory = _is_output_memory(value, port, producers, strides, indices)
        if made is not None and made.definition.kind == "alias":
            if not is_memory:
                raise LoweringError(f"{value} shares memory that its strides {port.strides} do not fit", made.location)
            outputs.append(value)
        elif port.mutates is not None:
            outputs.append(value if is_memory else copied(value, ops, port.strides))
        elif is_memory and made is not None and made.definition.kind != "write" and root not in given:
            given.add(root)
            outputs.append(value)
        else:
            outputs.append(fresh(value, ops))
    return graph.with_ops(ops, outputs)


def memory_of(value: Value, producers: Mapping[Value, Op]) -> Value:
    """The value in whose memory this one lies if it is in memory: through views, and checks that give it back."""
    while (op := producers.get(value)) is not None and (op.definition.kind == "view" or is_check(op)):
        value = op.operands[0]
    return value


def _copy_at(copy: Op, place: Value, update: Op) -> Op:
    """The copy that an update writes, at a place that is known when it is made."""
    assert isinstance(update.attributes, UpdateAttributes)
    assert update.attributes.axis is not None
    attributes = CopyAtAttributes(update.attributes.axis)
    return Op(OPS["copy_at"], (*copy.operands, place), attributes, copy.results, copy.location)


def _is_operand(
    value: Value, producers: Mapping[Value, Op], strides: Mapping[Value, Strides], indices: set[Value]
) -> bool:
    """True for what a library call can be given as it lies. PyTorch has no tensors that run backwards."""
    if not _in_memory(value, producers, strides, indices):
        return False
    view = strided_view(value, producers, strides)
    return view is None or not any(isinstance(s, int) and s < 0 for s in view.strides)


def _in_memory(
    value: Value, producers: Mapping[Value, Op], strides: Mapping[Value, Strides], indices: set[Value]
) -> bool:
    op = producers.get(value)
    if op is None or op.definition.kind != "view":
        return value not in indices
    view = strided_view(value, producers, strides)
    return view is not None and view.base not in indices


def _is_output_memory(
    value: Value,
    port: Port,
    producers: Mapping[Value, Op],
    strides: Mapping[Value, Strides],
    indices: set[Value],
) -> bool:
    op = producers.get(value)
    if op is None:
        return True
    if op.definition.kind == "alias":
        return same_layout(value.type.shape, strides[value], port.strides or contiguous_strides(value.type.shape))
    if not _in_memory(value, producers, strides, indices):
        return False
    shape = value.type.shape
    if op.definition.kind == "write" and port.mutates is not None:  # in the argument, which may run backwards
        return same_layout(shape, strides[value], port.strides or contiguous_strides(shape))
    if op.definition.kind != "view":
        return same_layout(shape, strides.get(value, contiguous_strides(shape)), made_strides(value, port))
    wanted = port.strides if port.strides is not None else contiguous_strides(shape)
    view = strided_view(value, producers, strides)
    return view is not None and same_layout(shape, view.strides, wanted)
