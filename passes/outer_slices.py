# SPDX-License-Identifier: Apache-2.0
"""Slices that kernels take of what they read, as views outside of them: layers of one array share a kernel.

A model that keeps its weights, or its keys and values, in one array for all layers reads a slice of it in each,
and a loop over time or over chunks reads one in each step. Inside of a kernel the slice's start is a constant of its
code, and each layer's kernel is compiled by itself. Outside it is an address.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace

from fusec.ir.attributes import SliceAttributes
from fusec.ir.graph import FusedAttributes, Graph
from fusec.ir.index import add, mul
from fusec.ir.nodes import Op, Value
from fusec.ir.types import Dim
from fusec.passes.groups.structure import Key, from_outputs, structure_of
from fusec.passes.outputs import memory_strides
from fusec.tile.views import strided_view

ALIGNED = 16
"""Bytes of which an address is a multiple where a GPU's widest loads may be used."""


def with_outer_slices(graph: Graph, *, blocked: bool) -> Graph:
    """The graph of kernels with the slice of an array that a kernel reads as a view before the kernel.

    Slices stay inside where several of one operand are read, and where their start is symbolic. ``blocked``: on a GPU
    the array is an input, and the start a multiple of 16 bytes after the array's. On a CPU the array is anything in
    memory that stays as it is, and slices stay inside of a kernel that is like no other then.
    """
    outer = _Outer(graph) if blocked else _OuterAlike(graph)
    for op in graph.ops:
        outer.add(op)
    return graph.with_ops(outer.ops) if outer.made else graph


class _Outer:
    aligned = ALIGNED

    def __init__(self, graph: Graph) -> None:
        self.producers = graph.producers()
        self.strides = memory_strides(graph)
        self.inputs = set(graph.inputs)
        self.made = False
        self.shown: set[Value] = set()
        self.ops: list[Op] = []

    def add(self, op: Op) -> None:
        """The op, after the slices that it reads."""
        if op.definition.kind == "view" and op.result in self.shown:
            return
        if isinstance(op.attributes, FusedAttributes):
            cuts = self.cuts(op, op.attributes)
            for cut in filter(None, cuts):
                self.add(cut)
            if any(cuts):
                self.made = True
                op = _reading(op, op.attributes, cuts)
        if op.definition.kind == "view":
            self.shown.add(op.result)
        self.ops.append(op)

    def cuts(self, op: Op, kernel: FusedAttributes) -> list[Op | None]:
        """For each operand of a kernel the slice that is to be outside."""
        return [self._cut(kernel, given) for given in op.operands]

    def _cut(self, kernel: FusedAttributes, given: Value) -> Op | None:
        cut = _only_slice(kernel, given)
        return cut if cut is not None and self._has_address(given, cut) else None

    def _has_address(self, operand: Value, cut: Op) -> bool:
        """Whether a slice lies in an array that may be read through views, a constant from its start."""
        view = strided_view(operand, self.producers, self.strides)
        if view is None or 0 in cut.result.type.shape or not operand.type.is_static or not self.may_show(view.base):
            return False
        step: Dim = 0
        for start, stride in zip(cut.expect(SliceAttributes).starts, view.strides, strict=True):
            step = add(step, mul(start, stride))
        return isinstance(step, int) and step * operand.type.dtype.itemsize % self.aligned == 0

    def may_show(self, base: Value) -> bool:
        """Whether an array is an input, or what has been written there."""
        made = self.producers.get(base)
        return base in self.inputs or (made is not None and made.definition.kind == "write")


class _OuterAlike(_Outer):
    """Slices outside of kernels that are alike then, on a CPU."""

    aligned = 1

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.fixed = {v for v, port in zip(graph.inputs, graph.input_ports, strict=True) if port.role == "static"}
        self.written = {op.operands[0] for op in graph.ops if op.definition.kind == "write"}
        self.found: dict[Op, list[Op | None]] = {}
        self.keys: dict[Op, Key] = {}
        for op in graph.ops:
            if isinstance(op.attributes, FusedAttributes):
                cuts = self.found[op] = super().cuts(op, op.attributes)
                self.keys[op] = _shape_of(_reading(op, op.attributes, cuts) if any(cuts) else op)
        self.counts = Counter(self.keys.values())

    def cuts(self, op: Op, kernel: FusedAttributes) -> list[Op | None]:
        return self.found[op] if self.counts[self.keys[op]] > 1 else [None] * len(op.operands)

    def may_show(self, base: Value) -> bool:
        """Whether an array stays as it is: what is packed from a fixed one is kept, and of one that a kernel writes
        into the kernel's order of reading and writing matters.
        """
        made = self.producers.get(base)
        kind = "input" if made is None else made.definition.kind
        return base not in self.fixed and base not in self.written and kind in ("input", "fused", "extern")


def _shape_of(kernel: Op) -> Key:
    """The structure of a kernel, whatever the order of its ops."""
    attributes = kernel.expect(FusedAttributes)
    ordered = replace(attributes, body=from_outputs(attributes.body))
    return structure_of(replace(kernel, attributes=ordered))[0]


def _reading(op: Op, kernel: FusedAttributes, cuts: Sequence[Op | None]) -> Op:
    """A kernel with slices in the place of operands."""
    shown = dict.fromkeys(v if cut is None else cut.result for v, cut in zip(op.operands, cuts, strict=True))
    ops = tuple(inner for inner in kernel.body.ops if inner not in cuts)
    body = Graph(kernel.body.name, tuple(shown), kernel.body.outputs, ops)
    return replace(op, operands=tuple(shown), attributes=replace(kernel, body=body))


def _only_slice(kernel: FusedAttributes, given: Value) -> Op | None:
    """The slice that is all that a kernel reads of an operand, with steps forward; None where there is no such."""
    readers = [op for op in kernel.body.ops if given in op.operands]
    if len(readers) != 1 or given in kernel.body.outputs or not isinstance(readers[0].attributes, SliceAttributes):
        return None
    (cut,) = readers
    named = kernel.roles is not None and any(getattr(kernel.roles, f.name) is cut.result for f in fields(kernel.roles))
    forward = all(step == 1 for step in cut.expect(SliceAttributes).steps)
    return cut if forward and not named and cut.result not in kernel.body.outputs else None
