# SPDX-License-Identifier: Apache-2.0
"""Where ufunc calls arrive: operators and ``__array_ufunc__``, with ``out``, ``where``, ``dtype`` and the methods."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusec.errors import TypeRuleError, UnsupportedOpError
from fusec.frontend import numpy_contract as contract
from fusec.frontend import numpy_reduce as reductions
from fusec.frontend.numpy_create import as_array, contains_traced, copy
from fusec.frontend.numpy_emit import ShapeRuleError
from fusec.frontend.numpy_extern import extern
from fusec.frontend.numpy_index import write
from fusec.frontend.numpy_trace import Trace, Traced, ir_dtype
from fusec.frontend.numpy_ufunc import call, divmod_call, is_known, may_raise, outer
from fusec.ir.nodes import Value

_MATMULS: dict[str, Callable[..., Any]] = {
    "matmul": contract.matmul,
    "vecdot": contract.vecdot,
    "matvec": contract.matvec,
    "vecmat": contract.vecmat,
}


@dataclass(frozen=True)
class _Options:
    """How a ufunc is called, besides its operands."""

    where: Any = True
    casting: str = "same_kind"
    order: str | None = "K"
    dtype: Any = None

    @property
    def named(self) -> dict[str, Any]:
        """Those that a library call must be given; results for all elements are chosen from afterwards."""
        given = {"casting": self.casting, "order": self.order, "dtype": self.dtype}
        usual = {"casting": "same_kind", "order": "K", "dtype": None}
        return {name: value for name, value in given.items() if value != usual[name]}


def call_ufunc(ufunc: np.ufunc, inputs: Sequence[Any], method: str = "__call__", **kwargs: Any) -> Any:
    """``ufunc(*inputs)`` or one of its methods, at least one input or ``out`` being traced."""
    outputs = kwargs.pop("out", None)
    out = outputs if isinstance(outputs, tuple) or outputs is None else (outputs,)
    if out is not None and all(o is None for o in out):
        out = None
    trace = _trace_of((*inputs, *(out or ())))
    refuse_raising_errors(trace)
    if out is not None and any(o is not None and not isinstance(o, Traced) for o in out):
        raise trace.unsupported(
            f"np.{ufunc.__name__} writes to an array that was not made in the function; "
            "make it there (np.zeros, x.copy()) or write out = out + x"
        )
    if out is not None and any(o is not None and o.is_scalar for o in out):
        raise trace.unsupported("out= that may be a scalar, which takes no result, is not compiled")
    inputs = [as_array(trace, x) if isinstance(x, list | tuple) else x for x in inputs]
    if method != "__call__":
        made = _run_method(trace, ufunc, method, inputs, kwargs, out is not None)
        return made if out is None else _store(trace, ufunc, made, out, casting=None)
    options, others = _split(trace, ufunc, kwargs)
    made = _run(trace, ufunc, inputs, options, others)
    if options.where is not True and options.where is not np._NoValue:
        if out is None or any(target is None for target in out):
            raise trace.unsupported(
                f"np.{ufunc.__name__} with where but no out leaves elements undefined; use np.where"
            )
        return _store(trace, ufunc, made, out, options.casting, trace.mask(options.where))
    return made if out is None else _store(trace, ufunc, made, out, options.casting)


def refuse_raising_errors(trace: Trace) -> None:
    """UnsupportedOpError where floating-point errors are to be more than warned of: compiled code notices none."""
    loud = [f"{name}={action!r}" for name, action in np.geterr().items() if action not in ("ignore", "warn")]
    if loud:
        raise trace.unsupported(f"np.errstate({', '.join(loud)}) is not compiled: kernels notice no such errors")


def _split(trace: Trace, ufunc: np.ufunc, kwargs: dict[str, Any]) -> tuple[_Options, dict[str, Any]]:
    """The options that every ufunc has, and what else it was given (``axis``, ``keepdims``)."""
    if "sig" in kwargs or "signature" in kwargs:
        raise trace.unsupported(f"np.{ufunc.__name__} with signature is not compiled; use dtype")
    known = {name: kwargs[name] for name in ("where", "casting", "order", "dtype") if name in kwargs}
    others = {k: v for k, v in kwargs.items() if k not in (*known, "subok")}
    return _Options(**known), others


def _trace_of(parts: Sequence[Any]) -> Trace:
    for x in parts:
        if isinstance(x, Traced):
            return x.tracer
        if isinstance(x, list | tuple) and contains_traced(x):
            return _trace_of(x)
    raise TypeError("no traced operand")


def _run(trace: Trace, ufunc: np.ufunc, inputs: Sequence[Any], options: _Options, others: dict[str, Any]) -> Any:
    """The results for all elements."""
    named = {**options.named, **others}
    if ufunc.__name__ in _MATMULS and not named:
        return _MATMULS[ufunc.__name__](trace, *inputs)
    if ufunc is np.divmod and not named:
        return divmod_call(trace, inputs)
    if is_known(ufunc) and not others and not may_raise(trace, ufunc, inputs):
        return call(trace, ufunc, inputs, dtype=options.dtype, casting=options.casting, order=options.order)
    return extern(trace, f"{_package(trace, ufunc)}.{ufunc.__name__}", ufunc, inputs, named)


def _run_method(
    trace: Trace, ufunc: np.ufunc, method: str, inputs: Sequence[Any], kwargs: dict[str, Any], stores: bool
) -> Any:
    if method == "reduce":
        return _reduce(trace, ufunc, *inputs, **kwargs)
    if method == "accumulate":
        return _accumulate(trace, ufunc, *inputs, **kwargs)
    if method == "outer" and is_known(ufunc) and len(inputs) == 2 and not kwargs.keys() - {"dtype"} and not stores:
        return outer(trace, ufunc, *inputs, **kwargs)
    if method == "at" or stores:
        raise trace.unsupported(f"np.{ufunc.__name__}.{method} in place is not compiled")
    target = f"{_package(trace, ufunc)}.{ufunc.__name__}.{method}"
    return extern(trace, target, getattr(ufunc, method), inputs, kwargs)


def _package(trace: Trace, ufunc: np.ufunc) -> str:
    """Where a ufunc can be found again by name."""
    if getattr(np, ufunc.__name__, None) is ufunc:
        return "numpy"
    special = sys.modules.get("scipy.special")
    if special is not None and getattr(special, ufunc.__name__, None) is ufunc:
        return "scipy.special"
    raise trace.unsupported(f"the ufunc {ufunc.__name__} is not compiled")


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
        arguments = {"axis": axis} if dtype is None else {"axis": axis, "dtype": dtype}
        return extern(trace, f"numpy.{ufunc.__name__}.accumulate", ufunc.accumulate, (array,), arguments)


def _traced(trace: Trace, x: Any) -> Any:
    array = as_array(trace, x)
    return array if isinstance(array, Traced) else trace.fresh(trace.operand(array), array)


def _store(
    trace: Trace, ufunc: np.ufunc, made: Any, out: Sequence[Any], casting: Any, mask: Value | None = None
) -> Any:
    """The results written in place, where the mask holds, with NumPy's check that their dtypes may be stored there.

    ``casting`` is None for a reduction, whose loop is of the dtype of ``out``.
    """
    results = made if isinstance(made, tuple) else (made,)
    pairs = [(target, result) for target, result in zip(out, results) if target is not None]
    for target, result in pairs:
        _check_shape(trace, target, result)
        if casting is None and result.meta.dtype != target.meta.dtype:
            raise trace.unsupported(f"np.{ufunc.__name__}.reduce into {target.meta.dtype} is not compiled")
        if not np.can_cast(result.meta.dtype, target.meta.dtype, casting or "same_kind"):
            message = (
                f"Cannot cast ufunc '{ufunc.__name__}' output from {result.meta.dtype!r} to {target.meta.dtype!r} "
                f"with casting rule '{casting}'"
            )
            raise TypeRuleError(message, trace.location())
    for target, result in pairs:
        if mask is not None:
            made = trace.operand(result, ir_dtype(target.meta.dtype))
            write(trace, target, trace.fresh(trace.emit("select", mask, made, target.value)))
        else:
            write(trace, target, copy(trace, result) if result.is_scalar else result)
    stored = tuple(target if target is not None else result for target, result in zip(out, results))
    return stored if len(stored) > 1 else stored[0]


def _check_shape(trace: Trace, target: Traced, result: Traced) -> None:
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
