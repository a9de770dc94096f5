# SPDX-License-Identifier: Apache-2.0
"""``x.flat``: reading it copies, writing it writes the array."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fusec.frontend import numpy_index as index
from fusec.frontend.kinds import StandIn
from fusec.frontend.numpy_create import as_array, copy
from fusec.frontend.numpy_trace import Traced


class FlatView(StandIn):
    """Stands for ``numpy.flatiter`` of a traced array, whose elements are in row-major order."""

    __slots__ = ("_array",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, array: Any) -> None:
        self._array = array

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return np.flatiter

    @property
    def base(self) -> Any:
        return self._array

    def copy(self) -> Any:
        return self._array.flatten()

    def __len__(self) -> int:
        return int(self._array.meta.size)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key: Any) -> Any:
        found = self._array.reshape(-1)[self._basic(key)]
        return found if found.is_scalar else copy(found.tracer, found)

    def __setitem__(self, key: Any, new: Any) -> None:
        array = self._array
        trace = array.tracer
        line = array.reshape(-1)
        if line.buffer is not array.buffer:
            line = copy(trace, line)
        key = self._basic(key)
        count = line.meta[key].size
        value: Any = new if isinstance(new, int | float | complex) else as_array(trace, new)
        size = value.meta.size if isinstance(value, Traced) else np.size(value)
        if isinstance(value, Traced) and value.buffer is array.buffer and size > 1:  # NumPy reads what it has written
            raise trace.unsupported("storing a part of an array in its own x.flat is not compiled; copy it")
        if size not in (1, count):  # NumPy repeats what is too short, and leaves out what is too long
            raise trace.unsupported(f"storing {size} elements in {count} of x.flat is not compiled")
        if np.ndim(value) if not isinstance(value, Traced) else value.meta.ndim:
            value = value.reshape(-1 if isinstance(key, slice) else ())
        if not array.meta.flags.writeable:
            raise ValueError("assignment destination is read-only")
        index.set_item(trace, line, key, value)
        if line.buffer is not array.buffer:
            index.write(trace, array, line.reshape(array.meta.shape))

    def _basic(self, key: Any) -> Any:
        only = key[0] if isinstance(key, tuple) and len(key) == 1 else key
        if only is ...:
            return slice(None)
        if not isinstance(only, slice | int | np.integer) or isinstance(only, bool):
            raise self._array.tracer.unsupported("x.flat with an index that is no integer or slice is not compiled")
        return only

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise self._array.tracer.unsupported("x.flat as an array is not compiled; use x.ravel()")

    __array__ = __next__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"'numpy.flatiter' object has no attribute '{name}'")
        raise self._array.tracer.unsupported(f"x.flat.{name} is not compiled")
