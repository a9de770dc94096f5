# SPDX-License-Identifier: Apache-2.0
"""Arrays made from numbers, from lists with traced parts, and by joining arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from fusec.frontend.numpy_emit import ShapeRuleError
from fusec.frontend.numpy_trace import Trace, Traced, axis_of, copy_layout, describe, ir_dtype, laid_out_as, twin
from fusec.frontend.steps import Step
from fusec.ir.attributes import ConcatAttributes, ShapeAttributes

Shape = int | Sequence[int]


def sample(x: Any) -> Any:
    """An empty array of the operand's dtype; a number stands for itself, so that NEP 50 applies."""
    if isinstance(x, Traced):
        return np.empty((0,), x.meta.dtype)
    if isinstance(x, np.ndarray):
        return np.empty((0,), x.dtype)
    return x


def full(trace: Trace, shape: Shape, fill: Any, dtype: Any = None, order: str = "C") -> Any:
    """A new array of one number."""
    extents = tuple(np.broadcast_shapes(shape))
    if any(n < 0 for n in extents):
        raise ShapeRuleError("negative dimensions are not allowed", trace.location())
    if dtype is None:
        dtype = fill.meta.dtype if isinstance(fill, Traced) else np.asarray(fill).dtype
    kind = np.dtype(dtype)
    value = trace.broadcast(trace.operand(fill, ir_dtype(kind)), extents)
    meta = describe(extents[::-1], kind).T if order == "F" else describe(extents, kind)
    return trace.fresh(value, meta)


def full_like(trace: Trace, x: Any, fill: Any, dtype: Any = None, order: str = "K", shape: Any = None) -> Any:
    """A new array of one number, laid out like ``x``."""
    meta = x.meta if isinstance(x, Traced) else np.asarray(x)
    kind = meta.dtype if dtype is None else np.dtype(dtype)
    if shape is not None:
        return full(trace, shape, fill, kind, "C" if order in "KA" else order)
    value = trace.broadcast(trace.operand(fill, ir_dtype(kind)), meta.shape)
    return trace.fresh(value, laid_out(meta, kind, order))


def laid_out(meta: np.ndarray[Any, Any], dtype: np.dtype[Any], order: str | None) -> np.ndarray[Any, Any]:
    """The layout of a copy made with NumPy's ``order``."""
    if order == "F" or (order == "A" and meta.flags.f_contiguous and not meta.flags.c_contiguous):
        return describe(meta.shape[::-1], dtype).T
    if order == "K":
        return copy_layout(meta, dtype)
    return describe(meta.shape, dtype)


def copy(trace: Trace, x: Traced, dtype: Any = None, order: str | None = "K") -> Any:
    """A copy that owns its memory, cast if asked."""
    kind = x.meta.dtype if dtype is None else np.dtype(dtype)
    return trace.fresh(trace.cast(x.value, ir_dtype(kind)), laid_out(x.meta, kind, order))


def fits_order(meta: np.ndarray[Any, Any], order: str | None) -> bool:
    """Whether an array lies as NumPy's ``order`` asks for, so that no copy is needed."""
    return not ((order == "C" and not meta.flags.c_contiguous) or (order == "F" and not meta.flags.f_contiguous))


def convert(trace: Trace, x: Any, dtype: Any = None, order: str | None = None, may_copy: bool | None = None) -> Any:
    """``np.asarray(x, dtype, order, copy=may_copy)`` of what :func:`contains_traced` is true for."""
    order = order or "K"
    if order not in ("C", "F", "A", "K"):
        raise trace.unsupported(f"order={order!r} is not compiled")
    is_array = isinstance(x, Traced) and not x.is_scalar
    made = x if is_array else as_array(trace, x, dtype)
    kind = made.meta.dtype if dtype is None else np.dtype(dtype)
    fits = kind == made.meta.dtype and fits_order(made.meta, order)
    if may_copy is False and not (is_array and fits):
        raise ShapeRuleError("Unable to avoid copy while creating an array as requested.", trace.location())
    return made if fits and not (may_copy and is_array) else copy(trace, made, kind, order)


def with_axes(trace: Trace, x: Traced, rank: int, order: str | None) -> Any:
    """The array with axes of one element before its own, whose strides are those that ``np.array(ndmin=)`` gives."""
    meta = x.meta
    ones = rank - meta.ndim
    flags = meta.flags
    backwards = order == "F" or (flags.f_contiguous and not flags.c_contiguous)
    stride = meta.itemsize if backwards or not meta.ndim else meta.shape[0] * meta.strides[0]
    shape = (*(1,) * ones, *meta.shape)
    laid = as_strided(meta, shape, (*(stride,) * ones, *meta.strides))
    if not meta.flags.writeable:
        laid.flags.writeable = False
    return trace.view(x, (Step("reshape", ShapeAttributes(shape)),), laid)


def contains_traced(x: Any) -> bool:
    """True for a traced array, or a list or tuple with one inside."""
    return isinstance(x, Traced) or (isinstance(x, list | tuple) and any(map(contains_traced, x)))


def as_array(trace: Trace, x: Any, dtype: Any = None) -> Any:
    """``np.asarray``: nested lists of traced numbers and arrays are stacked."""
    if isinstance(x, Traced):
        if dtype is not None and np.dtype(dtype) != x.meta.dtype:
            return copy(trace, x, dtype)
        return x if not x.is_scalar else trace.fresh(x.value, x.meta)
    if not contains_traced(x):
        return np.asarray(x, dtype=dtype)
    parts = [as_array(trace, part) for part in x]
    shapes = {p.meta.shape if isinstance(p, Traced) else p.shape for p in parts}
    if len(shapes) > 1:
        message = f"the parts have an inhomogeneous shape: {', '.join(map(str, sorted(shapes)))}"
        raise ShapeRuleError(message, trace.location())
    numbers = [part if not isinstance(part, list | tuple) else made for part, made in zip(x, parts)]
    kind = np.dtype(dtype) if dtype is not None else np.result_type(*(np.asarray(sample(n)).dtype for n in numbers))
    (shape,) = shapes
    values = [trace.reshape(trace.operand(p, ir_dtype(kind)), (1, *shape)) for p in parts]
    joined = values[0] if len(values) == 1 else trace.emit("concat", *values, attributes=ConcatAttributes(0))
    return trace.fresh(joined)


def concatenate(
    trace: Trace, arrays: Sequence[Any], axis: int | None = 0, dtype: Any = None, casting: Any = "same_kind"
) -> Any:
    """``np.concatenate``; of the flattened arrays where ``axis`` is None."""
    if isinstance(arrays, Traced):
        arrays = list(arrays)
    parts = [p if isinstance(p, Traced) else as_array(trace, p) for p in arrays]
    if not parts:
        raise ShapeRuleError("need at least one array to concatenate", trace.location())
    metas = [p.meta if isinstance(p, Traced) else p for p in parts]
    kind = np.concatenate([np.empty((0,), m.dtype) for m in metas], dtype=dtype, casting=casting).dtype
    values = [trace.operand(p, ir_dtype(kind)) for p in parts]
    if axis is None:
        values = [trace.reshape(v, (m.size,)) for v, m in zip(values, metas)]
        axis, metas = 0, []
    rank = values[0].type.rank
    if rank == 0:
        raise ShapeRuleError("zero-dimensional arrays cannot be concatenated", trace.location())
    along = axis_of(axis, rank)
    shapes = [v.type.static_shape for v in values]
    if any(len(s) != rank or s[:along] + s[along + 1 :] != shapes[0][:along] + shapes[0][along + 1 :] for s in shapes):
        message = (
            f"all the input array dimensions except for the concatenation axis must match exactly, got shapes {shapes}"
        )
        raise ShapeRuleError(message, trace.location())
    value = trace.emit("concat", *values, attributes=ConcatAttributes(along)) if len(values) > 1 else values[0]
    shape = value.type.static_shape
    if not metas:
        return trace.fresh(value)
    return trace.fresh(value, laid_out_as(np.concatenate([twin(m) for m in metas], axis=along), shape, kind))


def broadcast_to(trace: Trace, x: Any, shape: Shape, writeable: bool = False) -> Any:
    """A view of a larger shape, read-only unless asked for otherwise."""
    array = x if isinstance(x, Traced) else as_array(trace, x)
    if not isinstance(array, Traced):
        shown = np.broadcast_to(array, shape)
        return as_strided(array, shown.shape, shown.strides) if writeable and array.flags.writeable else shown
    extents = (shape,) if isinstance(shape, int) else tuple(int(n) for n in shape)
    try:
        meta = np.broadcast_to(array.meta, extents)
    except ValueError as error:
        raise ShapeRuleError(str(error), trace.location()) from None
    if writeable and array.meta.flags.writeable:
        meta = as_strided(array.meta, meta.shape, meta.strides)
    step = () if extents == array.meta.shape else (Step("broadcast", ShapeAttributes(extents)),)
    return trace.view(array, step, meta)
