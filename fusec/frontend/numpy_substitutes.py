# SPDX-License-Identifier: Apache-2.0
"""What NumPy's functions that do not dispatch to traced arrays mean in a traced function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from fusec.frontend import numpy_create as create
from fusec.frontend import numpy_stride as strides
from fusec.frontend.numpy_trace import Trace, Traced
from fusec.frontend.symbolic_int import by_value

Functions = dict[Any, Callable[..., Any]]


def substitutes(trace: Trace) -> Functions:
    """For each such function of NumPy the one that takes its place in a capture."""
    return _conversions(trace) | _creation(trace) | _views(trace) | _settings(trace)


def _settings(trace: Trace) -> Functions:
    def refused(function: Callable[..., Any]) -> Callable[..., Any]:
        def refuse(*args: Any, **kwargs: Any) -> Any:
            raise trace.unsupported(f"np.{function.__name__} changes NumPy for all code; call it outside")

        return refuse

    return {function: refused(function) for function in (np.seterr, np.seterrcall, np.setbufsize)}


def _conversions(trace: Trace) -> Functions:
    def array(
        object: Any,
        dtype: Any = None,
        *,
        copy: Any = True,
        order: Any = "K",
        subok: Any = False,
        ndmin: int = 0,
        like: Any = None,
        **kwargs: Any,
    ) -> Any:
        if not create.contains_traced(object):
            given = {**kwargs, "subok": subok, "ndmin": ndmin, "like": like}
            return np.array(object, dtype, copy=copy, order=order, **given)
        made = create.convert(trace, object, dtype, order, None if copy is None else bool(copy))
        return create.with_axes(trace, made, ndmin, order) if made.meta.ndim < ndmin else made

    def asarray(a: Any, dtype: Any = None, order: Any = None, *, copy: Any = None, **kwargs: Any) -> Any:
        if not create.contains_traced(a):
            return np.asarray(a, dtype, order, copy=copy, **kwargs)
        return create.convert(trace, a, dtype, order, copy)

    def in_order(order: Any) -> Callable[..., Any]:
        numpys = np.ascontiguousarray if order == "C" else np.asfortranarray

        def convert(a: Any, dtype: Any = None, **kwargs: Any) -> Any:
            if not create.contains_traced(a):
                return numpys(a, dtype, **kwargs)
            made = create.convert(trace, a, dtype, order)
            return made if made.meta.ndim else made.reshape(1)

        return convert

    contiguous, fortran = in_order("C"), in_order("F")
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
        return strides.as_strided(trace, x, shape, wanted, writeable)

    def broadcast(*args: Any) -> Any:
        return np.broadcast(*(x.meta if isinstance(x, Traced) else x for x in args))

    return {as_strided: strided, np.broadcast: broadcast}
