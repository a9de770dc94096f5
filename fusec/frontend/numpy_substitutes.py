"""What NumPy's functions that do not dispatch to traced arrays mean in a traced function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from fusec.frontend import numpy_create as create
from fusec.frontend import numpy_stride as strides
from fusec.frontend.followed import by_value
from fusec.frontend.numpy_trace import Trace, Traced

Functions = dict[Any, Callable[..., Any]]


def substitutes(trace: Trace) -> Functions:
    """For each such function of NumPy the one that takes its place in a capture."""
    return _conversions(trace) | _creation(trace) | _views(trace)


def _conversions(trace: Trace) -> Functions:
    def array(
        object: Any, dtype: Any = None, *, copy: Any = True, order: str = "K", ndmin: int = 0, **kwargs: Any
    ) -> Any:
        if not create.contains_traced(object):
            return np.array(object, dtype, copy=copy, order=order, ndmin=ndmin, **kwargs)  # type: ignore[call-overload]
        made = create.as_array(trace, object, dtype)
        if isinstance(object, Traced) and copy and made.buffer is object.buffer:
            made = create.copy(trace, object, dtype, order)
        while made.meta.ndim < ndmin:
            made = made[None]
        return made

    def asarray(a: Any, dtype: Any = None, order: Any = None, *, copy: Any = None, **kwargs: Any) -> Any:
        if not create.contains_traced(a):
            return np.asarray(a, dtype, order, copy=copy)
        return array(a, dtype, order=order or "K") if copy else create.as_array(trace, a, dtype)

    def contiguous(a: Any, dtype: Any = None, **kwargs: Any) -> Any:
        if not create.contains_traced(a):
            return np.ascontiguousarray(a, dtype)
        made = create.as_array(trace, a, dtype)
        made = made if made.meta.ndim else made.reshape(1)
        return made if made.meta.flags.c_contiguous else create.copy(trace, made, dtype, "C")

    def fortran(a: Any, dtype: Any = None, **kwargs: Any) -> Any:
        if not create.contains_traced(a):
            return np.asfortranarray(a, dtype)
        made = create.as_array(trace, a, dtype)
        return made if made.meta.flags.f_contiguous else create.copy(trace, made, dtype, "F")

    return {
        np.array: array,
        np.asarray: asarray,
        np.asanyarray: asarray,
        np.ascontiguousarray: contiguous,
        np.asfortranarray: fortran,
    }


def _creation(trace: Trace) -> Functions:
    def filled(number: int) -> Callable[..., Any]:
        def make(shape: Any, dtype: Any = float, order: str = "C", **kwargs: Any) -> Any:
            return create.full(trace, shape, number, dtype or float, order)

        return make

    def full(shape: Any, fill_value: Any, dtype: Any = None, order: str = "C", **kwargs: Any) -> Any:
        return create.full(trace, shape, fill_value, dtype, order)

    made: Functions = {np.zeros: filled(0), np.ones: filled(1), np.empty: filled(0), np.full: full}
    return {function: by_value(substitute) for function, substitute in made.items()}


def _views(trace: Trace) -> Functions:
    def strided(
        x: Any, shape: Any = None, strides_: Any = None, subok: bool = False, writeable: bool = True, **kwargs: Any
    ) -> Any:
        wanted = kwargs.get("strides", strides_)
        if not isinstance(x, Traced):
            return as_strided(x, shape, wanted, subok, writeable)
        return strides.as_strided(trace, x, shape, wanted)

    def broadcast(*args: Any) -> Any:
        return np.broadcast(*(x.meta if isinstance(x, Traced) else x for x in args))

    return {as_strided: strided, np.broadcast: broadcast}
