# SPDX-License-Identifier: Apache-2.0
"""Universal functions: NumPy's own dtype resolution, then one op or a few of that dtype."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from fusec.errors import TypeRuleError, UnsupportedOpError
from fusec.frontend.numpy_emit import ShapeRuleError
from fusec.frontend.numpy_trace import Meta, Trace, Traced, describe, ir_dtype, like_layout
from fusec.ir.nodes import Value
from fusec.ir.types import bool_

DTypeLike = np.dtype[Any]
Handler = Callable[[Trace, list[Value]], Value]

_SAME: dict[str, str] = {
    "add": "add",
    "subtract": "sub",
    "multiply": "mul",
    "divide": "div",
    "floor_divide": "floordiv",
    "remainder": "remainder",
    "fmod": "fmod",
    "maximum": "maximum",
    "minimum": "minimum",
    "fmax": "fmax",
    "fmin": "fmin",
    "arctan2": "atan2",
    "copysign": "copysign",
    "hypot": "hypot",
    "equal": "eq",
    "not_equal": "ne",
    "less": "lt",
    "less_equal": "le",
    "greater": "gt",
    "greater_equal": "ge",
    "bitwise_and": "bitwise_and",
    "bitwise_or": "bitwise_or",
    "bitwise_xor": "bitwise_xor",
    "left_shift": "shift_left",
    "right_shift": "shift_right",
    "invert": "bitwise_not",
    "negative": "neg",
    "exp": "exp",
    "exp2": "exp2",
    "expm1": "expm1",
    "log": "log",
    "log2": "log2",
    "log10": "log10",
    "log1p": "log1p",
    "sqrt": "sqrt",
    "sin": "sin",
    "cos": "cos",
    "tan": "tan",
    "sinh": "sinh",
    "cosh": "cosh",
    "tanh": "tanh",
    "arcsin": "asin",
    "arccos": "acos",
    "arctan": "atan",
    "arcsinh": "asinh",
    "arccosh": "acosh",
    "arctanh": "atanh",
    "erf": "erf",
    "erfc": "erfc",
    "expit": "sigmoid",
}
"""Ufuncs that are one op whose operands have the loop's dtype."""

_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
}
UMATH: Any = np._core.umath  # type: ignore[attr-defined]
_SCIPY = frozenset({"erf", "erfc", "expit"})


def _is_number(x: Any) -> bool:
    return isinstance(x, bool | int | float | complex | np.generic) or (isinstance(x, np.ndarray) and x.ndim == 0)


def _truth(trace: Trace, value: Value) -> Value:
    return trace.cast(value, bool_)


def _logical(name: str) -> Handler:
    return lambda trace, xs: trace.emit(name, *(_truth(trace, x) for x in xs))


def _for_kind(floats: str, ints: Handler) -> Handler:
    def handle(trace: Trace, xs: list[Value]) -> Value:
        return trace.emit(floats, *xs) if xs[0].type.dtype.is_float else ints(trace, xs)

    return handle


def _identity(trace: Trace, xs: list[Value]) -> Value:
    return xs[0]


def _absolute(trace: Trace, xs: list[Value]) -> Value:
    (x,) = xs
    if x.type.dtype.kind in ("uint", "bool"):
        return x
    return trace.emit("abs", x)


def _never(value: bool) -> Handler:
    return lambda trace, xs: trace.broadcast(trace.constant(value, bool_), xs[0].type.static_shape)


def _power(trace: Trace, xs: list[Value]) -> Value:
    x, y = xs
    exponent = trace.producers.get(y)
    if exponent is not None and exponent.name == "constant":
        number = exponent.attributes.value  # type: ignore[attr-defined]
        if number == 2:
            return trace.emit("mul", x, x)
        if x.type.dtype.is_integer and number < 0:
            raise ShapeRuleError("Integers to negative integer powers are not allowed.", trace.location())
    return trace.emit("pow", x, y)


def _reciprocal(trace: Trace, xs: list[Value]) -> Value:
    (x,) = xs
    if x.type.dtype.kind in ("int", "uint"):
        raise trace.unsupported("np.reciprocal of integers is not compiled; use 1 // x")
    return trace.emit("div", trace.constant(1, x.type.dtype), x)


def _signbit(trace: Trace, xs: list[Value]) -> Value:
    (x,) = xs
    if not x.type.dtype.is_float:
        return trace.binary("lt", x, 0)
    return trace.binary("lt", trace.emit("copysign", trace.constant(1, x.type.dtype), x), 0)


def _heaviside(trace: Trace, xs: list[Value]) -> Value:
    x, at_zero = xs
    dtype = x.type.dtype
    beyond = trace.emit("select", trace.binary("lt", x, 0), trace.constant(0, dtype), trace.constant(1, dtype))
    there = trace.emit("select", trace.binary("eq", x, 0), at_zero, beyond)
    return trace.emit("select", trace.emit("isnan", x), x, there)


def _logaddexp(trace: Trace, xs: list[Value]) -> Value:
    """``max + log1p(exp(-|a - b|))``; where a = b (infinite ones too) ``a + log 2``."""
    a, b = xs
    distance = trace.emit("neg", trace.emit("abs", trace.emit("sub", a, b)))
    apart = trace.emit("add", trace.emit("maximum", a, b), trace.emit("log1p", trace.emit("exp", distance)))
    together = trace.binary("add", a, math.log(2.0))
    return trace.emit("select", trace.emit("eq", a, b), together, apart)


def _scale(factor: float) -> Handler:
    return lambda trace, xs: trace.binary("mul", xs[0], factor)


def _clip(trace: Trace, xs: list[Value]) -> Value:
    x, low, high = xs
    return trace.emit("minimum", trace.emit("maximum", x, low), high)


_SPECIAL: dict[str, Handler] = {
    "absolute": _absolute,
    "fabs": _absolute,
    "sign": lambda trace, xs: trace.emit("sign", *xs),
    "positive": _identity,
    "conjugate": _identity,
    "square": lambda trace, xs: trace.emit("mul", xs[0], xs[0]),
    "reciprocal": _reciprocal,
    "power": _power,
    "float_power": _power,
    "floor": _for_kind("floor", _identity),
    "ceil": _for_kind("ceil", _identity),
    "trunc": _for_kind("trunc", _identity),
    "rint": _for_kind("round", _identity),
    "isnan": _for_kind("isnan", _never(False)),
    "isinf": _for_kind("isinf", _never(False)),
    "isfinite": _for_kind("isfinite", _never(True)),
    "signbit": _signbit,
    "logical_and": _logical("logical_and"),
    "logical_or": _logical("logical_or"),
    "logical_xor": _logical("logical_xor"),
    "logical_not": _logical("logical_not"),
    "heaviside": _heaviside,
    "logaddexp": _logaddexp,
    "deg2rad": _scale(math.pi / 180.0),
    "radians": _scale(math.pi / 180.0),
    "rad2deg": _scale(180.0 / math.pi),
    "degrees": _scale(180.0 / math.pi),
    "clip": _clip,
}

_ON_BOOL: dict[str, str] = {
    "add": "logical_or",
    "multiply": "logical_and",
    "maximum": "logical_or",
    "minimum": "logical_and",
}
_COMPLEX_NAMES = frozenset(
    {"add", "subtract", "multiply", "divide", "negative", "exp", "sqrt", "equal", "not_equal", "positive", "square"}
)


def is_known(ufunc: np.ufunc) -> bool:
    """True for a ufunc that has a form in ops."""
    name = ufunc.__name__
    if name in _SCIPY:
        return True
    return (name in _SAME or name in _SPECIAL) and getattr(UMATH, name, None) is ufunc


def may_raise(trace: Trace, ufunc: np.ufunc, inputs: Sequence[Any]) -> bool:
    """Whether NumPy looks at elements for errors: it refuses powers of integers to negative ones."""
    if ufunc is not np.power or len(inputs) != 2:
        return False
    exponent = inputs[1]
    if isinstance(exponent, Traced):
        known = trace.known(exponent) if exponent.meta.dtype.kind == "i" else np.zeros(1)
        exponent = np.full(1, -1) if known is None else known
    kinds = [x.meta.dtype.kind if isinstance(x, Traced) else np.asarray(x).dtype.kind for x in inputs]
    return all(kind in "biu" for kind in kinds) and bool(np.any(np.asarray(exponent) < 0))


def resolve(
    trace: Trace, ufunc: np.ufunc, inputs: Sequence[Any], dtype: Any = None, casting: Any = "same_kind"
) -> tuple[DTypeLike, ...]:
    """The dtypes of the loop that NumPy would run, operands then results. Python numbers are weak (NEP 50)."""
    kinds: list[Any] = []
    for x in inputs:
        if isinstance(x, Traced):
            kinds.append(x.meta.dtype)
        elif type(x) in (int, float, complex):
            kinds.append(type(x))
        elif hasattr(x, "__array__") and not isinstance(x, np.ndarray | np.generic):
            raise trace.unsupported(f"a {type(x).__name__} is taken for an array; make one of it with np.asarray")
        else:
            kinds.append(np.asarray(x).dtype)
    if casting == "equiv" and any(isinstance(kind, type) for kind in kinds):  # NumPy 2's resolve_dtypes crashes
        raise UnsupportedOpError(f"np.{ufunc.__name__} of a Python number with casting='equiv'", trace.location())
    chosen: dict[str, Any] = {"casting": casting}
    if dtype is not None:
        chosen["signature"] = (*(None,) * ufunc.nin, *(np.dtype(dtype),) * ufunc.nout)
    try:
        found = ufunc.resolve_dtypes((*kinds, *(None,) * ufunc.nout), **chosen)
    except TypeError as error:
        shown = ", ".join(k.__name__ if isinstance(k, type) else str(k) for k in kinds)
        raise TypeRuleError(f"{error} (operands {shown})", trace.location()) from None
    resolved: tuple[DTypeLike, ...] = tuple(found)
    return resolved


def broadcast_metas(trace: Trace, name: str, inputs: Sequence[Any]) -> tuple[tuple[int, ...], list[Meta]]:
    """The common shape, and the layouts of the operands that are arrays with axes."""
    metas = [x.meta if isinstance(x, Traced) else x for x in inputs if isinstance(x, Traced | np.ndarray)]
    try:
        shape = np.broadcast_shapes(*(m.shape for m in metas))
    except ValueError:
        shown = " ".join(str(m.shape).replace(" ", "") for m in metas)
        message = f"{name}: operands could not be broadcast together with shapes {shown}"
        raise ShapeRuleError(message, trace.location()) from None
    return shape, [m for m in metas if m.ndim]


def call(
    trace: Trace,
    ufunc: np.ufunc,
    inputs: Sequence[Any],
    *,
    dtype: Any = None,
    casting: Any = "same_kind",
    order: str | None = "K",
) -> Any:
    """``ufunc(*inputs)`` for numbers, ndarrays and traced arrays: a new array, or a scalar."""
    name = ufunc.__name__
    shape, metas = broadcast_metas(trace, name, inputs)
    if name in _COMPARISONS and dtype is None:
        decided = _compare_beyond(trace, name, inputs)
        if decided is not None:
            return trace.result(trace.broadcast(decided, shape), _layout(trace, shape, np.dtype(bool), metas, order))
    loop = resolve(trace, ufunc, inputs, dtype, casting)
    if name in ("left_shift", "right_shift", "floor_divide") and loop[0].kind == "b":
        raise trace.unsupported(f"np.{name} of bool is not compiled; cast it to an integer first")
    if any(d.kind == "c" for d in loop) and name not in _COMPLEX_NAMES:
        raise trace.unsupported(f"np.{name} of complex numbers is not compiled")
    if loop[0] != loop[ufunc.nin - 1] and name in _COMPARISONS:
        value = _compare_mixed(trace, name, inputs, loop)
    else:
        values = [trace.operand(x, ir_dtype(d)) for x, d in zip(inputs, loop)]
        value = apply(trace, name, values)
    value = trace.asked(trace.cast(value, ir_dtype(loop[-1])), dtype)
    value = trace.broadcast(value, shape)
    arrays = [
        (x.meta if isinstance(x, Traced) else x, d) for x, d in zip(inputs, loop) if isinstance(x, Traced | np.ndarray)
    ]
    cast = [array.dtype != d for array, d in arrays if array.ndim]
    return trace.result(value, _layout(trace, shape, loop[-1], metas, order, cast, ufunc.nin))


def _layout(
    trace: Trace,
    shape: tuple[int, ...],
    dtype: DTypeLike,
    metas: Sequence[Meta],
    order: str | None,
    cast: Sequence[bool] = (),
    operands: int = 2,
) -> Meta:
    """The layout of a new result that is asked for by NumPy's ``order``."""
    if order in (None, "K"):
        if operands > 2:
            return like_layout(shape, dtype, metas, cast, partial(UMATH.clip, dtype=np.int64))
        return like_layout(shape, dtype, metas, cast)
    if order == "C":
        return describe(shape, dtype)
    if order == "F":
        return describe(shape[::-1], dtype).T
    raise trace.unsupported(f"a ufunc with order={order!r} is not compiled")


def apply(trace: Trace, name: str, values: list[Value]) -> Value:
    """The ops of a ufunc, its operands already of the loop's dtype."""
    if name in _ON_BOOL and values[0].type.dtype.kind == "bool":
        return trace.emit(_ON_BOOL[name], *values)
    if name in _SAME:
        return trace.emit(_SAME[name], *values)
    return _SPECIAL[name](trace, values)


def divmod_call(trace: Trace, inputs: Sequence[Any]) -> tuple[Any, Any]:
    """``np.divmod``: quotient and remainder."""
    return call(trace, np.floor_divide, inputs), call(trace, np.remainder, inputs)


def _compare_beyond(trace: Trace, name: str, inputs: Sequence[Any]) -> Value | None:
    """A comparison with a Python integer that the array's dtype can't hold: the same for every element."""
    for position, (x, other) in enumerate((inputs, inputs[::-1])):
        if type(x) is not int or not isinstance(other, Traced) or other.meta.dtype.kind not in "iu":
            continue
        info = np.iinfo(other.meta.dtype)
        if info.min <= x <= info.max:
            return None
        inside = 0
        beyond = 1 if x > info.max else -1
        pair = (beyond, inside) if position == 0 else (inside, beyond)
        return trace.constant(bool(_COMPARISONS[name](*pair)), bool_)
    return None


def _compare_mixed(trace: Trace, name: str, inputs: Sequence[Any], loop: Sequence[DTypeLike]) -> Value:
    """A comparison of i64 with u64, exact: a negative number is less than any unsigned one."""
    a, b = (trace.operand(x, ir_dtype(d)) for x, d in zip(inputs, loop))
    signed, is_left = (a, True) if loop[0].kind == "i" else (b, False)
    unsigned = ir_dtype(np.dtype(np.uint64))
    plain = trace.emit(_SAME[name], trace.cast(a, unsigned), trace.cast(b, unsigned))
    verdict = bool(_COMPARISONS[name](-1, 0) if is_left else _COMPARISONS[name](0, -1))
    return trace.emit("select", trace.binary("lt", signed, 0), trace.constant(verdict, bool_), plain)


def outer(trace: Trace, ufunc: np.ufunc, a: Any, b: Any, *, dtype: Any = None) -> Any:
    """``ufunc.outer``: every element of ``a`` with every one of ``b``."""
    left = a if isinstance(a, Traced) else np.asarray(a)
    rank = len(b.meta.shape) if isinstance(b, Traced) else np.ndim(b)
    return call(trace, ufunc, (left[(..., *(None,) * rank)], b), dtype=dtype)  # type: ignore[index]
