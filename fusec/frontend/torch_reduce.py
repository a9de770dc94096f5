# SPDX-License-Identifier: Apache-2.0
"""ATen's reductions, searches and running sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import nan, prod

import torch

from fusec.frontend.torch_emit import Declined, Emitter, axes_of, axis_of, extents, ir_dtype
from fusec.ir.attributes import (
    ArgReduceAttributes,
    IotaAttributes,
    ReduceAttributes,
    Scalar,
    ScanAttributes,
    SliceAttributes,
    VarAttributes,
)
from fusec.ir.index import add
from fusec.ir.indexing import most
from fusec.ir.nodes import Value
from fusec.ir.types import bool_, f32, f64, i32, i64

Dims = int | Sequence[int] | None
Lowering = Callable[..., Value | list[Value]]


def _sum(e: Emitter, x: Value, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Value:
    axes = axes_of(x.type.rank, dim)
    return e.reduce("reduce_sum", e.cast(x, e.out.dtype), axes, keepdim)


def _nansum(
    e: Emitter, x: Value, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Value:
    if x.type.dtype.kind == "float":
        x = e.emit("select", e.emit("isnan", x), e.constant(0, x.type.dtype), x)
    return _sum(e, x, dim, keepdim)


def _prod(e: Emitter, x: Value, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Value:
    axes = axes_of(x.type.rank, dim)
    return e.reduce("reduce_prod", e.cast(x, e.out.dtype), axes, keepdim)


def _mean(e: Emitter, x: Value, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Value:
    _require_float(e)
    return _statistic(e, "mean", e.cast(x, e.out.dtype), axes_of(x.type.rank, dim), keepdim)


def _statistic(e: Emitter, op: str, x: Value, axes: tuple[int, ...], keep: bool, correction: Scalar = 0) -> Value:
    if op == "mean":
        result = e.emit("mean", x, attributes=ReduceAttributes(axes))
    else:
        result = e.emit("var", x, attributes=VarAttributes(axes, float(correction.real)))
    return e.keep(result, x, axes) if keep else result


def _require_float(e: Emitter) -> None:
    if not e.out.dtype.is_float:
        raise Declined(f"of {e.out.dtype}")


def _correction(unbiased: bool | None, correction: Scalar | None) -> Scalar:
    if correction is not None:
        return correction
    return 0 if unbiased is False else 1


def _var(
    e: Emitter,
    x: Value,
    dim: Dims | bool = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: Scalar | None = None,
) -> Value:
    return _as_given(e, _spread(e, x, dim, unbiased, keepdim, correction), x)


def _as_given(e: Emitter, value: Value, x: Value) -> Value:
    """A statistic in the dtype of ``x``."""
    dtype = x.type.dtype
    return e.rounded(e.cast(value, f32), dtype) if dtype.bits <= 16 else e.cast(value, dtype)


def _exact(e: Emitter, x: Value) -> Value:
    """A value as its deviations are added up: in f64 on a CPU, as PyTorch does, so that no square leaves the range."""
    _require_float(e)
    if e.is_on_cpu(x.type):
        return e.cast(x, f64)
    return e.cast(x, f32) if x.type.dtype.bits <= 16 else x


def _spread(
    e: Emitter, x: Value, dim: Dims | bool, unbiased: bool | None, keepdim: bool, correction: Scalar | None
) -> Value:
    """The variance, in the dtype in which deviations are added up."""
    dim, unbiased = (None, dim) if isinstance(dim, bool) else (dim, unbiased)
    axes, wide = axes_of(x.type.rank, dim), _exact(e, x)
    if _may_overflow(e, x, axes):
        wide = e.emit("sub", wide, _picked(e, x, axes, 0))
    return _statistic(e, "var", wide, axes, keepdim, _correction(unbiased, correction))


def _may_overflow(e: Emitter, x: Value, axes: tuple[int, ...]) -> bool:
    """Whether a sum of a row of ``x`` may be infinite where PyTorch's running mean is finite: there is nothing wider.

    The variance is then that of differences from a row's first element, whose sum is finite where the variance is.
    """
    return x.type.dtype is f64 and e.is_on_cpu(x.type) and bool(axes) and 0 not in x.type.shape


def _picked(e: Emitter, x: Value, axes: Sequence[int], at: int) -> Value:
    """The first (0) or last (-1) element of each row; the axes stay with extent 1."""
    shape = x.type.shape
    starts = {a: 0 if at == 0 else add(shape[a], -1) for a in axes}
    return e.emit("slice", x, attributes=SliceAttributes.of_axes(shape, {a: (i, add(i, 1)) for a, i in starts.items()}))


def _std(
    e: Emitter,
    x: Value,
    dim: Dims | bool = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: Scalar | None = None,
) -> Value:
    variance = _spread(e, x, dim, unbiased, keepdim, correction)
    return _as_given(e, e.emit("sqrt", variance), x)


def _with_mean(spread: Callable[..., Value]) -> Lowering:
    """var_mean and std_mean."""

    def lower(
        e: Emitter,
        x: Value,
        dim: Dims | bool = None,
        unbiased: bool | None = None,
        keepdim: bool = False,
        *,
        correction: Scalar | None = None,
    ) -> list[Value]:
        found = spread(e, x, dim, unbiased, keepdim, correction=correction)
        axes = axes_of(x.type.rank, None if isinstance(dim, bool) else dim)
        return [found, _as_given(e, _mean_beside_variance(e, x, axes, keepdim), x)]

    return lower


def _mean_beside_variance(e: Emitter, x: Value, axes: tuple[int, ...], keep: bool) -> Value:
    """The mean as PyTorch updates it element by element: what follows an infinity makes it NaN.

    ``m + (x - m) / n`` (Welford, 1962) is infinite where the last element alone is. A GPU's threads put theirs together
    in an order of their own; there a mean of several elements that is not finite is NaN.
    """
    scale = 1.0
    if _may_overflow(e, x, axes):  # by a power of two that the number of elements stays below
        scale = 2.0 ** prod(most(x.type.shape[a]) for a in axes).bit_length()
    x = _exact(e, x)
    mean = _statistic(e, "mean", x if scale == 1.0 else e.emit("mul", x, e.constant(1 / scale, f64)), axes, keep)
    if scale != 1.0:
        mean = e.emit("mul", mean, e.constant(scale, f64))
    if not axes or 0 in x.type.shape:
        return mean
    if not e.is_on_cpu(x.type):
        several = any(x.type.shape[a] != 1 for a in axes)
        return e.emit("select", e.emit("isfinite", mean), mean, e.constant(nan, mean.type.dtype)) if several else mean
    last = e.reduce("reduce_sum", _picked(e, x, axes, -1), axes, keep)
    count = e.reduce("reduce_sum", _is_beyond(e, x), axes, keep)
    broken = e.emit("gt", count, _is_beyond(e, last))
    return e.emit("select", broken, e.constant(nan, x.type.dtype), mean)


def _is_beyond(e: Emitter, x: Value) -> Value:
    """1 where a number is infinite or NaN, else 0."""
    dtype = x.type.dtype
    return e.emit("select", e.emit("isfinite", x), e.constant(0.0, dtype), e.constant(1.0, dtype))


def _along(op: str) -> Lowering:
    """amax and amin."""

    def lower(e: Emitter, x: Value, dim: Dims = (), keepdim: bool = False) -> Value:
        return e.reduce(op, x, axes_of(x.type.rank, dim), keepdim)

    return lower


def _aminmax(e: Emitter, x: Value, *, dim: int | None = None, keepdim: bool = False) -> list[Value]:
    axes = axes_of(x.type.rank, dim)
    return [e.reduce(op, x, axes, keepdim) for op in ("reduce_min", "reduce_max")]


def _extreme(reduce: str, search: str, elementwise: str) -> Lowering:
    """max and min: of everything, along a dimension with indices, or of two tensors."""

    def lower(e: Emitter, x: Value, dim: int | Value | None = None, keepdim: bool = False) -> Value | list[Value]:
        if isinstance(dim, Value):
            return e.emit(elementwise, e.cast(x, e.out.dtype), e.cast(dim, e.out.dtype))
        if dim is None:
            return e.reduce(reduce, x, axes_of(x.type.rank, None))
        if x.type.rank == 0:
            return [e.emit("copy", x), e.constant(0, e.results[1].dtype)]
        return [e.reduce(reduce, x, axes_of(x.type.rank, dim), keepdim), _search(e, search, x, dim, keepdim)]

    return lower


def _search(e: Emitter, op: str, x: Value, dim: int | None, keepdim: bool) -> Value:
    if x.type.rank == 0:
        return e.constant(0, e.results[-1].dtype)
    flat = e.reshape(x, (x.type.size,)) if dim is None else x
    axis = 0 if dim is None else axis_of(x.type.rank, dim)
    found = e.emit(op, flat, attributes=ArgReduceAttributes(axis))
    if not keepdim:
        return found
    return e.keep(found, x, range(x.type.rank) if dim is None else (axis,))


def _argument(op: str) -> Lowering:
    def lower(e: Emitter, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
        return _search(e, op, x, dim, keepdim)

    return lower


def _truth(op: str) -> Lowering:
    def lower(e: Emitter, x: Value, dim: Dims = None, keepdim: bool = False) -> Value:
        nothing = dim is not None and not isinstance(dim, int) and not dim  # no dimensions, unlike other reductions
        axes = () if nothing else axes_of(x.type.rank, dim)
        truth = e.cast(x, bool_)
        return e.cast(e.reduce(op, truth, axes, keepdim) if axes else truth, e.out.dtype)

    return lower


def _scan(op: str) -> Lowering:
    def lower(e: Emitter, x: Value, dim: int, *, dtype: torch.dtype | None = None) -> Value:
        x = e.cast(x, ir_dtype(dtype) if dtype is not None else e.out.dtype)
        if x.type.rank == 0:
            return e.emit("copy", x)
        return e.emit(op, x, attributes=ScanAttributes(axis_of(x.type.rank, dim)))

    return lower


def _extreme_scan(op: str) -> Lowering:
    """cummax and cummin: values, and where the last of those that are equal to it so far, or the last NaN, was."""

    def lower(e: Emitter, x: Value, dim: int) -> list[Value]:
        if x.type.rank == 0:
            return [e.emit("copy", x), e.constant(0, i64)]
        if x.type.dtype.kind not in ("float", "int", "uint"):
            raise Declined(f"of {x.type.dtype}")
        along = ScanAttributes(axis_of(x.type.rank, dim))
        values = e.emit(op, x, attributes=along)
        found = e.emit("eq", x, values)
        if x.type.dtype.is_float:
            found = e.emit("logical_or", found, e.emit("isnan", x))
        shape = tuple(n if a == along.axis else 1 for a, n in enumerate(x.type.shape))
        dtype = i32 if most(x.type.shape[along.axis]) < 2**31 else i64
        places = e.emit("iota", attributes=IotaAttributes(shape, along.axis, dtype, x.type.device))
        last = e.emit("cummax", e.emit("select", found, places, e.constant(0, dtype)), attributes=along)
        return [values, e.cast(last, i64)]

    return lower


def _recurrence(e: Emitter, x: Value, factor: Value) -> Value:
    """``y[0] = x[0], y[t] = factor[t] * y[t - 1] + x[t]`` along the first axis: from a zero that adds nothing on."""
    along = ScanAttributes(0)
    shape = (x.type.shape[0], *(1 for _ in x.type.shape[1:]))
    first = e.emit("eq", e.emit("iota", attributes=IotaAttributes(shape, 0, i64, x.type.device)), e.constant(0, i64))
    factor = e.emit("select", first, e.constant(0, x.type.dtype), factor)
    start = e.constant(-0.0 if x.type.dtype.is_float else 0, x.type.dtype)
    return e.emit("recurrence", x, factor, e.broadcast(start, (1, *x.type.shape[1:])), attributes=along)


def _logcumsumexp(e: Emitter, x: Value, dim: int) -> Value:
    x = e.cast(x, e.out.dtype)
    _require_float(e)
    if x.type.rank == 0:
        return e.emit("copy", x)
    return e.emit("logcumsumexp", x, attributes=ScanAttributes(axis_of(x.type.rank, dim)))


def _logsumexp(e: Emitter, x: Value, dim: Dims, keepdim: bool = False) -> Value:
    """``max + log(sum(exp(x - max)))``, or the max where it is infinite.

    Maximum and sum are those of a softmax beside it, whose kernel (an attention's) then gives both.
    """
    if not isinstance(dim, int) and not dim:
        raise Declined("over no dimensions, which the library refuses", final=True)
    x = e.cast(x, e.out.dtype)
    axes = axes_of(x.type.rank, dim)
    _require_float(e)
    if x.type.rank == 0 or 0 in extents(x):
        raise Declined("of a 0-d or an empty tensor")
    wide = e.cast(x, f32) if x.type.dtype.bits <= 16 else x
    top = e.reduce("reduce_max", wide, axes, keep=True)
    total = e.reduce("reduce_sum", e.emit("exp", e.emit("sub", wide, top)), axes, keep=True)
    finite = e.emit("add", e.emit("log", total), top)
    result = e.rounded(e.emit("select", e.emit("isinf", top), top, finite), x.type.dtype)
    return e.reshape(result, e.out.shape)


def _vector_norm(
    e: Emitter,
    x: Value,
    ord: Scalar = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Value:
    if x.type.dtype.kind != "float" or dtype is not None:
        raise Declined("of another dtype than the operand's")
    axes = axes_of(x.type.rank, dim)
    wide = e.cast(x, f32) if x.type.dtype.bits <= 16 else x
    return e.rounded(_norm(e, wide, float(ord.real), axes, keepdim), x.type.dtype)


def _norm(e: Emitter, x: Value, order: float, axes: tuple[int, ...], keepdim: bool) -> Value:
    """``sum(|x| ** order) ** (1 / order)``, with the limits for an order of 0 (how many are not 0) and ±infinity."""
    dtype = x.type.dtype
    match order:
        case 2:
            return e.emit("sqrt", e.reduce("reduce_sum", e.emit("mul", x, x), axes, keepdim))
        case 1:
            return e.reduce("reduce_sum", e.emit("abs", x), axes, keepdim)
        case 0:
            return e.reduce("reduce_sum", e.cast(e.truth(x), dtype), axes, keepdim)
    if abs(order) == float("inf"):
        return e.reduce("reduce_max" if order > 0 else "reduce_min", e.emit("abs", x), axes, keepdim)
    powers = e.emit("pow", e.emit("abs", x), e.constant(order, dtype))
    total = e.reduce("reduce_sum", powers, axes, keepdim)
    return e.emit("pow", total, e.constant(1 / order, dtype))


def _distances(e: Emitter, x1: Value, x2: Value, p: float, compute_mode: int | None) -> Value:
    """cdist: the norm of each row's difference from each of the other's rows."""
    if 0 in (*e.out.static_shape, *extents(x1)):
        return e.broadcast(e.constant(0, e.out.dtype), e.out.shape)
    *batch, rows, width = extents(x1)
    *other, columns, _ = extents(x2)
    left, right = e.reshape(x1, (*batch, rows, 1, width)), e.reshape(x2, (*other, 1, columns, width))
    apart = e.emit("sub", left, right)
    if p == 0:  # unlike a norm of order 0 it keeps NaN
        one = e.constant(1, apart.type.dtype)
        apart = e.emit("minimum", e.emit("ceil", e.emit("abs", apart)), one)
        return e.reduce("reduce_sum", apart, (apart.type.rank - 1,))
    return _norm(e, apart, p, (apart.type.rank - 1,), False)


def _count_nonzero(e: Emitter, x: Value, dim: Dims = None) -> Value:
    return e.reduce("reduce_sum", e.cast(e.cast(x, bool_), e.out.dtype), axes_of(x.type.rank, dim))


REDUCTIONS: dict[str, Lowering] = {
    "sum": _sum,
    "nansum": _nansum,
    "prod": _prod,
    "mean": _mean,
    "var": _var,
    "std": _std,
    "var_mean": _with_mean(_var),
    "std_mean": _with_mean(_std),
    "amax": _along("reduce_max"),
    "amin": _along("reduce_min"),
    "aminmax": _aminmax,
    "max": _extreme("reduce_max", "argmax", "maximum"),
    "min": _extreme("reduce_min", "argmin", "minimum"),
    "argmax": _argument("argmax"),
    "argmin": _argument("argmin"),
    "any": _truth("reduce_any"),
    "all": _truth("reduce_all"),
    "cumsum": _scan("cumsum"),
    "cumprod": _scan("cumprod"),
    "cummax": _extreme_scan("cummax"),
    "cummin": _extreme_scan("cummin"),
    "logcumsumexp": _logcumsumexp,
    "recurrence": _recurrence,
    "logsumexp": _logsumexp,
    "linalg_vector_norm": _vector_norm,
    "_cdist_forward": _distances,
    "count_nonzero": _count_nonzero,
}
