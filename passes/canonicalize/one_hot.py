# SPDX-License-Identifier: Apache-2.0
"""Sums along rows that are 0 but at one position: what stands there is the sum.

A loss of few classes writes its gradient as a row of zeros with one number in it, and the softmax's gradient needs the
sum of that row. As a sum, each row is walked twice.
"""

from __future__ import annotations

from fusec.ir.attributes import IotaAttributes, ReduceAttributes
from fusec.ir.nodes import Op, Value
from fusec.ir.types import bool_
from fusec.passes.fold import integer_range, known
from fusec.passes.rewrite import Outcome, Rewriter, Rule, rule


@rule("reduce_sum")
def sum_of_one_hot(r: Rewriter) -> Outcome:
    """sum(select(i == t, a, 0) * w) ⇒ select(0 <= t < n, a, 0) * w + 0 * w, where a and w are the same along the row

    The last term is that of the other positions: NaN where w is not finite.
    """
    (x,) = r.operands
    axes = r.op.expect(ReduceAttributes).axes
    if len(axes) != 1:
        return None
    (axis,) = axes
    extent = x.type.shape[axis]
    if not isinstance(extent, int) or extent < 2:
        return None
    row, factor = _scaled(r, x, axis - x.type.rank)
    found = None if row is None else _position(r, row, axis - x.type.rank)
    if row is None or found is None:
        return None
    made = _at(r, row, found, extent)
    if factor is not None:
        rest = r.emit("mul", r.constant(0.0 if row.result.type.dtype.is_float else 0, row.result), factor)
        made = r.emit("add", r.emit("mul", made, factor), rest)
    kept = tuple(1 if a == axis else n for a, n in enumerate(x.type.shape))
    whole = r.broadcast(made, kept) if made.type.shape != kept else made
    return r.cast(r.reshape(whole, r.op.result.type.shape), r.op.result.type.dtype)


def _scaled(r: Rewriter, x: Value, axis: int) -> tuple[Op | None, Value | None]:
    """The select that makes a row, and what the row is multiplied with, the same along it."""
    made = r.producer(x, "select", "mul")
    if made is None or made.name == "select":
        return made, None
    for row, factor in (made.operands, made.operands[::-1]):
        select = r.producer(row, "select")
        if select is not None and _is_invariant(factor, axis) and row.type.dtype == x.type.dtype:
            return select, factor
    return None, None


def _position(r: Rewriter, select: Op, axis: int) -> Value | None:
    """The position at which a row is not 0, of a select whose other values are the same along it."""
    condition, value, other = select.operands
    equal = r.producer(condition, "eq")
    if equal is None or not _is_invariant(value, axis) or known(r, other) != 0:
        return None
    for i, position in (equal.operands, equal.operands[::-1]):
        if _is_place(r, i, axis) and _is_invariant(position, axis):
            return position
    return None


def _at(r: Rewriter, select: Op, position: Value, extent: int) -> Value:
    """The value at a position, or 0 where that is none of the row's."""
    _, value, other = select.operands
    least, most = integer_range(r, position)
    limits = []
    if least is None or least < 0:
        limits.append(r.emit("ge", position, r.constant(0, position)))
    if most is None or most >= extent:
        limits.append(r.emit("lt", position, r.constant(extent, position)))
    if not limits:
        return value
    held = limits[0] if len(limits) == 1 else r.emit("logical_and", *limits)
    assert held.type.dtype is bool_
    return r.emit("select", held, value, r.constant(0.0 if other.type.dtype.is_float else 0, other))


def _is_invariant(value: Value, axis: int) -> bool:
    """Whether a value is the same along an axis, counted from the last one."""
    return value.type.rank < -axis or value.type.shape[axis] == 1


def _is_place(r: Rewriter, value: Value, axis: int) -> bool:
    """Whether a value is the position along an axis, counted from the last one."""
    made = r.producer(value)
    while made is not None and made.name == "broadcast":
        value = made.operands[0]
        made = r.producer(value)
    if made is None or not isinstance(made.attributes, IotaAttributes) or not made.attributes.dtype.is_integer:
        return False
    return made.attributes.axis - value.type.rank == axis


ONE_HOT_RULES: tuple[Rule, ...] = (sum_of_one_hot,)
