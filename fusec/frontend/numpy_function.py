# SPDX-License-Identifier: Apache-2.0
"""NumPy's functions: those with a form of their own, then NumPy's own Python code traced, then a library call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

import numpy as np

from fusec.errors import CaptureError, DataDependentError, TypeRuleError
from fusec.frontend import numpy_contract as contract
from fusec.frontend import numpy_create as create
from fusec.frontend import numpy_reduce as reductions
from fusec.frontend import numpy_stride as strides
from fusec.frontend.numpy_dispatch import call_ufunc
from fusec.frontend.numpy_extern import extern
from fusec.frontend.numpy_index import store, write
from fusec.frontend.numpy_trace import Trace, Traced, describe, ir_dtype, like_layout
from fusec.frontend.numpy_ufunc import UMATH, broadcast_metas
from fusec.ir.attributes import PadAttributes
from fusec.ir.types import bool_, i64

Function = Callable[..., Any]
NO_VALUE = reductions.NO_VALUE
_LIBRARY = frozenset(
    {
        *(
            "sort",
            "argsort",
            "partition",
            "argpartition",
            "lexsort",
            "searchsorted",
            "digitize",
            "bincount",
            "histogram",
        ),
        *("median", "percentile", "quantile", "nanmedian", "nanpercentile", "nanquantile"),
        *("interp", "convolve", "correlate", "unwrap", "apply_along_axis", "apply_over_axes"),
    }
)
"""Functions that are called whole: their Python code would only be cut into smaller library calls."""
_LINALG = frozenset(
    {
        *("norm", "vector_norm", "matrix_norm", "matrix_power", "matrix_transpose", "multi_dot", "matmul"),
        *("outer", "cross", "diagonal", "trace", "tensordot", "vecdot"),
    }
)
"""The functions of numpy.linalg whose Python code needs no decomposition."""


def call_function(trace: Trace, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A call that arrived through ``__array_function__``."""
    table = _TABLE.get(func)
    if table is not None:
        return table(trace, *args, **kwargs)
    module = getattr(func, "__module__", "") or ""
    name = getattr(func, "__name__", str(func))
    implementation = getattr(func, "__wrapped__", None)
    opened = name not in _LIBRARY and not module.startswith("numpy.fft")
    if isinstance(implementation, FunctionType) and opened and (module != "numpy.linalg" or name in _LINALG):
        fallback = trace.fallback
        trace.fallback = "error"  # a part that is not compiled makes the whole a library call
        try:
            return trace.scope.library_copy(implementation)(*args, **kwargs)
        except (TypeRuleError, np.exceptions.AxisError, ValueError, IndexError):
            raise
        except (CaptureError, TypeError, NotImplementedError, AttributeError) as error:
            if fallback == "error":
                raise trace.unsupported(f"{module}.{name} is not compiled: {error}") from error
        finally:
            trace.fallback = fallback
    return library_call(trace, func, args, kwargs)


def library_call(trace: Trace, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The call as an extern op."""
    module = (getattr(func, "__module__", None) or "numpy").replace("numpy._core", "numpy")
    name = getattr(func, "__name__", str(func))
    package = module if module in ("numpy.linalg", "numpy.fft") else "numpy"
    if package == "numpy" and not hasattr(np, name):
        raise trace.unsupported(f"{module}.{name} is not compiled")
    return extern(trace, f"{package}.{name}", func, args, kwargs)


def _where(trace: Trace, condition: Any, x: Any = None, y: Any = None) -> Any:
    if x is None and y is None:
        advice = "its shape depends on the elements; use np.where(condition, a, b)"
        array = create.as_array(trace, condition)
        return trace.concrete(array, "np.where(condition)", advice).nonzero()
    parts = [create.as_array(trace, p) if isinstance(p, list | tuple) else p for p in (condition, x, y)]
    dtype = np.where(np.zeros((0,), bool), *(create.sample(p) for p in parts[1:])).dtype
    shape, metas = broadcast_metas(trace, "where", parts)
    kind = ir_dtype(dtype)
    values = [trace.operand(parts[0], bool_), *(trace.operand(p, kind) for p in parts[1:])]
    value = trace.broadcast(trace.emit("select", *values), shape)
    return trace.fresh(value, like_layout(shape, dtype, metas, loop=np.where))


def _copyto(trace: Trace, dst: Any, src: Any, casting: Any = "same_kind", where: Any = True) -> None:
    if not isinstance(dst, Traced):
        raise trace.unsupported("np.copyto writes to an array that was not made in the function; make it there")
    try:
        np.copyto(np.empty((0,), dst.meta.dtype), create.sample(src), casting)
    except TypeError as error:
        raise TypeRuleError(str(error), trace.location()) from None
    if where is True:
        write(trace, dst, src)
        return
    kind = ir_dtype(dst.meta.dtype)
    mask = trace.mask(where)
    chosen = trace.emit("select", mask, trace.operand(src, kind), dst.value)
    write(trace, dst, trace.fresh(chosen))


def _like(fill: Any) -> Function:
    def make(
        trace: Trace,
        a: Any,
        dtype: Any = None,
        order: str = "K",
        subok: bool = True,
        shape: Any = None,
        device: Any = None,
    ) -> Any:
        return create.full_like(trace, a, fill, dtype, order, shape)

    return make


def _full_like(
    trace: Trace,
    a: Any,
    fill_value: Any,
    dtype: Any = None,
    order: str = "K",
    subok: bool = True,
    shape: Any = None,
    device: Any = None,
) -> Any:
    return create.full_like(trace, a, fill_value, dtype, order, shape)


def _concatenate(
    trace: Trace, arrays: Any, axis: int | None = 0, out: Any = None, *, dtype: Any = None, casting: Any = "same_kind"
) -> Any:
    return store(trace, create.concatenate(trace, arrays, axis, dtype, casting), out)


def _pad(trace: Trace, array: Any, pad_width: Any, mode: Any = "constant", **kwargs: Any) -> Any:
    fill = kwargs.get("constant_values", 0)
    simple = mode == "constant" and (isinstance(fill, int | float | complex) or np.ndim(fill) == 0)
    if not simple or not isinstance(array, Traced) or isinstance(pad_width, dict):
        return _traced_python(trace, np.pad, (array, pad_width, mode), kwargs)
    widths = np.broadcast_to(np.asarray(pad_width), (array.meta.ndim, 2)).tolist()
    low, high = tuple(int(w[0]) for w in widths), tuple(int(w[1]) for w in widths)
    if any(n < 0 for n in (*low, *high)):
        raise ValueError("index can't contain negative values")
    kind = ir_dtype(array.meta.dtype)
    value = trace.emit("pad", array.value, trace.operand(fill, kind), attributes=PadAttributes(low, high))
    layout = describe(value.type.static_shape[::-1], array.meta.dtype).T if array.meta.flags.fnc else None
    return trace.fresh(value, layout)


def _traced_python(trace: Trace, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return trace.scope.library_copy(func.__wrapped__)(*args, **kwargs)


_FULL = np.zeros((2, 1))
_BROADCAST_GIVES_ITSELF = np.broadcast_arrays(_FULL, np.zeros(1))[0] is _FULL
"""Whether this NumPy gives an array that has the shape itself, among others that have not."""


def _broadcast_to(trace: Trace, array: Any, shape: Any, subok: bool = False) -> Any:
    return create.broadcast_to(trace, array, shape)


def _broadcast_arrays(trace: Trace, *args: Any, subok: bool = False) -> Any:
    arrays = [create.as_array(trace, x) for x in args]
    shape, _ = broadcast_metas(trace, "broadcast_arrays", arrays)
    shapes = [(x.meta if isinstance(x, Traced) else x).shape for x in arrays]
    whole = shapes.count(shape) == len(shapes) or _BROADCAST_GIVES_ITSELF
    return tuple(
        x if whole and own == shape else create.broadcast_to(trace, x, shape, writeable=True)
        for x, own in zip(arrays, shapes, strict=True)
    )


def _result_type(trace: Trace, *args: Any) -> Any:
    return np.result_type(*(create.sample(x) for x in args))


def _can_cast(trace: Trace, from_: Any, to: Any, casting: Any = "safe") -> bool:
    return np.can_cast(from_.meta.dtype if isinstance(from_, Traced) else from_, to, casting)


def _count_nonzero(trace: Trace, a: Any, axis: Any = None, *, keepdims: Any = False) -> Any:
    array = create.as_array(trace, a)
    layout = like_layout(array.meta.shape, i64.numpy, [array.meta])
    counts = trace.fresh(trace.cast(trace.cast(array.value, bool_), i64), layout)
    return reductions.reduce(trace, np.add, counts, axis, None, keepdims)


def _einsum(
    trace: Trace,
    *operands: Any,
    out: Any = None,
    optimize: Any = False,
    dtype: Any = None,
    casting: Any = "safe",
    order: Any = "K",
) -> Any:
    if order != "K":
        raise trace.unsupported(f"np.einsum with order={order!r} is not compiled")
    return store(trace, contract.einsum(trace, *operands, dtype=dtype, casting=casting), out)


def _with_out(function: Function) -> Function:
    def call(trace: Trace, a: Any, b: Any, out: Any = None) -> Any:
        return store(trace, function(trace, a, b), out)

    return call


def _windows(
    trace: Trace, x: Any, window_shape: Any, axis: Any = None, *, subok: bool = False, writeable: bool = False
) -> Any:
    return strides.sliding_window_view(trace, create.as_array(trace, x), window_shape, axis, writeable)


def _nonzero(trace: Trace, a: Any) -> Any:
    raise DataDependentError(
        "the shape of np.nonzero depends on the elements; use np.where(mask, x, other) or a sum over the mask",
        trace.location(),
    )


def _nan_extreme(ufunc: np.ufunc, worst: float) -> Function:
    """The extreme of the numbers; NaN where there is none."""

    def reduce(trace: Trace, a: Any, axis: Any = None, out: Any = None, keepdims: Any = NO_VALUE, **kwargs: Any) -> Any:
        if kwargs or out is not None:
            raise trace.unsupported("np.nanmax and np.nanmin with out, initial or where are not compiled")
        a = create.as_array(trace, a)
        if a.meta.dtype.kind != "f":
            return reductions.reduce(trace, ufunc, a, axis, None, keepdims)
        missing = call_ufunc(np.isnan, (a,))
        found = reductions.reduce(trace, ufunc, _where(trace, missing, worst, a), axis, None, keepdims)
        none = reductions.reduce(trace, np.logical_and, missing, axis, None, keepdims)
        made = _where(trace, none, np.nan, found)
        made.is_scalar = found.is_scalar
        return made

    return reduce


def _nanmean(
    trace: Trace,
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: Any = NO_VALUE,
    where: Any = True,
) -> Any:
    if out is not None or where is not True:
        raise trace.unsupported("np.nanmean with out or where is not compiled")
    there = True if a.meta.dtype.kind != "f" else call_ufunc(np.logical_not, (call_ufunc(np.isnan, (a,)),))
    return reductions.mean(trace, a, axis, dtype, keepdims, there)


def _clip(trace: Trace, a: Any, a_min: Any = NO_VALUE, a_max: Any = NO_VALUE, out: Any = None, **kwargs: Any) -> Any:
    low = kwargs.pop("min", None) if a_min is NO_VALUE else a_min
    high = kwargs.pop("max", None) if a_max is NO_VALUE else a_max
    return clip(a if isinstance(a, Traced) else create.as_array(trace, a), low, high, out=out, **kwargs)


def clip(a: Any, low: Any, high: Any, **kwargs: Any) -> Any:
    """The method ``clip``: the ufunc that NumPy takes for the bounds that there are. Numbers that no integer of the
    dtype passes are none."""
    dtype = a.meta.dtype if isinstance(a, Traced) else np.asarray(a).dtype
    if dtype.kind in "iu":
        low = None if type(low) is int and low <= np.iinfo(dtype).min else low
        high = None if type(high) is int and high >= np.iinfo(dtype).max else high
    match low is None, high is None:
        case True, True:
            return call_ufunc(np.positive, (a,), **kwargs)
        case True, False:
            return call_ufunc(np.minimum, (a, high), **kwargs)
        case False, True:
            return call_ufunc(np.maximum, (a, low), **kwargs)
        case _:
            return call_ufunc(UMATH.clip, (a, low, high), **kwargs)


_TABLE: dict[Any, Function] = {
    np.where: _where,
    np.copyto: _copyto,
    np.empty_like: _like(0),
    np.zeros_like: _like(0),
    np.ones_like: _like(1),
    np.full_like: _full_like,
    np.concatenate: _concatenate,
    np.pad: _pad,
    np.broadcast_to: _broadcast_to,
    np.broadcast_arrays: _broadcast_arrays,
    np.result_type: _result_type,
    np.can_cast: _can_cast,
    np.count_nonzero: _count_nonzero,
    np.einsum: _einsum,
    np.dot: _with_out(contract.dot),
    np.inner: _with_out(contract.inner),
    np.vdot: contract.vdot,
    np.tensordot: contract.tensordot,
    np.lib.stride_tricks.sliding_window_view: _windows,
    np.nonzero: _nonzero,
    np.flatnonzero: _nonzero,
    np.argwhere: _nonzero,
    np.clip: _clip,
    np.nanmean: _nanmean,
    np.nanmax: _nan_extreme(np.maximum, -np.inf),
    np.nanmin: _nan_extreme(np.minimum, np.inf),
}
