# SPDX-License-Identifier: Apache-2.0
"""Copies of what makes an operand, for each op that reads it its own."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace

from fusec.ir.graph import Graph
from fusec.ir.nodes import Op, Value


class OwnCopies:
    """Collects copies of a graph's ops, under new names that end in ``suffix``, each before the op that reads them."""

    def __init__(self, graph: Graph, suffix: str = "_own") -> None:
        self.graph, self.suffix = graph, suffix
        self._names = {v.name for v in graph.inputs} | {v.name for op in graph.ops for v in op.results}
        self._before: dict[Op, list[Op]] = {}

    def make(self, ops: Set[Op], reader: Op) -> dict[Value, Value]:
        """Copies of these ops before ``reader``: by their results the copies' own."""
        copies: dict[Value, Value] = {}
        for op in (o for o in self.graph.ops if o in ops):
            made = self.copy(op, tuple(copies.get(v, v) for v in op.operands), reader)
            copies.update(zip(op.results, made.results, strict=True))
        return copies

    def copy(self, op: Op, operands: tuple[Value, ...], reader: Op) -> Op:
        """A copy of an op, of these operands, before ``reader`` and behind what was copied for it."""
        results = tuple(replace(v, name=self._unique(v.name)) for v in op.results)
        made = replace(op, operands=operands, results=results)
        self._before.setdefault(reader, []).append(made)
        return made

    def with_readers(self, changed: Mapping[Op, Op]) -> Graph:
        """The graph with the copies, and with the ops that read them as changed."""
        if not changed:
            return self.graph
        before = self._before
        return self.graph.with_ops(o for op in self.graph.ops for o in (*before.get(op, ()), changed.get(op, op)))

    def _unique(self, base: str) -> str:
        found, count = f"{base}{self.suffix}", 1
        while found in self._names:
            count += 1
            found = f"{base}{self.suffix}{count}"
        self._names.add(found)
        return found
