# SPDX-License-Identifier: Apache-2.0
"""Reductions, means, searches for an extreme and running sums, with NumPy's result dtypes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fusec.frontend.numpy_emit import ShapeRuleError
from fusec.frontend.numpy_trace import Meta, Trace, Traced, axis_of, describe, ir_dtype, laid_out_as, twin
from fusec.frontend.numpy_trace import axes_of as given_axes
from fusec.frontend.numpy_ufunc import apply
from fusec.ir.attributes import ArgReduceAttributes, ReduceAttributes, ScanAttributes, VarAttributes
from fusec.ir.nodes import Value
from fusec.ir.types import bool_, f16, f32, i64

Axis = None | int | Sequence[int]
NO_VALUE: Any = np._NoValue

_REDUCTIONS = {
    "add": "reduce_sum",
    "multiply": "reduce_prod",
    "maximum": "reduce_max",
    "minimum": "reduce_min",
    "logical_or": "reduce_any",
    "logical_and": "reduce_all",
}
_ON_BOOL = {"maximum": "reduce_any", "minimum": "reduce_all", "bitwise_or": "reduce_any", "bitwise_and": "reduce_all"}
_SCANS = {
    "add": "cumsum",
    "multiply": "cumprod",
    "maximum": "cummax",
    "minimum": "cummin",
    "logaddexp": "logcumsumexp",
}


def axes_of(axis: Axis, rank: int) -> tuple[int, ...]:
    """The axes, ascending and not negative; AxisError as NumPy raises it."""
    if axis is None:
        return tuple(range(rank))
    return tuple(sorted(given_axes(axis, rank)))


def _given(x: Any) -> bool:
    return x is not None and x is not NO_VALUE


Layout = Callable[[Meta, tuple[int, ...], bool], Any]
"""A NumPy reduction of an array along axes, keeping them or not: it shows the order of the result's axes."""


def _of_ufunc(ufunc: np.ufunc) -> Layout:
    return lambda x, axes, keep: ufunc.reduce(x, axis=axes, keepdims=keep)


def _finish(trace: Trace, x: Traced, value: Value, axes: tuple[int, ...], keepdims: Any, layout: Layout) -> Any:
    keep = bool(keepdims) and keepdims is not NO_VALUE
    extents = [1 if i in axes else n for i, n in enumerate(x.meta.shape) if keep or i not in axes]
    value = trace.reshape(value, extents)
    dtype = value.type.dtype.numpy
    if 0 in x.meta.shape or x.meta.flags.c_contiguous:
        meta = describe(extents, dtype)
    else:
        meta = laid_out_as(np.asarray(layout(twin(x.meta), axes, keep)), extents, dtype)
    return trace.fresh(value, meta, scalar=not extents)


def reduce(
    trace: Trace,
    ufunc: np.ufunc,
    x: Traced,
    axis: Axis = 0,
    dtype: Any = None,
    keepdims: Any = False,
    initial: Any = NO_VALUE,
    where: Any = True,
) -> Any:
    """``ufunc.reduce``. The result's dtype is what NumPy's reduction of one element has."""
    name = ufunc.__name__
    axes = axes_of(axis, x.meta.ndim)
    sample = ufunc.reduce(np.ones((1,), x.meta.dtype), dtype=dtype)
    result = ir_dtype(np.asarray(sample).dtype)
    value = x.value
    if name in ("logical_or", "logical_and"):
        value, op = trace.cast(value, bool_), _REDUCTIONS[name]
    else:
        value = trace.cast(value, result)
        op = _ON_BOOL.get(name, "") if result.kind == "bool" else _REDUCTIONS.get(name, "")
    if not op or (result.kind == "complex" and name in _ON_BOOL):
        raise trace.unsupported(f"np.{name}.reduce of {x.meta.dtype} is not compiled")
    if where is not True and where is not NO_VALUE:
        value = _masked(trace, name, value, where, initial, x)
    count = int(np.prod([x.meta.shape[a] for a in axes], dtype=np.int64))
    if count == 0 and ufunc.identity is None:
        if not _given(initial):
            message = f"zero-size array to reduction operation {name} which has no identity"
            raise ShapeRuleError(message, trace.location())
        shape = [n for i, n in enumerate(x.meta.shape) if i not in axes]
        value = trace.broadcast(trace.constant(initial, result), shape)
        return _finish(trace, x, value, axes, keepdims, _of_ufunc(ufunc))
    value = trace.emit(op, value, attributes=ReduceAttributes(axes)) if axes else value
    if _given(initial):
        value = trace.asked(apply(trace, name, [value, trace.operand(initial, value.type.dtype)]), dtype)
    return _finish(trace, x, trace.cast(value, result), axes, keepdims, _of_ufunc(ufunc))


def _masked(trace: Trace, name: str, value: Value, where: Any, initial: Any, x: Traced) -> Value:
    neutral = {"add": 0, "multiply": 1, "logical_or": False, "logical_and": True}.get(name)
    if neutral is None:
        if not _given(initial):
            message = (
                f"reduction operation '{name}' does not have an identity, "
                "so to use a where mask one has to specify 'initial'"
            )
            raise ShapeRuleError(message, trace.location())
        neutral = initial
    mask = trace.mask(where)
    dtype = value.type.dtype
    if dtype.kind == "bool":
        neutral = bool(neutral)
    shown = trace.emit("select", mask, value, trace.operand(neutral, dtype))
    if shown.type.shape != x.meta.shape:
        raise trace.unsupported("a where mask that is larger than the array is not compiled")
    return shown


def mean(
    trace: Trace, x: Traced, axis: Axis = None, dtype: Any = None, keepdims: Any = False, where: Any = True
) -> Any:
    """``np.mean``: integers average in f64, f16 in f32 rounded once."""
    axes = axes_of(axis, x.meta.ndim)
    result = ir_dtype(np.ones((1,), x.meta.dtype).mean(dtype=dtype).dtype)
    if where is not True and where is not NO_VALUE:
        mask = trace.broadcast(trace.mask(where), x.meta.shape)
        total = trace.emit("select", mask, trace.cast(x.value, result), trace.constant(0, result))
        total = trace.emit("reduce_sum", total, attributes=ReduceAttributes(axes))
        count = trace.emit("reduce_sum", trace.cast(mask, result), attributes=ReduceAttributes(axes))
        found = trace.asked(trace.emit("div", total, count), dtype)
        return _finish(trace, x, found, axes, keepdims, _of_ufunc(np.add))
    if result.kind == "complex":
        raise trace.unsupported("np.mean of complex numbers is not compiled")
    value = trace.cast(x.value, result)
    value = trace.emit("mean", value, attributes=ReduceAttributes(axes)) if axes else value
    return _finish(trace, x, trace.asked(value, dtype), axes, keepdims, _of_ufunc(np.add))


def var(trace: Trace, x: Traced, axis: Axis = None, dtype: Any = None, ddof: float = 0, keepdims: Any = False) -> Any:
    """``np.var``: mean of squared distances to the mean, over ``n - ddof``."""
    axes = axes_of(axis, x.meta.ndim)
    result = ir_dtype(np.ones((2,), x.meta.dtype).var(dtype=dtype).dtype)
    if x.meta.dtype.kind == "c":
        raise trace.unsupported("np.var of complex numbers is not compiled")
    if not axes:
        raise trace.unsupported("np.var over no axes is not compiled")
    value = trace.emit("var", trace.cast(x.value, result), attributes=VarAttributes(axes, float(ddof)))
    return _finish(trace, x, trace.asked(value, dtype), axes, keepdims, _of_ufunc(np.add))


def search(trace: Trace, name: str, x: Traced, axis: int | None = None, keepdims: Any = False) -> Any:
    """``np.argmax``/``np.argmin``: the first index of the extreme."""
    if x.meta.dtype.kind == "c":
        raise trace.unsupported(f"np.{name} of complex numbers is not compiled")
    rank = x.meta.ndim
    axes = axes_of(axis, rank) if axis is None else (axis_of(axis, rank),)
    value = x.value
    if axis is None:
        value, along = trace.reshape(value, (x.meta.size,)), 0
    else:
        along = axes[0]
    if value.type.static_shape[along] == 0:
        raise ShapeRuleError(f"attempt to get {name} of an empty sequence", trace.location())
    value = trace.emit(name, value, attributes=ArgReduceAttributes(along))
    return _finish(trace, x, trace.cast(value, i64), axes, keepdims, _searched(axis))


def _searched(axis: int | None) -> Layout:
    return lambda x, axes, keep: np.argmax(x, axis=axis, keepdims=keep)


def scan(trace: Trace, ufunc: np.ufunc, x: Traced, axis: int | None = None, dtype: Any = None) -> Any:
    """``np.cumsum``, ``np.cumprod`` and ufuncs' ``accumulate``; over the flattened array where no axis is given."""
    if ufunc.__name__ not in _SCANS or (x.meta.dtype.kind == "c" and ufunc not in (np.add, np.multiply)):
        raise trace.unsupported(f"np.{ufunc.__name__}.accumulate is not compiled")
    sample = ufunc.reduce(np.ones((1,), x.meta.dtype), dtype=dtype)
    value = trace.cast(x.value, ir_dtype(np.asarray(sample).dtype))
    if axis is None:
        value, axis = trace.reshape(value, (x.meta.size,)), 0
    along = axis_of(axis, value.type.rank)
    asked = value.type.dtype if dtype is not None and value.type.dtype is f16 else None
    value = trace.emit(
        _SCANS[ufunc.__name__],
        value if asked is None else trace.cast(value, f32),
        attributes=ScanAttributes(along, signed_zero=ufunc is np.add and value.type.dtype.kind == "float"),
    )
    value = value if asked is None else trace.cast(value, asked)  # it is rounded, whatever reads it
    if value.type.shape != x.meta.shape:
        return trace.fresh(value)
    sample = ufunc.accumulate(twin(x.meta), axis=along)
    return trace.fresh(value, laid_out_as(sample, x.meta.shape, value.type.dtype.numpy))
