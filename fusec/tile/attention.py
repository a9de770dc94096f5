# SPDX-License-Identifier: Apache-2.0
"""What attention kernels have in common: the mean of values, and what tensor cores take of their operands."""

from __future__ import annotations

from fusec.errors import LoweringError
from fusec.ir.types import bool_
from fusec.tile.fetch import Fetch, fetch_of
from fusec.tile.nodes import Iter
from fusec.tile.scalar import Apply, Const, Load, ScalarExpr

_FEWEST_COLUMNS, _MOST_COLUMNS = 16, 256


def mean_of(out: Load, row_sum: Load, *, guarded: bool) -> ScalarExpr:
    """The weighted sum of values over the sum of weights; guarded, over 1 where no key has a weight."""
    none = Apply("eq", (row_sum, Const(0.0, row_sum.dtype)), bool_)
    divisor = Apply("select", (none, Const(1.0, row_sum.dtype), row_sum), row_sum.dtype) if guarded else row_sum
    return Apply("div", (out, divisor), row_sum.dtype)


def columns_of(axis: Iter) -> int:
    """Columns of an operand that there are. LoweringError for a number that tensor cores don't take."""
    n = axis.extent if axis.limit is None else axis.limit
    if not isinstance(n, int) or not _FEWEST_COLUMNS <= n <= _MOST_COLUMNS or n % 16:
        raise LoweringError(f"heads of {n} columns")
    return n


def half(operand: ScalarExpr, columns: Iter, what: str, *, eight: bool = False) -> Load:
    """An operand in memory, of 16 bits (``eight``: or floats of 8) and of columns that tensor cores take. LoweringError
    for any other."""
    if not isinstance(operand, Load):
        raise LoweringError(f"{what} that are computed")
    narrow = eight and operand.dtype.kind == "float8"
    if not narrow and operand.dtype.name not in ("bf16", "f16"):
        raise LoweringError(f"{operand.buffer} holds {operand.dtype}")
    if columns_of(columns) % 32 and narrow:
        raise LoweringError(f"heads of {columns.extent} columns of 8 bits")
    return operand


def fetched(operand: Load, rows: Iter, columns: Iter) -> Fetch:
    """How TMA brings a block of queries, keys or values. LoweringError where none can."""
    fetch = fetch_of(operand, (rows, columns))
    if fetch is None or fetch.transposed:
        raise LoweringError(f"{operand.buffer} can't be fetched by TMA")
    return fetch
