"""Where ufunc calls arrive: operators and ``__array_ufunc__``, with ``out``, ``where``, ``dtype`` and the methods."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fusec.errors import TypeRuleError, UnsupportedOpError
from fusec.frontend import numpy_contract as contract
from fusec.frontend import numpy_reduce as reductions
from fusec.frontend.numpy_create import as_array, contains_traced, copy
from fusec.frontend.numpy_extern import extern
from fusec.frontend.numpy_index import write
from fusec.frontend.numpy_trace import ShapeRuleError, Trace, Traced, ir_dtype
from fusec.frontend.numpy_ufunc import call, divmod_call, is_known, outer

_PRODUCTS: dict[str, Callable[..., Any]] = {
    "matmul": contract.matmul,
    "vecdot": contract.vecdot,
    "matvec": contract.matvec,
    "vecmat": contract.vecmat,
}
_IGNORED = ("casting", "order", "subok")


def call_ufunc(ufunc: np.ufunc, inputs: Sequence[Any], method: str = "__call__", **kwargs: Any) -> Any:
    """``ufunc(*inputs)`` or one of its methods, at least one input or ``out`` being traced."""
    outputs = kwargs.pop("out", None)
    out = outputs if isinstance(outputs, tuple) or outputs is None else (outputs,)
    trace = _trace_of((*inputs, *(out or ())))
    if out is not None and any(o is not None and not isinstance(o, Traced) for o in out):
        raise trace.unsupported(
            f"np.{ufunc.__name__} writes to an array that was not made in the function; "
            "make it there (np.zeros, x.copy()) or write out = out + x"
        )
    inputs = [as_array(trace, x) if isinstance(x, list | tuple) else x for x in inputs]
    for name in _IGNORED:
        kwargs.pop(name, None)
    made = _run(trace, ufunc, method, inputs, kwargs, out)
    return made if out is None else _store(trace, ufunc, inputs, made, out)


def _trace_of(parts: Sequence[Any]) -> Trace:
    for x in parts:
        if isinstance(x, Traced):
            return x.tracer
        if isinstance(x, list | tuple) and contains_traced(x):
            return _trace_of(x)
    raise TypeError("no traced operand")


def _run(trace: Trace, ufunc: np.ufunc, method: str, inputs: Sequence[Any], kwargs: dict[str, Any], out: Any) -> Any:
    known = is_known(ufunc)
    if method == "__call__" and ufunc.__name__ in _PRODUCTS and not kwargs:
        return _PRODUCTS[ufunc.__name__](trace, *inputs)
    if method == "__call__" and ufunc is np.divmod and not kwargs:
        return divmod_call(trace, inputs)
    if method == "__call__" and known:
        return _call(trace, ufunc, inputs, out, **kwargs)
    if method == "reduce":
        return _reduce(trace, ufunc, *inputs, **kwargs)
    if method == "accumulate":
        return _accumulate(trace, ufunc, *inputs, **kwargs)
    if method == "outer" and known and len(inputs) == 2:
        return outer(trace, ufunc, *inputs, **kwargs)
    if method == "at":
        raise trace.unsupported(f"np.{ufunc.__name__}.at is not compiled")
    function = ufunc if method == "__call__" else getattr(ufunc, method)
    package = "numpy" if getattr(np, ufunc.__name__, None) is ufunc else _package(trace, ufunc)
    target = f"{package}.{ufunc.__name__}" + ("" if method == "__call__" else f".{method}")
    return extern(trace, target, function, inputs, kwargs)


def _package(trace: Trace, ufunc: np.ufunc) -> str:
    """Where a ufunc that is not NumPy's can be found again by name."""
    special = sys.modules.get("scipy.special")
    if special is not None and getattr(special, ufunc.__name__, None) is ufunc:
        return "scipy.special"
    raise trace.unsupported(f"the ufunc {ufunc.__name__} is not compiled")


def _call(trace: Trace, ufunc: np.ufunc, inputs: Sequence[Any], out: Any, **kwargs: Any) -> Any:
    where = kwargs.pop("where", True)
    dtype = kwargs.pop("dtype", None)
    if kwargs:
        raise trace.unsupported(f"np.{ufunc.__name__} with {', '.join(kwargs)} is not compiled")
    made = call(trace, ufunc, inputs, dtype=dtype)
    if where is True:
        return made
    if not out:
        raise trace.unsupported(f"np.{ufunc.__name__} with where but no out leaves elements undefined; use np.where")
    old = out[0]
    kind = ir_dtype(old.meta.dtype)
    chosen = trace.emit("select", trace.mask(where), trace.operand(made, kind), old.value)
    return trace.fresh(chosen)


def _reduce(
    trace: Trace,
    ufunc: np.ufunc,
    x: Any,
    axis: Any = 0,
    dtype: Any = None,
    keepdims: Any = False,
    initial: Any = reductions.NO_VALUE,
    where: Any = True,
) -> Any:
    array = x if isinstance(x, Traced) else _traced(trace, x)
    try:
        return reductions.reduce(trace, ufunc, array, axis, dtype, keepdims, initial, where)
    except UnsupportedOpError:
        if where is not True or initial is not reductions.NO_VALUE:
            raise
        arguments = {"axis": axis, "dtype": dtype, "keepdims": keepdims}
        return extern(trace, f"numpy.{ufunc.__name__}.reduce", ufunc.reduce, (array,), arguments)


def _accumulate(trace: Trace, ufunc: np.ufunc, x: Any, axis: int = 0, dtype: Any = None) -> Any:
    array = x if isinstance(x, Traced) else _traced(trace, x)
    try:
        return reductions.scan(trace, ufunc, array, axis, dtype)
    except UnsupportedOpError:
        return extern(trace, f"numpy.{ufunc.__name__}.accumulate", ufunc.accumulate, (array,), {"axis": axis})


def _traced(trace: Trace, x: Any) -> Any:
    array = as_array(trace, x)
    return array if isinstance(array, Traced) else trace.fresh(trace.operand(array), array)


def _store(trace: Trace, ufunc: np.ufunc, inputs: Sequence[Any], made: Any, out: Sequence[Any]) -> Any:
    """The result written in place, with NumPy's check that its dtype may be stored there."""
    results = made if isinstance(made, tuple) else (made,)
    for target, result in zip(out, results):
        if target is None:
            continue
        if result.meta.shape != target.meta.shape:
            try:
                fits = np.broadcast_shapes(result.meta.shape, target.meta.shape) == target.meta.shape
            except ValueError:
                fits = False
            if not fits:
                message = (
                    f"non-broadcastable output operand with shape {target.meta.shape} "
                    f"doesn't match the broadcast shape {result.meta.shape}"
                )
                raise ShapeRuleError(message, trace.location())
        if not np.can_cast(result.meta.dtype, target.meta.dtype, "same_kind"):
            message = (
                f"Cannot cast ufunc '{ufunc.__name__}' output from {result.meta.dtype!r} to {target.meta.dtype!r} "
                "with casting rule 'same_kind'"
            )
            raise TypeRuleError(message, trace.location())
        write(trace, target, copy(trace, result) if result.is_scalar else result)
    stored = tuple(target if target is not None else result for target, result in zip(out, results))
    return stored if len(stored) > 1 else stored[0]
