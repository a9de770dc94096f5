# SPDX-License-Identifier: Apache-2.0
"""Where the results of a loop's steps meet: stacked or concatenated. An array that they were written to is a
concatenation by then (:mod:`fusec.passes.regions`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fusec.ir.attributes import ConcatAttributes
from fusec.ir.graph import Graph
from fusec.ir.nodes import Op, Value


@dataclass(frozen=True)
class Meeting:
    """``op``'s result is the ``parts`` along an axis, each of which has one position there."""

    op: Op
    parts: tuple[Value, ...]
    axis: int


def find_meetings(graph: Graph, fewest: int) -> Iterator[Meeting]:
    """All that have at least so many parts, in order. Takes time that is linear in the graph's ops."""
    for op in graph.ops:
        if op.name == "concat" and len(op.operands) >= fewest:
            axis = op.expect(ConcatAttributes).axis
            if all(v.type.shape[axis] == 1 for v in op.operands):
                yield Meeting(op, op.operands, axis)
