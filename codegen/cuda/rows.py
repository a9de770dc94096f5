# SPDX-License-Identifier: Apache-2.0
"""How a matmul's operands lie in memory, for kernels that copy rows of them into shared memory (``rows.cuh``)."""

from __future__ import annotations

from dataclasses import dataclass

from fusec.codegen.cuda.layout import is_vector, vector_step
from fusec.errors import LoweringError
from fusec.ir.indexing import coefficient
from fusec.tile.nodes import Iter
from fusec.tile.scalar import Load, ScalarExpr, loads, offset_of

_COPIES = (16, 8, 4)
"""Bytes that one copy moves."""
_MOST_STRIDE = 2**31 - 1


@dataclass(frozen=True)
class InRows:
    """An operand ``value`` over a free axis (M or N) and K.

    ``transposed``: rows of memory run along the free axis, not along K. stride: elements from row to row, -1 where that
    varies. vector: neighbours in a row that are copied at once; 0 where elements are computed or read one by one.
    """

    value: ScalarExpr
    free: Iter
    inner: Iter
    transposed: bool
    stride: int
    vector: int

    @property
    def rows(self) -> int:
        return self.inner.extent if self.transposed else self.free.extent

    @property
    def columns(self) -> int:
        return self.free.extent if self.transposed else self.inner.extent

    def text(self) -> str:
        """The type that says so in C++."""
        return f"InRows<{self.rows}, {self.columns}, {self.stride}, {self.vector}>"


def in_rows(value: ScalarExpr, free: Iter, inner: Iter, *, vectors: bool) -> InRows:
    """How ``value`` is brought. Without ``vectors`` addresses are multiples of their element alone."""
    flat = offset_of(value.buffer, value.index) if isinstance(value, Load) else None
    if not isinstance(value, Load) or flat is None:
        return InRows(value, free, inner, _runs_along(value, free) > _runs_along(value, inner), -1, 0)
    step = vector_step(value, free, 1)
    transposed = step is not None and step.along == 1 and not is_vector(value, inner, 1)
    row, column = (inner, free) if transposed else (free, inner)
    stride = coefficient(flat, row.var)
    even = stride is not None and 0 <= stride <= _MOST_STRIDE
    return InRows(value, free, inner, transposed, int(stride or 0) if even else -1, _vector(value, column, vectors))


def _vector(value: Load, column: Iter, vectors: bool) -> int:
    item = value.dtype.itemsize
    for size in _COPIES if vectors else (item,) if item in _COPIES else ():
        if size % item == 0 and is_vector(value, column, size // item):
            return size // item
    return 0


def _runs_along(value: ScalarExpr, axis: Iter) -> int:
    """Loads whose neighbours along the axis are neighbours in memory."""
    steps = [vector_step(x, axis, 1) for x in loads(value) if x.buffer.space == "parameter"]
    return sum(s is not None and s.along == 1 for s in steps)


def alike(operands: list[InRows]) -> InRows:
    """What holds for all operands, where one copy loop brings them. LoweringError where some are transposed, some
    not."""
    first = operands[0]
    if any((x.transposed, x.rows, x.columns) != (first.transposed, first.rows, first.columns) for x in operands):
        raise LoweringError("operands of one matmul transposed in different ways")
    stride = first.stride if all(x.stride == first.stride for x in operands) else -1
    return InRows(first.value, first.free, first.inner, first.transposed, stride, min(x.vector for x in operands))
