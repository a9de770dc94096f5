# SPDX-License-Identifier: Apache-2.0
"""Sums of rows where an index says, of which it is known before the call how many each place has, and which.

Of a token's choices, taken one after another, each is a row that is added to that token. So each place is the sum of
some rows that are read, one after another: nothing is added to memory, and a sum is the same at every call.
"""

from __future__ import annotations

from fusec.ir.attributes import IotaAttributes, SliceAttributes
from fusec.ir.nodes import Value
from fusec.passes.rewrite import Rewriter

MOST_TERMS = 32
"""Rows of a place that are added one after another; more are left to a sum by index."""


def sum_of_known_rows(r: Rewriter, base: Value, places: Value, rows: Value, repeats: int = 1) -> Value | None:
    """``base`` with rows added: row ``i`` at ``places[i // repeats]``; None where it is not known which each has."""
    count = base.type.static_shape[0]
    each = _rows_together(r, places, count)
    total = rows.type.static_shape[0]
    if each is None:
        return None
    each *= repeats
    if total % (each * count) or total // count > MOST_TERMS:
        return None
    rest = rows.type.static_shape[1:]
    whole = (total // (each * count), count, each, *rest)
    spread = r.reshape(rows, whole)
    result = base
    for before in range(whole[0]):
        for inside in range(each):
            cut = SliceAttributes.of_axes(whole, {0: (before, before + 1), 2: (inside, inside + 1)})
            term = r.reshape(r.emit("slice", spread, attributes=cut), (count, *rest))
            result = r.emit("add", result, term, hint="sum")
    return result


def _rows_together(r: Rewriter, places: Value, count: int) -> int | None:
    """The ``each`` of ``places[i] == i // each % count``; None where places are not so."""
    length = places.type.static_shape[0]
    each, limit = 1, length
    op = r.producer(places)
    if op is not None and op.name == "remainder":
        limit = _number(r, op.operands[1])
        op = r.producer(op.operands[0])
    if op is not None and op.name == "floordiv":
        each = _number(r, op.operands[1])
        op = r.producer(op.operands[0])
    if op is None or not isinstance(op.attributes, IotaAttributes) or op.result.type.rank != 1 or each < 1:
        return None
    reached = -(-length // each)
    return each if limit == count or (limit >= reached and reached <= count) else None


def _number(r: Rewriter, value: Value) -> int:
    """A value that is known; 0 where it is not."""
    found = r.scalar(value)
    return found if isinstance(found, int) else 0
