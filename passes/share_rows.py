# SPDX-License-Identifier: Apache-2.0
"""Sums over columns in parts, where a kernel reads the same rows to reduce them: it adds up the columns on the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from fusec.ir.attributes import PadAttributes, ReduceAttributes
from fusec.ir.graph import Graph
from fusec.ir.nodes import Op, Value
from fusec.ir.types import TensorType, f32
from fusec.passes.families.row.schedule.columns import FEWEST, holds, parts_of
from fusec.passes.groups.columns import made_of
from fusec.passes.rewrite import Outcome, Rewriter, rewrite, rule
from fusec.passes.split import attended

FEWEST_ELEMENTS = 1 << 19
"""Of fewer elements caches hold what is read twice, and a kernel of its own has more CTAs for the columns."""


@dataclass(frozen=True)
class _Sheet:
    """A reduction's operand as rows by columns."""

    op: Op
    rows: int
    columns: int


@dataclass(frozen=True)
class _Parts:
    """Of the rows of a value of this type."""

    type: TensorType
    parts: int
    height: int


def share_rows(graph: Graph, sms: int) -> Graph:
    """The graph with sums over columns beside reductions over rows made of partial ones, one a CTA of a GPU of so many
    SMs."""
    parts = _parts(graph, sms)
    if not parts:
        return graph

    @rule("reduce_sum")
    def in_parts(r: Rewriter) -> Outcome:
        """sum(x: [n, c] over n) ⇒ sum(sum(pad(x): [parts, n / parts, c] over its second axis) over its first)"""
        found = parts.get(r.op.result.name)
        return None if found is None or r.operands[0].type != found.type else _in_parts(r, found.parts, found.height)

    return rewrite(graph, (in_parts,))


def _in_parts(r: Rewriter, parts: int, height: int) -> Outcome:
    (x,) = r.operands
    count = len(r.op.expect(ReduceAttributes).axes)
    shape = x.type.static_shape
    rows, rest = prod(shape[:count]), shape[count:]
    if rows != parts * height:
        attributes = PadAttributes((0,) * (1 + len(rest)), (parts * height - rows, *(0 for _ in rest)))
        x = r.emit("pad", r.reshape(x, (rows, *rest)), r.constant(0.0, x), attributes=attributes, hint="padded")
    partial = r.reduce("reduce_sum", r.reshape(x, (parts, height, *rest), hint="apart"), [1], "partial")
    return r.reduce("reduce_sum", partial, [0], hint="of_parts")


def _parts(graph: Graph, sms: int) -> Mapping[str, _Parts]:
    """Parts, and rows of each, by the names of sums over columns that are made beside reductions over rows."""
    reductions = [op for op in graph.ops if op.definition.kind == "reduce" and op.operands[0].type.is_static]
    sums = [s for op in reductions if (s := _sheet(op, columns=True)) is not None]
    if not sums:
        return {}
    leaves, elsewhere = _Leaves(graph), attended(graph)
    found: dict[str, _Parts] = {}
    for op in (op for op in reductions if op.result.name not in elsewhere):
        rows = _sheet(op, columns=False)
        if rows is None or rows.rows * rows.columns < FEWEST_ELEMENTS:
            continue
        read = leaves.of(op, op)
        beside = [(s, made) for s in sums if _fits(s, rows) and read & (made := leaves.of(s.op, op))]
        tiles = len(beside) + len(read.union(*(made for _, made in beside)))
        parts, height = parts_of(rows.rows, rows.columns, sms)
        if beside and holds(rows.columns, tiles) and parts >= FEWEST:
            for s, _ in beside:
                found.setdefault(s.op.result.name, _Parts(s.op.operands[0].type, parts, height))
    return found


def _sheet(op: Op, *, columns: bool) -> _Sheet | None:
    """What a reduction over the last axes, or a sum over the first (``columns``), reads as rows by columns."""
    (x,) = op.operands
    shape, axes = x.type.static_shape, op.expect(ReduceAttributes).axes
    if columns and (op.name != "reduce_sum" or op.result.type.dtype is not f32 or x.type.dtype is not f32):
        return None
    split = len(axes) if columns else x.type.rank - len(axes)
    if tuple(axes) != tuple(range(split) if columns else range(split, x.type.rank)) or split in (0, x.type.rank):
        return None
    return _Sheet(op, prod(shape[:split]), prod(shape[split:]))


def _fits(sums: _Sheet, rows: _Sheet) -> bool:
    return (sums.rows, sums.columns) == (rows.rows, rows.columns)


class _Leaves:
    """What reductions read of memory in a kernel that has a certain one of them."""

    def __init__(self, graph: Graph) -> None:
        self.producers = graph.producers()
        self.above = _above(graph)
        self.stored = _stored(graph)

    def of(self, reduction: Op, rows: Op) -> frozenset[Value]:
        """The large values that what a reduction reads is made of, in a kernel that reduces ``rows``.

        None of them where it can't be beside them: they need it, or it needs what other kernels make of theirs.
        """
        if reduction in self.above[rows]:
            return frozenset()

        def there(value: Value) -> bool:
            return value in self.stored and not self._needs(value, rows)

        found = made_of(reduction.operands[0], self.producers, there)
        return frozenset() if any(self._needs(value, rows) for value in found) else found

    def _needs(self, value: Value, rows: Op) -> bool:
        made = self.producers.get(value)
        return made is not None and (made is rows or rows in self.above[made])


def _stored(graph: Graph) -> frozenset[Value]:
    """What ops read that are no maps, views or reductions: it is in memory, whatever else is made of it."""
    producers = graph.producers()
    found = set[Value]()
    for op in graph.ops:
        if op.definition.kind in ("elementwise", "view", "reduce"):
            continue
        for value in op.operands:
            found.add(value)
            while (made := producers.get(value)) is not None and made.definition.kind == "view":
                value = made.operands[0]
                found.add(value)
    return frozenset(found)


def _above(graph: Graph) -> dict[Op, frozenset[Op]]:
    """The reductions that each op needs the results of."""
    made: dict[Value, frozenset[Op]] = {}
    found: dict[Op, frozenset[Op]] = {}
    for op in graph.ops:
        needed = frozenset[Op]().union(*(made.get(v, frozenset()) for v in op.operands))
        found[op] = needed
        if op.definition.kind == "reduce":
            needed |= {op}
        made.update(dict.fromkeys(op.results, needed))
    return found
