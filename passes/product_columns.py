# SPDX-License-Identifier: Apache-2.0
"""Two parts of the columns of a product as two products: gate and up, whose matrices are one array's halves.

Products of the same rows are one kernel, and both parts of a point are in its registers then: what combines them is
its epilogue, and the product is not stored.
"""

from __future__ import annotations

from fusec.ir.attributes import DotAttributes, GroupedDotAttributes, SliceAttributes
from fusec.ir.graph import Graph
from fusec.ir.nodes import Op, Value
from fusec.ir.types import Dim
from fusec.passes.dce import dce
from fusec.passes.rewrite import Outcome, Rewriter, rewrite, rule

_FOLLOWED = 64
"""Ops that are looked through for one that reads both parts."""


def split_columns(graph: Graph) -> Graph:
    """Afterwards a grouped product of which two equal parts of the columns are read, and nothing else, is two.

    So is a plain one of rows and a matrix, where an op on elements reads both parts.
    """
    uses, outputs = graph.uses(), set(graph.outputs)
    split = set()
    for op in graph.ops:
        if op.name not in ("grouped_dot", "dot") or op.result in outputs or not op.operands[0].type.is_static:
            continue
        if not op.result.type.is_static or not _are_two_parts(op, uses[op.result]):
            continue
        if op.name == "grouped_dot" or (_is_rows_by_matrix(op) and _meet(graph, [r.result for r in uses[op.result]])):
            split.add(op.result)
    if not split:
        return graph

    @rule("slice")
    def columns_of_rows(r: Rewriter) -> Outcome:
        """slice(dot(x, w), columns) ⇒ dot(x, slice(w, columns))"""
        made = r.producer(r.operands[0], "dot")
        if made is None or made.result not in split:
            return None
        attributes, cut = made.expect(DotAttributes), r.op.expect(SliceAttributes)
        rows, matrix = made.operands
        part = r.emit("slice", matrix, attributes=_columns_of(matrix, 1 - attributes.rhs_contract[0], cut))
        return r.emit("dot", rows, part, attributes=attributes, hint="columns")

    @rule("slice")
    def product_of_columns(r: Rewriter) -> Outcome:
        """slice(grouped_dot(x, w), columns) ⇒ grouped_dot(x, slice(w, columns))"""
        made = r.producer(r.operands[0], "grouped_dot")
        if made is None or made.result not in split:
            return None
        attributes, cut = made.expect(GroupedDotAttributes), r.op.expect(SliceAttributes)
        rows, matrices, *ends = made.operands
        axis = 3 - attributes.rhs_contract
        parts: list[Value] = []
        for matrix in (matrices, *ends[: max(attributes.apart - 1, 0)]):
            columns = axis - (attributes.apart > 0)
            parts.append(r.emit("slice", matrix, attributes=_columns_of(matrix, columns, cut)))
        ends = ends[max(attributes.apart - 1, 0) :]
        return r.emit("grouped_dot", rows, *parts, *ends, attributes=attributes, hint="columns")

    return dce(rewrite(graph, (product_of_columns, columns_of_rows)))


def _columns_of(matrices: Value, axis: int, cut: SliceAttributes) -> SliceAttributes:
    """The slice of matrices that makes the columns of a slice of their products."""
    starts: list[Dim] = [0] * matrices.type.rank
    stops, steps = [*matrices.type.shape], [1] * matrices.type.rank
    starts[axis], stops[axis], steps[axis] = cut.starts[1], cut.stops[1], cut.steps[1]
    return SliceAttributes(tuple(starts), tuple(stops), tuple(steps))


def _is_rows_by_matrix(op: Op) -> bool:
    """A dot of rows with a matrix, of 16 bits: gate and up are columns of one block."""
    a = op.expect(DotAttributes)
    ranks = [v.type.rank for v in op.operands]
    plain = ranks == [2, 2] and a.lhs_contract == (1,) and len(a.rhs_contract) == 1 and not a.lhs_batch
    return plain and op.operands[0].type.dtype.is_half


def _contracts_rows(product: Op) -> bool:
    """Whether the matrix lies with its columns side by side."""
    if product.name == "dot":
        return product.expect(DotAttributes).rhs_contract == (0,)
    return product.expect(GroupedDotAttributes).rhs_contract == 1


def _meet(graph: Graph, parts: list[Value]) -> bool:
    """Whether an op on elements reads both of two parts, each through ops on elements of its own."""
    uses = graph.uses()
    found: list[set[Op]] = []
    for part in dict.fromkeys(parts):
        reached: set[Op] = set()
        waiting = [part]
        while waiting and len(reached) < _FOLLOWED:
            for user in uses[waiting.pop()]:
                same = user.definition.kind == "elementwise" and user.result.type.shape == part.type.shape
                if same and user not in reached:
                    reached.add(user)
                    waiting.append(user.result)
        found.append(reached)
    return len(found) == 2 and bool(found[0] & found[1])


def _are_two_parts(product: Op, readers: tuple[Op, ...] | list[Op]) -> bool:
    """Whether two slices of all rows are all that reads a product. Columns that neighbour in memory stay together."""
    cuts = [op.attributes for op in readers if isinstance(op.attributes, SliceAttributes)]
    if len(cuts) != len(readers) or len({(c.starts, c.stops, c.steps) for c in cuts}) != 2:
        return False
    if len({op.result.type.shape for op in readers}) != 1:
        return False
    along = _contracts_rows(product)
    rows = product.result.type.shape[0]
    for cut in cuts:
        if cut.starts[0] != 0 or cut.stops[0] != rows or cut.steps[0] != 1 or cut.steps[1] < 1:
            return False
        if along and cut.steps[1] != 1:
            return False
    width = readers[0].result.type.shape[1]
    return isinstance(width, int) and 2 * width <= product.result.type.static_shape[1]
