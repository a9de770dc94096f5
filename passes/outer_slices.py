# SPDX-License-Identifier: Apache-2.0
"""Slices that GPU kernels take of what they read, as views outside of them: layers of one array share a kernel.

A model that keeps its weights, or its keys and values, in one array for all layers reads a slice of it in each. Inside
of a kernel the slice's start is a constant of its code, and each layer's kernel is compiled by itself. Outside it is
an address.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

from fusec.ir.attributes import SliceAttributes
from fusec.ir.graph import FusedAttributes, Graph
from fusec.ir.index import add, mul
from fusec.ir.nodes import Op, Value
from fusec.ir.types import Dim
from fusec.passes.outputs import memory_strides
from fusec.tile.views import strided_view

ALIGNED = 16
"""Bytes of which an address is a multiple where a GPU's widest loads may be used."""


def with_outer_slices(graph: Graph) -> Graph:
    """The graph of kernels with the slice of an input that a kernel reads as a view before the kernel.

    Slices stay inside where several of one operand are read, and where their start is symbolic or no multiple of 16
    bytes after the array's.
    """
    outer = _Outer(graph)
    for op in graph.ops:
        outer.add(op)
    return graph.with_ops(outer.ops) if outer.made else graph


class _Outer:
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
            cuts = [self._cut(op.attributes, given) for given in op.operands]
            for cut in filter(None, cuts):
                self.add(cut)
            if any(cuts):
                self.made = True
                op = _reading(op, op.attributes, cuts)
        if op.definition.kind == "view":
            self.shown.add(op.result)
        self.ops.append(op)

    def _cut(self, kernel: FusedAttributes, given: Value) -> Op | None:
        cut = _only_slice(kernel, given)
        return cut if cut is not None and self._has_address(given, cut) else None

    def _has_address(self, operand: Value, cut: Op) -> bool:
        """Whether a slice lies in an input, or in what has been written there, a constant from its start."""
        view = strided_view(operand, self.producers, self.strides)
        if view is None or 0 in cut.result.type.shape or not operand.type.is_static:
            return False
        made = self.producers.get(view.base)
        if view.base not in self.inputs and (made is None or made.definition.kind != "write"):
            return False
        step: Dim = 0
        for start, stride in zip(cut.expect(SliceAttributes).starts, view.strides, strict=True):
            step = add(step, mul(start, stride))
        return isinstance(step, int) and step * operand.type.dtype.itemsize % ALIGNED == 0


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
