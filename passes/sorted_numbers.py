# SPDX-License-Identifier: Apache-2.0
"""Library calls that group rows by a small number, as kernels: the choices of a ``topk`` sorted, counted and put back.

``transformers`` groups rows so before ``grouped_mm``: a sort of the chosen experts, a histogram of them, and the
permutation's inverse by a write. On a GPU each such call is several launches; places are counted by few kernels.
"""

from __future__ import annotations

from dataclasses import replace

from fusec.ir.attributes import MOST_GROUPS, CopyAtAttributes, ExternAttributes, GatherAttributes, IotaAttributes
from fusec.ir.graph import Graph
from fusec.ir.nodes import Op, Value
from fusec.ir.types import i32, i64
from fusec.passes.dce import dce
from fusec.passes.rewrite import Rewriter, Sweep
from fusec.passes.row_order import rows_by_group
from fusec.runtime.library import Operand, parse_arguments

MOST_COUNTED = 1 << 28
"""Comparisons of numbers with bins up to which a histogram is a sum of them."""


def open_sorts(graph: Graph) -> Graph:
    """Afterwards numbers below :data:`MOST_GROUPS` are sorted and counted by kernels."""
    if not any(_call(op) in ("sort", "histc") for op in graph.ops):
        return graph
    opened = _Sorts(graph)
    for op in graph.ops:
        opened.add(op)
    sweep = opened.sweep
    return dce(graph.with_ops(sweep.ops, [sweep.resolve(v) for v in graph.outputs]))


class _Sorts:
    """A sweep over a graph. ``places`` are of permutations, by these: where each of their elements is."""

    def __init__(self, graph: Graph) -> None:
        self.sweep = Sweep(graph)
        self.places: dict[Value, Value] = {}

    def add(self, op: Op) -> None:
        """The op, or what takes its place."""
        op = replace(op, operands=tuple(self.sweep.resolve(v) for v in op.operands))
        r = Rewriter(self.sweep, op)
        made: tuple[Value, ...] | None
        match _call(op):
            case "sort":
                made = self._sorted(r)
            case "index_put":
                made = self._written(r)
            case "histc":
                made = _counted(r)
            case _:
                made = None
        if made is None:
            self.sweep.append(op)
            return
        for each in r.emitted:
            self.sweep.append(each)
        self.sweep.replaced.update(zip(op.results, made, strict=True))

    def _sorted(self, r: Rewriter) -> tuple[Value, Value] | None:
        """sort(topk(x)[1]) ⇒ the numbers in order, and the order"""
        (number,), args = r.operands, _arguments(r.op)
        plain = [*args[1:], *(-1, False)[len(args) - 1 :]] in ([-1, False], [0, False])
        if number.type.rank != 1 or number.type.dtype is not i64 or not number.type.is_static or not plain:
            return None
        if number in self.places:
            every = IotaAttributes(number.type.static_shape, 0, i64, number.type.device)
            return r.emit("iota", attributes=every), self.places[number]
        groups = _below(r, number)
        if not number.type.size or not 0 < groups <= MOST_GROUPS:
            return None
        order = rows_by_group(r, number, groups, gpu=True)
        assert order.places is not None
        indices = r.cast(order.order, i64)
        self.places[indices] = r.cast(order.places, i64)
        return r.emit("gather", number, order.order, attributes=GatherAttributes(0)), indices

    def _written(self, r: Rewriter) -> tuple[Value] | None:
        """index_put(x, [order], y) ⇒ scatter(y, order)"""
        args = _arguments(r.op)
        if len(args) != 3 or args[1:] != [[Operand(1)], Operand(2)] or args[0] != Operand(0):
            return None
        base, index, value = r.operands
        if index not in self.places or value.type != base.type or base.type.shape[:1] != index.type.shape:
            return None
        made = r.producer(value, "iota")
        if made is not None and value.type.rank == 1 and value.type.dtype is i64:
            return (self.places[index],)
        attributes = CopyAtAttributes((0,), index.type.shape)
        return (r.emit("scatter", value, index, attributes=attributes),)


def _counted(r: Rewriter) -> tuple[Value] | None:
    """histc(cast(i), n, 0, n - 1) ⇒ sum(i == 0), ..., of integers"""
    args = _arguments(r.op)
    if len(args) != 4 or args[0] != Operand(0):
        return None
    bins, low, high = args[1:]
    (value,) = r.operands
    made = r.producer(value, "cast")
    if made is not None and value.type.dtype.is_float and value.type.dtype.bits >= 32:
        value = made.operands[0]
    if value.type.dtype not in (i32, i64) or value.type.rank != 1 or not value.type.is_static:
        return None
    if not isinstance(bins, int) or bins < 1 or low != 0 or high != bins - 1 or not high:
        return None
    (count,) = value.type.static_shape
    if not 0 < bins * count <= MOST_COUNTED:
        return None
    every = r.emit("iota", attributes=IotaAttributes((bins, 1), 0, value.type.dtype, value.type.device))
    equal = r.emit("eq", r.reshape(value, (1, count)), every)
    found = r.reduce("reduce_sum", r.cast(equal, i64), (1,), hint="counts")
    return (r.cast(found, r.op.result.type.dtype),)


def _below(r: Rewriter, value: Value) -> int:
    """What the numbers of a value are below: one that they are clamped to, or the elements of rows that ``topk`` chose
    from; 0 where it is not known."""
    clamped = r.producer(value, "minimum")
    if clamped is not None and (at_least := r.producer(clamped.operands[0], "maximum")) is not None:
        low, high = r.scalar(at_least.operands[1]), r.scalar(clamped.operands[1])
        return high + 1 if isinstance(low, int) and isinstance(high, int) and 0 <= low <= high else 0
    while (made := r.producer(value, "reshape", "permute", "copy")) is not None:
        value = made.operands[0]
    made = r.producer(value)
    if made is None or _call(made) != "topk" or value is not made.results[1]:
        return 0
    args, rows = _arguments(made), made.operands[0].type
    axis = args[2] if len(args) > 2 else -1
    return rows.static_shape[axis] if isinstance(axis, int) and rows.is_static and rows.rank else 0


def _call(op: Op) -> str:
    """The name of a library call without named arguments; empty for other ops."""
    if not isinstance(op.attributes, ExternAttributes):
        return ""
    namespace, _, rest = op.attributes.target.partition(".")
    if namespace != "aten" or parse_arguments(op.attributes.arguments)[1]:  # fusec's own have other arguments
        return ""
    return rest.partition(".")[0]


def _arguments(op: Op) -> list[object]:
    return list(parse_arguments(op.expect(ExternAttributes).arguments)[0])
