# SPDX-License-Identifier: Apache-2.0
"""A dot's axes by role, and where its operands are read for them."""

from __future__ import annotations

from dataclasses import dataclass

from fusec.ir.attributes import DotAttributes
from fusec.ir.index import Index, product
from fusec.ir.indexing import delinearize, most
from fusec.ir.nodes import Op
from fusec.ir.types import Dim, DType, f32
from fusec.tile.views import Subscripts


@dataclass(frozen=True)
class Contraction:
    """A dot's axes by role: extents of batch, M, N and K.

    Flattened, they are integers, the largest that they can be; ``extents`` holds them as they are.

    outer_rows, outer_columns: how many of the first axes of rows and of columns are the last ones of ``batch`` instead:
    one operand alone changes along them (:meth:`with_outer`).
    """

    op: Op
    batch: tuple[Dim, ...]
    rows: tuple[Dim, ...]
    columns: tuple[Dim, ...]
    inner: tuple[Dim, ...]
    outer_rows: int = 0
    outer_columns: int = 0

    @property
    def m(self) -> int:
        return most(product(self.rows))

    @property
    def n(self) -> int:
        return most(product(self.columns))

    @property
    def k(self) -> int:
        return most(product(self.inner))

    @property
    def batches(self) -> int:
        return most(product(self.batch))

    @property
    def extents(self) -> Extents:
        return Extents(*map(product, (self.batch, self.rows, self.columns, self.inner)))

    def with_outer(self, rows: int, columns: int) -> Contraction:
        """The same with so many of the first axes of rows and of columns in the batch."""
        batch = (*self.batch, *self.rows[:rows], *self.columns[:columns])
        return Contraction(self.op, batch, self.rows[rows:], self.columns[columns:], self.inner, rows, columns)

    def operand_at(self, op: Op, side: int, b: Index, i: Index, j: Index, k: Index) -> Subscripts:
        """The index of an operand, of this dot or of one with these extents, at flat positions along each role."""
        batch, *outer = self._batch_at(b)
        free = (*outer[side], *(delinearize(i, self.rows) if side == 0 else delinearize(j, self.columns)))
        return operand_index(op, side, batch, free, delinearize(k, self.inner))

    def result_at(self, b: Index, i: Index, j: Index) -> tuple[Index, ...]:
        """The index of the result."""
        batch, rows, columns = self._batch_at(b)
        return (*batch, *rows, *delinearize(i, self.rows), *columns, *delinearize(j, self.columns))

    def _batch_at(self, b: Index) -> tuple[tuple[Index, ...], tuple[Index, ...], tuple[Index, ...]]:
        """The index along the batch that both operands have, along the outer rows and along the outer columns."""
        at = delinearize(b, self.batch)
        columns = len(at) - self.outer_columns
        rows = columns - self.outer_rows
        return at[:rows], at[rows:columns], at[columns:]


@dataclass(frozen=True)
class Extents:
    """The extents of a matmul's loops."""

    batches: Index
    m: Index
    n: Index
    k: Index


def contraction(op: Op) -> Contraction:
    """The extents of a dot op."""
    attributes = op.expect(DotAttributes)
    left, right = (v.type.shape for v in op.operands)
    return Contraction(
        op,
        tuple(left[a] for a in attributes.lhs_batch),
        tuple(n for a, n in enumerate(left) if a not in attributes.lhs_batch + attributes.lhs_contract),
        tuple(n for a, n in enumerate(right) if a not in attributes.rhs_batch + attributes.rhs_contract),
        tuple(left[a] for a in attributes.lhs_contract),
    )


def operand_index(op: Op, side: int, batch: Subscripts, free: Subscripts, inner: Subscripts) -> Subscripts:
    """The index of a dot's operand from the indices of its axes by role."""
    attributes = op.expect(DotAttributes)
    batch_axes = (attributes.lhs_batch, attributes.rhs_batch)[side]
    inner_axes = (attributes.lhs_contract, attributes.rhs_contract)[side]
    free_left = iter(free)
    result: list[object] = []
    for axis in range(op.operands[side].type.rank):
        if axis in batch_axes:
            result.append(batch[batch_axes.index(axis)])
        elif axis in inner_axes:
            result.append(inner[inner_axes.index(axis)])
        else:
            result.append(next(free_left))
    return tuple(result)  # type: ignore[arg-type]


def accumulator_dtype(op: Op) -> DType:
    """Half types and floats of 8 bits are multiplied and added in f32, integers in the result's type."""
    dtype = op.operands[0].type.dtype
    if dtype.kind == "float8":
        return f32
    if not dtype.is_float:
        return op.result.type.dtype
    return f32 if dtype.bits < 32 else dtype


def allows_tf32(op: Op) -> bool:
    """Whether a dot's operands may be rounded to TF32."""
    return op.expect(DotAttributes).tf32
