# SPDX-License-Identifier: Apache-2.0
"""Which queries share a block: those of one head, or few queries of all the heads that read the same keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusec.ir.index import Index, Symbol, add, floordiv, mod, mul, symbol
from fusec.ir.indexing import most
from fusec.ir.types import Dim
from fusec.passes.families.attention.elements import Elements
from fusec.tile.nodes import Iter
from fusec.tile.scalar import reindex, symbols_in

PACKED_ROWS, PACKED_WIDE_ROWS, WIDE = 64, 32, 512
"""Queries of several heads are put into one block up to this many rows: more fill a block by themselves. Fewer where a
query and a value together have more than ``WIDE`` elements."""


@dataclass(frozen=True)
class Rows:
    """The rows of a grid point's blocks: ``heads`` neighbours along axis ``axis`` times all ``queries``.

    With one head an axis of queries is cut into blocks; with more, one block holds all rows, a query's heads together,
    and there are ``groups`` of heads.
    """

    axis: int
    heads: int
    queries: Dim
    groups: int = 1

    @property
    def count(self) -> Dim:
        return mul(self.queries, self.heads)


def rows_of(e: Elements, shape: Sequence[Dim], depth: int) -> Rows:
    """As many heads as share every key and value and fit a block with their queries, each of ``depth`` elements."""
    queries = shape[e.query_axis]
    room = PACKED_ROWS if depth + most(shape[e.value_axis]) <= WIDE else PACKED_WIDE_ROWS
    for axis in reversed(range(len(shape))):
        extent = shape[axis]
        if axis in (e.query_axis, e.value_axis) or not isinstance(extent, int):
            continue
        for heads in range(min(extent, room // max(most(queries), 1)), 1, -1):
            if extent % heads == 0 and _share_keys(e, axis, extent, heads):
                return Rows(axis, heads, queries, extent // heads)
    return Rows(e.query_axis, 1, queries)


def _share_keys(e: Elements, axis: int, extent: int, heads: int) -> bool:
    """True when the keys and values of ``heads`` neighbours along the axis are the same."""
    group, one = symbol("group", 0, extent // heads - 1), symbol("one", 0, heads - 1)
    apart: dict[Symbol, Index] = {e.point[axis]: add(mul(group, heads), one)}
    return all(one not in symbols_in(reindex(element, apart)) for element in (e.key, e.value))


def _group(rows: Rows) -> Symbol:
    return symbol("group", 0, rows.groups - 1)


def index_of_row(e: Elements, rows: Rows, row: Index) -> dict[Symbol, Index]:
    """Where row number ``row`` lies along the axes of the queries and of the heads."""
    if rows.heads == 1:
        return {e.point[e.query_axis]: row}
    head: Index = row if rows.queries == 1 else mod(row, rows.heads)
    query: Index = 0 if rows.queries == 1 else floordiv(row, rows.heads)
    return {e.point[e.query_axis]: query, e.point[rows.axis]: add(mul(_group(rows), rows.heads), head)}


def other_axes(e: Elements, rows: Rows, shape: Sequence[Dim]) -> tuple[Iter, ...]:
    """The grid's iterators besides rows: the other axes, and the groups of heads."""
    return tuple(
        Iter(_group(rows), rows.groups) if rows.heads > 1 and a == rows.axis else Iter.over(p, n)
        for a, (p, n) in enumerate(zip(e.point, shape, strict=True))
        if a not in (e.query_axis, e.value_axis)
    )
