# SPDX-License-Identifier: Apache-2.0
"""Calls that stay NumPy's: an extern op, its result types found by running the call on sample arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from fusec.errors import DataDependentError, UnsupportedOpError
from fusec.frontend.capture import format_arguments
from fusec.frontend.numpy_trace import Trace, Traced, ir_dtype, laid_out_as
from fusec.ir.attributes import ExternAttributes
from fusec.ir.types import TensorType

_REASON = "no form in fusec's ops"
_IN_PLACE = frozenset({"put", "place", "putmask", "put_along_axis", "fill_diagonal", "copyto", "add.at"})


def extern(
    trace: Trace, target: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Emits ``function(*args, **kwargs)`` as a library call named ``target`` and gives its traced results.

    UnsupportedOpError when the fallback is ``error``, the call writes in place, or its arguments have no text;
    DataDependentError when the shapes of its results depend on the elements.
    """
    if trace.fallback == "error":
        raise trace.unsupported(f"{target} is not compiled ({_REASON}); allow fallback='eager' to run it through NumPy")
    if target.partition(".")[2] in _IN_PLACE or kwargs.get("out") is not None:
        raise trace.unsupported(f"{target} writes in place and is not compiled; use an assignment")
    args, kwargs = _lifted(trace, tuple(args)), _lifted(trace, dict(kwargs))
    operands: list[Traced] = []
    _collect((args, list(kwargs.values())), operands)
    try:
        text = format_arguments(args, kwargs, operands)
    except TypeError as error:
        raise trace.unsupported(f"{target} is not compiled, and can't be kept as a call: {error}") from None
    samples = {id(x): _random_sample(x) for x in operands}
    first = _run(trace, target, function, args, kwargs, operands, samples)
    leaves = _leaves(trace, target, first)
    arrays = [*samples.values(), *(leaf for leaf in leaves if isinstance(leaf, np.ndarray))]
    if any(np.may_share_memory(a, b) for a, b in combinations(arrays, 2)):
        raise trace.unsupported(f"{target} gives views, and is not compiled")
    if _shape_varies(trace, target, function, args, kwargs, operands, leaves):
        message = f"the shape or dtype of {target}'s result depends on the elements; it can't be compiled"
        raise DataDependentError(message, trace.location())
    types = tuple(TensorType(ir_dtype(a.dtype), a.shape) for a in leaves)
    attributes = ExternAttributes(target, text, types, _REASON)
    values = trace.emit_all("extern", *(x.value for x in operands), attributes=attributes)
    note = f"{trace.location()}: {target} runs through NumPy: {_REASON}"
    if note not in trace.notes:
        trace.notes.append(note)
    made = iter([trace.fresh(v, a, scalar=not isinstance(a, np.ndarray)) for v, a in zip(values, leaves)])
    return _rebuilt(first, made)


def _lifted(trace: Trace, x: Any) -> Any:
    """The arguments with ndarrays as traced constants."""
    if isinstance(x, Traced):
        return x
    if isinstance(x, np.ndarray) and x.ndim and x.dtype.kind in "biufc":
        return trace.fresh(trace.lift(x), x)
    if isinstance(x, tuple) and type(x) is not tuple:
        return x
    if isinstance(x, list | tuple):
        return type(x)(_lifted(trace, part) for part in x)
    if isinstance(x, dict):
        return {k: _lifted(trace, v) for k, v in x.items()}
    if isinstance(x, np.ndarray):
        return x[()]
    return x


def _collect(x: Any, operands: list[Traced]) -> None:
    if isinstance(x, Traced):
        if not any(x is o for o in operands):
            operands.append(x)
    elif isinstance(x, list | tuple):
        for part in x:
            _collect(part, operands)


def _run(
    trace: Trace,
    target: str,
    function: Callable[..., Any],
    args: Any,
    kwargs: Any,
    operands: Sequence[Traced],
    samples: Mapping[int, np.ndarray[Any, Any]],
) -> Any:
    try:
        with np.errstate(all="ignore"):
            return function(*_filled(args, samples), **_filled(kwargs, samples))
    except Exception as error:
        kinds = ", ".join(f"{ir_dtype(x.meta.dtype)}{list(x.meta.shape)}" for x in operands)
        raise trace.unsupported(f"{target}({kinds}) is not compiled, and NumPy refuses it: {error}") from error


def _shape_varies(
    trace: Trace, target: str, function: Callable[..., Any], args: Any, kwargs: Any, operands: Any, leaves: list[Any]
) -> bool:
    """True when arrays of equal elements, or of both signs, give results of another shape or dtype than random ones."""
    first = [(a.shape, a.dtype) for a in leaves]
    for make in (lambda x: np.ones(x.meta.shape, x.meta.dtype), _signed_sample):
        try:
            other = _run(trace, target, function, args, kwargs, operands, {id(x): make(x) for x in operands})
        except UnsupportedOpError:  # such as the inverse of a singular matrix
            continue
        if [(a.shape, a.dtype) for a in _leaves(trace, target, other)] != first:
            return True
    return False


def _random_sample(x: Traced) -> np.ndarray[Any, Any]:
    """Random elements in the array's order, repeated where it repeats them: a result's layout may follow from that.

    A square matrix is symmetric and positive definite, for linear algebra.
    """
    shape, dtype = x.meta.shape, x.meta.dtype
    made = np.asarray(np.random.default_rng(1).random(shape))
    if len(shape) > 1 and shape[-1] == shape[-2]:
        made = made + np.swapaxes(made, -1, -2) + 2 * shape[-1] * np.eye(shape[-1])
    if dtype.kind in "biu":
        made = np.floor(made * 2)
    laid: np.ndarray[Any, Any] = np.ndarray(
        shape, dtype, np.empty(made.size, dtype), 0, laid_out_as(x.meta, shape, dtype).strides
    )
    laid[...] = made
    repeated = [step == 0 for step in x.meta.strides]
    if not any(repeated):
        return laid
    return as_strided(laid, shape, [0 if again else step for again, step in zip(repeated, laid.strides)])


def _signed_sample(x: Traced) -> np.ndarray[Any, Any]:
    """Random elements of both signs; a square matrix has eigenvalues that are not real."""
    shape, dtype = x.meta.shape, x.meta.dtype
    made = np.asarray(np.random.default_rng(2).uniform(-2, 2, shape))
    if len(shape) > 1 and shape[-1] == shape[-2]:
        made = made - np.swapaxes(made, -1, -2)
    return (np.abs(made) if dtype.kind == "u" else made).astype(dtype)


def _filled(x: Any, samples: Mapping[int, Any]) -> Any:
    if isinstance(x, Traced):
        return samples[id(x)]
    if isinstance(x, list | tuple) and type(x) in (list, tuple):
        return type(x)(_filled(part, samples) for part in x)
    if isinstance(x, dict):
        return {k: _filled(v, samples) for k, v in x.items()}
    return x


def _leaves(trace: Trace, target: str, result: Any) -> list[Any]:
    if isinstance(result, np.ndarray | np.generic):
        return [result]
    if isinstance(result, list | tuple):
        return [leaf for part in result for leaf in _leaves(trace, target, part)]
    message = f"{target} gives Python's {type(result).__name__}, known only when the compiled function runs"
    raise DataDependentError(message, trace.location())


def _rebuilt(result: Any, made: Any) -> Any:
    if isinstance(result, np.ndarray | np.generic):
        return next(made)
    parts = [_rebuilt(part, made) for part in result]
    if isinstance(result, list):
        return parts
    return type(result)(*parts) if hasattr(result, "_fields") else tuple(parts)
