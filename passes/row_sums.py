# SPDX-License-Identifier: Apache-2.0
"""Sums of rows where an index says, of which it is known before the call how many each place has, and which.

Of a token's choices, taken one after another, each is a row that is added to that token. So each place is the sum of
some rows that are read, one after another: nothing is added to memory, and a sum is the same at every call.
"""

from __future__ import annotations

from fusec.ir.attributes import ExtentAttributes, IotaAttributes, SliceAttributes
from fusec.ir.index import mul, product
from fusec.ir.nodes import Value
from fusec.ir.types import Dim
from fusec.passes.rewrite import Rewriter

MOST_TERMS = 32
"""Rows of a place that are added one after another; more are left to a sum by index."""


def sum_of_known_rows(r: Rewriter, base: Value, places: Value, rows: Value, repeats: int = 1) -> Value | None:
    """``base`` with rows added: row ``i`` at ``places[i // repeats]``; None where it is not known which each has."""
    count, total = base.type.shape[0], rows.type.shape[0]
    each = _rows_together(r, places, count)
    terms: int = next((n for n in range(1, MOST_TERMS + 1) if mul(count, n) == total), 0)
    if each is None or not terms or terms % (each * repeats):
        return None
    together = each * repeats
    rest = rows.type.shape[1:]
    whole: tuple[Dim, ...] = (terms // together, count, together, *rest)
    spread = r.reshape(rows, whole)
    result = base
    for before in range(terms // together):
        for inside in range(together):
            starts, stops = (before, 0, inside), (before + 1, count, inside + 1)
            cut = SliceAttributes((*starts, *(0 for _ in rest)), (*stops, *rest), (1,) * len(whole))
            term = r.reshape(r.emit("slice", spread, attributes=cut), (count, *rest))
            result = r.emit("add", result, term, hint="sum")
    return result


def _rows_together(r: Rewriter, places: Value, count: Dim) -> int | None:
    """The ``each`` of ``places[i] == i // each % count``; None where places are not so."""
    length = places.type.shape[0]
    each: Dim = 1
    limit: Dim | None = None
    op = r.producer(places)
    if op is not None and op.name == "remainder":
        limit = _number(r, op.operands[1])
        op = r.producer(op.operands[0])
    if op is not None and op.name == "floordiv":
        each = _number(r, op.operands[1])
        op = r.producer(op.operands[0])
    if op is None or not isinstance(op.attributes, IotaAttributes) or op.result.type.rank != 1:
        return None
    if not isinstance(each, int) or each < 1:
        return None
    return each if limit == count or (limit is None and mul(count, each) == length) else None


def _number(r: Rewriter, value: Value) -> Dim:
    """A value that is known, a number or an extent; 0 where it is not."""
    made = r.producer(value, "extent")
    if made is not None and isinstance(made.attributes, ExtentAttributes):
        return product(made.attributes.factors)
    number = r.scalar(value)
    return number if isinstance(number, int) else 0
