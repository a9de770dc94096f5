# SPDX-License-Identifier: Apache-2.0
"""Scores that are divided by a sum of their row: the division is done once, of what the row gives.

A kernel that goes along the columns of a score space has the sum only behind the last of them.
"""

from __future__ import annotations

from collections.abc import Callable

from fusec.ir.attributes import ConstantAttributes, DotAttributes, ReduceAttributes
from fusec.ir.graph import Graph
from fusec.ir.nodes import Op, Value
from fusec.ir.types import f16
from fusec.passes.families.scores.match import space_above
from fusec.passes.groups.partition import Partition
from fusec.passes.rewrite import Outcome, Rewriter, rewrite, rule
from fusec.runtime.program import Declined

_PASSED = ("cast", "copy", "reshape", "broadcast")
_NOT_NEGATIVE = ("abs", "exp", "exp2")


def divide_results(graph: Graph) -> Graph:
    """The graph where scores that a kernel can consume and sum up at a time are divided behind their matmul."""
    partition = Partition(graph)
    wanted = {op.result.name for op in graph.ops if op.name == "dot" and _is_divided(partition, op)}
    if not wanted:
        return graph

    @rule("dot")
    def quotient_behind(r: Rewriter) -> Outcome:
        """dot(x / sum, v) ⇒ dot(x, v) / sum"""
        if r.op.result.name not in wanted:
            return None
        left, right = r.operands
        divide = _divide(r.producer, left)
        assert divide is not None
        x, divisor = divide.operands
        result = r.op.result.type
        product = r.emit("dot", r.cast(x, left.type.dtype), right, attributes=r.op.attributes, hint="undivided")
        return r.cast(r.emit("div", r.cast(product, divisor.type.dtype), divisor), result.dtype)

    return rewrite(graph, (quotient_behind,))


def _is_divided(partition: Partition, op: Op) -> bool:
    """Whether a dot consumes scores divided by a sum of their rows' that is no 0 but where all of them are."""
    attributes = op.expect(DotAttributes)
    left, divide = op.operands[0], _divide(partition.producers.get, op.operands[0])
    if divide is None or left.type.dtype is f16:
        return False
    x, divisor = divide.operands
    shape, axis = left.type.shape, left.type.rank - 1
    batch = tuple(range(len(attributes.lhs_batch)))
    in_order = attributes.lhs_contract == (axis,) and attributes.lhs_batch == batch
    of_rows = divisor.type.shape == (*shape[:-1], 1) and divide.result.type.shape == x.type.shape == shape
    if not in_order or not of_rows or op.result.type.rank != left.type.rank:
        return False
    space = space_above(partition, op)
    return not isinstance(space, Declined) and bool(space.sums) and _is_sum(partition, divisor, x)


def _divide(producer: Callable[[Value], Op | None], value: Value) -> Op | None:
    """The quotient that a value is, through casts and copies."""
    op = producer(value)
    while op is not None and op.name in ("cast", "copy"):
        op = producer(op.operands[0])
    return op if op is not None and op.name == "div" else None


def _is_sum(partition: Partition, value: Value, x: Value) -> bool:
    """Whether a divisor is a sum of the rows of ``x``, of what is not negative or at least a positive number."""
    op = partition.producers.get(value)
    if op is None:
        return False
    if op.name in _PASSED:
        return _is_sum(partition, op.operands[0], x)
    if op.name == "maximum":
        least = partition.producers.get(op.operands[1])
        return _is_positive(least) and _has_sum(partition, op.operands[0], x)
    return _is_sum_of(op, x) and _is_not_negative(partition, op.operands[0])


def _is_positive(op: Op | None) -> bool:
    """Whether an op is a positive number."""
    constant = op.attributes if op is not None else None
    return isinstance(constant, ConstantAttributes) and isinstance(constant.value, int | float) and constant.value > 0


def _has_sum(partition: Partition, value: Value, x: Value) -> bool:
    """Whether a value is made of a sum of the rows of ``x`` by maps of one operand."""
    op = partition.producers.get(value)
    if op is None or len(op.operands) != 1:
        return False
    return _is_sum_of(op, x) or (op.definition.kind != "reduce" and _has_sum(partition, op.operands[0], x))


def _is_sum_of(op: Op, x: Value) -> bool:
    if op.name != "reduce_sum":
        return False
    return op.expect(ReduceAttributes).axes == (x.type.rank - 1,) and op.operands[0].type.shape == x.type.shape


def _is_not_negative(partition: Partition, value: Value) -> bool:
    op = partition.producers.get(value)
    while op is not None and op.name in ("cast", "copy"):
        op = partition.producers.get(op.operands[0])
    return op is not None and op.name in _NOT_NEGATIVE
