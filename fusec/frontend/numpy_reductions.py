# SPDX-License-Identifier: Apache-2.0
"""The methods of a traced array that reduce, search, scan and sort; NumPy's signatures."""

from __future__ import annotations

from typing import Any

import numpy as np

from fusec.frontend import numpy_function as function
from fusec.frontend import numpy_index as index
from fusec.frontend import numpy_reduce as reduce
from fusec.frontend.numpy_reduce import NO_VALUE
from fusec.frontend.numpy_trace import Traced
from fusec.frontend.numpy_ufunc import call


class Reductions(Traced):
    """What a traced array has of them. ``out`` must be an array of the trace."""

    __slots__ = ()

    def _reduce(self, ufunc: np.ufunc, axis: Any, dtype: Any, out: Any, keepdims: Any, initial: Any, where: Any) -> Any:
        made = reduce.reduce(self.tracer, ufunc, self, axis, dtype, keepdims, initial, where)
        return self._stored(made, out)

    def sum(
        self,
        axis: Any = None,
        dtype: Any = None,
        out: Any = None,
        keepdims: Any = False,
        initial: Any = NO_VALUE,
        where: Any = True,
    ) -> Any:
        return self._reduce(np.add, axis, dtype, out, keepdims, initial, where)

    def prod(
        self,
        axis: Any = None,
        dtype: Any = None,
        out: Any = None,
        keepdims: Any = False,
        initial: Any = NO_VALUE,
        where: Any = True,
    ) -> Any:
        return self._reduce(np.multiply, axis, dtype, out, keepdims, initial, where)

    def max(
        self, axis: Any = None, out: Any = None, keepdims: Any = False, initial: Any = NO_VALUE, where: Any = True
    ) -> Any:
        return self._reduce(np.maximum, axis, None, out, keepdims, initial, where)

    def min(
        self, axis: Any = None, out: Any = None, keepdims: Any = False, initial: Any = NO_VALUE, where: Any = True
    ) -> Any:
        return self._reduce(np.minimum, axis, None, out, keepdims, initial, where)

    def any(self, axis: Any = None, out: Any = None, keepdims: Any = False, where: Any = True) -> Any:
        return self._reduce(np.logical_or, axis, None, out, keepdims, NO_VALUE, where)

    def all(self, axis: Any = None, out: Any = None, keepdims: Any = False, where: Any = True) -> Any:
        return self._reduce(np.logical_and, axis, None, out, keepdims, NO_VALUE, where)

    def mean(
        self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False, where: Any = True
    ) -> Any:
        return self._stored(reduce.mean(self.tracer, self, axis, dtype, keepdims, where), out)

    def var(
        self,
        axis: Any = None,
        dtype: Any = None,
        out: Any = None,
        ddof: float = 0,
        keepdims: Any = False,
        where: Any = True,
    ) -> Any:
        if where is not True and where is not NO_VALUE:
            raise self.tracer.unsupported("np.var with where is not compiled")
        return self._stored(reduce.var(self.tracer, self, axis, dtype, ddof, keepdims), out)

    def std(
        self,
        axis: Any = None,
        dtype: Any = None,
        out: Any = None,
        ddof: float = 0,
        keepdims: Any = False,
        where: Any = True,
    ) -> Any:
        squared = self.var(axis, dtype, None, ddof, keepdims, where)
        asked = None if dtype is None or squared.dtype.kind != "f" else squared.dtype
        return self._stored(call(self.tracer, np.sqrt, (squared,), dtype=asked), out)

    def argmax(self, axis: int | None = None, out: Any = None, *, keepdims: Any = False) -> Any:
        return self._stored(reduce.search(self.tracer, "argmax", self, axis, keepdims), out)

    def argmin(self, axis: int | None = None, out: Any = None, *, keepdims: Any = False) -> Any:
        return self._stored(reduce.search(self.tracer, "argmin", self, axis, keepdims), out)

    def cumsum(self, axis: int | None = None, dtype: Any = None, out: Any = None) -> Any:
        return self._stored(reduce.scan(self.tracer, np.add, self, axis, dtype), out)

    def cumprod(self, axis: int | None = None, dtype: Any = None, out: Any = None) -> Any:
        return self._stored(reduce.scan(self.tracer, np.multiply, self, axis, dtype), out)

    def nonzero(self) -> Any:
        advice = "its shape depends on the elements; use np.where(mask, x, other)"
        return self.tracer.concrete(self, "nonzero", advice).nonzero()

    def argsort(self, axis: Any = -1, kind: Any = None, order: Any = None, *, stable: Any = None) -> Any:
        self._refuse(order=order, stable=stable)
        return function.library_call(self.tracer, np.argsort, (self, axis), {} if kind is None else {"kind": kind})

    def sort(self, axis: int = -1, kind: Any = None, order: Any = None, *, stable: Any = None) -> None:
        self._refuse(order=order, stable=stable)
        sorted_ = function.library_call(self.tracer, np.sort, (self, axis), {} if kind is None else {"kind": kind})
        index.write(self.tracer, self, sorted_)

    def searchsorted(self, v: Any, side: str = "left", sorter: Any = None) -> Any:
        return function.library_call(self.tracer, np.searchsorted, (self, v), {"side": side, "sorter": sorter})

    def _stored(self, made: Any, out: Any) -> Any:
        return index.store(self.tracer, made, out)

    def _refuse(self, **given: Any) -> None:
        for name, value in given.items():
            if value is not None:
                raise self.tracer.unsupported(f"{name}= is not compiled here")
