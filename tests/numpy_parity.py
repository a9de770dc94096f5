"""Whether a jitted NumPy function gives what NumPy gives, does to its arguments what NumPy does, and raises it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any

import numpy as np

import fusec
from fusec.notices import RunsAsWritten

Array = np.ndarray[Any, Any]
_WIDER = {"float16": np.float64, "float32": np.float64, "float64": np.longdouble, "complex64": np.complex128}
_QUIET = (RuntimeWarning, np.exceptions.ComplexWarning, RunsAsWritten)
"""NumPy's warnings of what happens to elements, which kernels don't give, and that a call is not compiled."""


class DifferenceError(AssertionError):
    """What a jitted function did otherwise than NumPy."""


def agree(function: Callable[..., Any], *args: Any, calls: int = 2, wide: bool = True) -> fusec.runtime.jit.JitFunction:
    """Runs a function as written and jitted, ``calls`` times, on arrays that share memory as ``args`` do.

    Returns the jitted function. Raises DifferenceError.
    """
    own = copies(args)
    eager = outcome(function, own)
    widened = copies(args, widen=True)
    exact = outcome(_in_wide(function), widened) if wide else None
    jitted = fusec.jit(function)
    for _ in range(calls):
        mine = copies(args)
        made = outcome(jitted, mine)
        compare(eager, own, made, mine, exact, widened)
    return jitted


class _Wide:
    """NumPy, but what it computes in float16 for bools and integers of 8 bits, in float64."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(np, name)
        return _in_double(found) if isinstance(found, np.ufunc) else found


def _in_double(ufunc: np.ufunc) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        numbers = [np.asarray(x).dtype for x in args[: ufunc.nin]]
        try:
            loop = ufunc.resolve_dtypes((*numbers, *[None] * ufunc.nout))
        except TypeError:
            return ufunc(*args, **options)
        half = any(dtype == np.float16 for dtype in loop) and "dtype" not in options and "signature" not in options
        return ufunc(*args, **options, **({"dtype": np.float64} if half else {}))

    return call


def _in_wide(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with :class:`_Wide` for the module that it calls ``np``."""
    if not isinstance(function, FunctionType):
        return function
    scope = {**function.__globals__, "np": _Wide()} if function.__globals__.get("np") is np else function.__globals__
    made = FunctionType(function.__code__, scope, function.__name__, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


class Outcome:
    """What a call gave, or raised, and the warnings on the way."""

    def __init__(self, result: Any, error: Exception | None, noted: Sequence[type]) -> None:
        self.result = result
        self.error = error
        self.noted = [kind for kind in noted if not issubclass(kind, _QUIET)]


def outcome(function: Callable[..., Any], args: Sequence[Any]) -> Outcome:
    """The call's outcome."""
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        try:
            result, error = function(*args), None
        except Exception as raised:
            result, error = None, raised
    return Outcome(result, error, [w.category for w in noted])


def compare(
    eager: Outcome,
    own: Sequence[Any],
    made: Outcome,
    mine: Sequence[Any],
    exact: Outcome | None,
    widened: Sequence[Any] = (),
) -> None:
    """Raises DifferenceError unless the outcomes and the arguments afterwards are alike.

    exact, widened: the outcome and the arguments of the same call in wider numbers.
    """
    if (eager.error is None) != (made.error is None):
        raise DifferenceError(f"NumPy: {_told(eager)}\nfusec: {_told(made)}")
    if eager.error is not None and not isinstance(made.error, type(eager.error)):
        raise DifferenceError(f"NumPy raises {eager.error!r}, fusec {made.error!r}")
    more = set(made.noted) - set(eager.noted)
    if more:
        raise DifferenceError(f"fusec warns of {', '.join(sorted(kind.__name__ for kind in more))}")
    theirs, ours = layout([*leaves(eager.result), *own]), layout([*leaves(made.result), *mine])
    if theirs != ours:
        rows = [f"  NumPy {a}\n  fusec {b}" for a, b in zip(theirs, ours) if a != b]
        raise DifferenceError("layout:\n" + "\n".join(rows or [f"  NumPy {theirs}\n  fusec {ours}"]))
    if eager.error is None:
        _compare_memory([*leaves(eager.result)], own, [*leaves(made.result)], mine)
    references = leaves(exact.result) if exact is not None and exact.error is None else ()
    references = list(references)
    results = list(zip(leaves(eager.result), leaves(made.result)))
    for k, (a, b) in enumerate(results):
        compare_values(f"result {k}", a, b, references[k] if len(references) == len(results) else None)
    ran = exact is not None and exact.error is None
    for k, (a, b) in enumerate(zip(own, mine)):
        compare_values(f"argument {k} afterwards", a, b, widened[k] if ran and k < len(widened) else None)


def _told(of: Outcome) -> str:
    return f"raises {of.error!r}" if of.error is not None else f"gives {of.result!r}"


def leaves(value: Any) -> Iterator[Any]:
    """What a result holds, containers opened."""
    if isinstance(value, tuple | list):
        yield type(value).__name__
        for part in value:
            yield from leaves(part)
    elif isinstance(value, dict):
        yield tuple(value)
        for part in value.values():
            yield from leaves(part)
    else:
        yield value


def layout(values: Sequence[Any]) -> list[Any]:
    """Type, dtype, shape, strides and writeable flag of each value."""
    found: list[Any] = []
    for x in values:
        if isinstance(x, np.ndarray):
            strides = x.strides if x.size else None
            found.append((type(x).__name__, str(x.dtype), x.shape, strides, x.flags.writeable))
        else:
            found.append((type(x).__name__, str(getattr(x, "dtype", ""))))
    return found


def _compare_memory(one: list[Any], own: Sequence[Any], other: list[Any], mine: Sequence[Any]) -> None:
    theirs, ours = _relations(one, own), _relations(other, mine)
    based = {relation for relation in ours if relation[1] == "has the base of"}
    if theirs != ours - (based - theirs):  # NumPy puts an object of its own between what is strided and its base
        raise DifferenceError(f"memory:\n  NumPy {sorted(theirs - ours)}\n  fusec {sorted(ours - theirs)}")


def _relations(results: Sequence[Any], args: Sequence[Any]) -> set[Any]:
    """Which results are which arguments or results, or share memory with them, and how far apart they start."""
    named = [(f"result {k}", x) for k, x in enumerate(results)] + [(f"argument {k}", x) for k, x in enumerate(args)]
    arrays = [(name, x) for name, x in named if isinstance(x, np.ndarray)]
    found: set[Any] = set()
    for k, (name, x) in enumerate(arrays):
        for other, y in arrays[k + 1 :]:
            if not name.startswith("result"):
                continue
            if x is y:
                found.add((name, "is", other))
            elif x.size and y.size and np.shares_memory(x, y):
                found.add((name, "shares", other, start(x) - start(y)))
                if other.startswith("argument") and (x.base is y or x.base is y.base):
                    found.add((name, "has the base of", other))
    return found


def start(array: Array) -> int:
    """The address of the first element."""
    address: int = array.__array_interface__["data"][0]
    return address


def compare_values(what: str, theirs: Any, ours: Any, exact: Any) -> None:
    """Equal elements; floating ones may be twice as far from ``exact`` as NumPy's, and a rounding more."""
    if not isinstance(theirs, np.ndarray | np.generic):
        if theirs != ours and not (theirs != theirs and ours != ours):
            raise DifferenceError(f"{what}: NumPy {theirs!r}, fusec {ours!r}")
        return
    a, b = np.asarray(theirs), np.asarray(ours)
    if a.dtype.kind not in "fc":
        if not np.array_equal(a, b):
            raise DifferenceError(f"{what}: NumPy {theirs!r}, fusec {ours!r}")
        return
    wide = np.clongdouble if a.dtype.kind == "c" else np.longdouble
    with np.errstate(all="ignore"):
        if not np.array_equal(np.isnan(a), np.isnan(b)):
            raise DifferenceError(f"{what}: NaN elsewhere: NumPy {theirs!r}, fusec {ours!r}")
        best = np.asarray(exact).astype(wide) if exact is not None and np.shape(exact) == a.shape else a.astype(wide)
        best = np.where(np.isfinite(best), best, a.astype(wide))
        finite = np.isfinite(a) & np.isfinite(b)
        if not np.array_equal(a[~finite & ~np.isnan(a)], b[~finite & ~np.isnan(a)]):
            raise DifferenceError(f"{what}: infinite elsewhere: NumPy {theirs!r}, fusec {ours!r}")
        far = np.abs(b.astype(wide) - best)[finite]
        near = np.abs(a.astype(wide) - best)[finite]
        step = np.finfo(a.dtype).eps
        largest = np.max(np.abs(a[finite]), initial=0)
        allowed = 2 * near + 4 * step * np.abs(a.astype(wide))[finite] + 2 * step * largest
    if np.any(far > allowed):
        raise DifferenceError(f"{what}: NumPy {theirs!r}, fusec {ours!r}")


def copies(args: Sequence[Any], *, widen: bool = False) -> list[Any]:
    """Arrays of the same contents, strides and flags, which share memory as ``args`` do."""
    owners: dict[int, tuple[Array, Array]] = {}
    return [_copy(x, owners, widen) if isinstance(x, np.ndarray) else x for x in args]


def _copy(array: Array, owners: dict[int, tuple[Array, Array]], widen: bool) -> Array:
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    if id(owner) not in owners:
        owners[id(owner)] = (owner, _twin(owner, widen))
    twin = owners[id(owner)][1]
    if array is owner:
        return twin
    scale = twin.itemsize
    strides = tuple(s // array.itemsize * scale for s in array.strides)
    offset = (start(array) - start(owner)) // array.itemsize * scale
    dense = twin if twin.flags.c_contiguous else twin.T
    made: Array = np.ndarray(array.shape, twin.dtype, dense, offset, strides)
    made.flags.writeable = array.flags.writeable
    return made


def _twin(owner: Array, widen: bool) -> Array:
    dtype = np.dtype(_WIDER.get(str(owner.dtype), owner.dtype) if widen else owner.dtype)
    wanted = tuple(s // owner.itemsize * dtype.itemsize for s in owner.strides)
    made = (owner.astype(dtype, order=order) for order in ("K", "C", "F"))
    twin = next((array for array in made if array.strides == wanted or not owner.size), None)
    if twin is None:
        raise ValueError(f"an array of shape {owner.shape} and strides {owner.strides} must not own its memory")
    twin.flags.writeable = owner.flags.writeable
    return twin
