# SPDX-License-Identifier: Apache-2.0
"""What reductions, scans and partial results share: an associative operation and what it starts from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fusec.ir.types import BOOL, NUMBER, ORDERED, DType, DTypeKind

Scalar = bool | int | float
ReduceOp = Literal["sum", "prod", "max", "min", "any", "all", "logaddexp"]
Axes = tuple[int, ...]
Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Monoid:
    """One reduction's operation. A backend says only how it is spelled.

    name: what tile IR calls it; the graph's reduction is ``reduce_NAME``. combine: the elementwise op that makes one
    of two partial results. ufunc, over_axes: NumPy's, for two arrays and for axes of one. kinds: dtypes it takes.
    start: the identity of a dtype. of_nothing: whether a reduction of no elements is defined, and gives the identity.
    """

    name: ReduceOp
    combine: str
    ufunc: np.ufunc
    over_axes: Callable[[Array, Axes], Array]
    kinds: tuple[DTypeKind, ...]
    start: Callable[[DType], Scalar]
    of_nothing: bool = True

    def identity(self, dtype: DType) -> Scalar:
        """What every partial result starts from: combined with a value of the dtype, it gives that value."""
        return self.start(dtype)


def _number(value: int) -> Callable[[DType], Scalar]:
    def start(dtype: DType) -> Scalar:
        return bool(value) if dtype.kind == "bool" else value if dtype.is_integer else float(value)

    return start


def lowest(dtype: DType) -> Scalar:
    """The least value of a dtype."""
    if dtype.is_integer:
        return -(1 << (dtype.bits - 1)) if dtype.kind == "int" else 0
    return -inf if dtype.is_float else False


def highest(dtype: DType) -> Scalar:
    """The greatest value of a dtype."""
    if dtype.is_integer:
        return (1 << (dtype.bits - (dtype.kind == "int"))) - 1
    return inf if dtype.is_float else True


def _sum(x: Array, axis: Axes) -> Array:
    return np.asarray(np.sum(x, axis=axis, dtype=x.dtype))


def _prod(x: Array, axis: Axes) -> Array:
    return np.asarray(np.prod(x, axis=axis, dtype=x.dtype))


MONOIDS: dict[ReduceOp, Monoid] = {
    monoid.name: monoid
    for monoid in (
        Monoid("sum", "add", np.add, _sum, NUMBER, _number(0)),
        Monoid("prod", "mul", np.multiply, _prod, NUMBER, _number(1)),
        Monoid("max", "maximum", np.maximum, np.max, ORDERED, lowest, of_nothing=False),
        Monoid("min", "minimum", np.minimum, np.min, ORDERED, highest, of_nothing=False),
        Monoid("any", "logical_or", np.logical_or, np.any, BOOL, _number(0)),
        Monoid("all", "logical_and", np.logical_and, np.all, BOOL, _number(1)),
    )
}
"""Every reduction by its name in tile IR. max and min propagate NaN."""


def _logaddexp(x: Array, axis: Axes) -> Array:
    return np.asarray(np.logaddexp.reduce(x, axis=axis, dtype=x.dtype))


SCANS: dict[ReduceOp, Monoid] = {
    **{name: MONOIDS[name] for name in ("sum", "prod", "max", "min")},
    "logaddexp": Monoid("logaddexp", "logaddexp", np.logaddexp, _logaddexp, ("float",), lowest),
}
"""What runs along an axis: ``log(exp(a) + exp(b))`` besides the reductions of numbers."""


def monoid_of(name: ReduceOp) -> Monoid:
    """A reduction's or a scan's monoid by its name in tile IR."""
    return SCANS[name] if name in SCANS else MONOIDS[name]
