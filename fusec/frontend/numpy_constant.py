# SPDX-License-Identifier: Apache-2.0
"""Constant arrays that have a simple form: one number, a ramp, a triangle or a diagonal. They need no memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from fusec.frontend.numpy_emit import Emitter
from fusec.ir.nodes import Value
from fusec.ir.types import dtype_of, i64

Array = np.ndarray[Any, Any]


def recognise(trace: Emitter, array: Array) -> Value | None:
    """The constant as iota and elementwise ops whose result is bit for bit the array, or None."""
    dtype = dtype_of(array.dtype)
    if dtype.kind == "complex" or array.size == 0:
        return None
    first = array.reshape(-1)[0]
    if _same(array, first):
        return trace.broadcast(trace.constant(first, dtype), array.shape)
    return _ramp(trace, array) or _triangle(trace, array)


def _same(a: Array, b: Any) -> bool:
    """Equal bit for bit; NaN equals NaN, and 0.0 is not -0.0."""
    equal = np.array_equal(a, np.broadcast_to(b, a.shape), equal_nan=a.dtype.kind == "f")
    return bool(equal) and (a.dtype.kind != "f" or bool(np.all(np.signbit(a) == np.signbit(b))))


def _ramp(trace: Emitter, array: Array) -> Value | None:
    """``start + step*i`` along one axis, the same along the others."""
    if array.dtype.kind not in "iuf":
        return None
    axes = [axis for axis in range(array.ndim) if array.shape[axis] > 1 and not _same(array, array.take([0], axis))]
    if len(axes) != 1:
        return None
    axis = axes[0]
    line = np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)[:, 0]
    start, step = line[0].item(), (line[1] - line[0]).item() if array.dtype.kind != "u" else int(line[1]) - int(line[0])
    if not all(float(n).is_integer() and abs(n) < 2**31 for n in (start, step)):
        return None
    counted = np.arange(len(line)) * int(step) + int(start)
    if not _same(line, counted.astype(array.dtype)):
        return None
    value = trace.iota(len(line), i64, array.ndim, axis)
    value = trace.binary("mul", value, int(step)) if step != 1 else value
    value = trace.binary("add", value, int(start)) if start != 0 else value
    return trace.broadcast(trace.cast(value, dtype_of(array.dtype)), array.shape)


def _triangle(trace: Emitter, array: Array) -> Value | None:
    """Two numbers split along a diagonal of the last two axes, or one on the diagonal and one off it."""
    if array.ndim < 2 or array.shape[-2] * array.shape[-1] < 2:
        return None
    matrix = array.reshape(-1, *array.shape[-2:])[0]
    if not _same(array, matrix):
        return None
    rows, columns = np.arange(matrix.shape[0])[:, None], np.arange(matrix.shape[1])[None, :]
    lower_left, upper_right = matrix[-1, 0], matrix[0, -1]
    row_in_last = np.flatnonzero(_differs(matrix[:, 0], upper_right))
    if len(row_in_last) == 0:
        row_in_last = np.flatnonzero(_differs(matrix[0], upper_right))[::-1]
        diagonal = int(row_in_last[0]) if len(row_in_last) else 0
    else:
        diagonal = -int(row_in_last[0])
        first_row = np.flatnonzero(_differs(matrix[0], upper_right))
        diagonal = int(first_row[-1]) if len(first_row) else diagonal
    if _same(matrix, np.where(columns - rows <= diagonal, lower_left, upper_right).astype(array.dtype)):
        return _split(trace, array, "le", diagonal, lower_left, upper_right)
    on = matrix[max(-diagonal, 0), max(diagonal, 0)]
    if _same(matrix, np.where(columns - rows == diagonal, on, upper_right).astype(array.dtype)):
        return _split(trace, array, "eq", diagonal, on, upper_right)
    return None


def _differs(a: Array, b: Any) -> Array:
    return np.asarray(~((a == b) | ((a != a) & (b != b))))


def _split(trace: Emitter, array: Array, test: str, diagonal: int, inside: Any, outside: Any) -> Value:
    """``select(j - i <test> diagonal, inside, outside)``."""
    dtype = dtype_of(array.dtype)
    rows = trace.iota(array.shape[-2], i64, 2, 0)
    columns = trace.iota(array.shape[-1], i64, 2, 1)
    bound = trace.binary("add", rows, diagonal) if diagonal else rows
    condition = trace.emit(test, columns, bound)
    if dtype.kind == "bool":
        value = condition if bool(inside) else trace.emit("logical_not", condition)
    else:
        value = trace.emit("select", condition, trace.constant(inside, dtype), trace.constant(outside, dtype))
    return trace.broadcast(value, array.shape)
