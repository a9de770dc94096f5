# SPDX-License-Identifier: Apache-2.0
"""Functions under ``functools.lru_cache`` in a traced NumPy function: what they keep is fetched anew at each call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from fusec.frontend.numpy_trace import Trace
from fusec.frontend.plain import is_plain
from fusec.frontend.results import leads_to

_CHANGES = ("cache_clear",)

Patch = Callable[[Any, str, Callable[[], Any]], Any]


class MemoView:
    """Stands for a function that remembers its results. A call of it is made for real, in a capture and at each call
    of what is compiled, as the function as written makes it: the arrays that it gives are the same while it keeps them.
    """

    def __init__(self, trace: Trace, memo: Any, patch: Patch) -> None:
        self.__dict__.update(_trace=trace, _memo=memo, _patch=patch, _known={})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = str(getattr(self._memo, "__qualname__", "a function"))
        if not all(map(_may_be_given, (*args, *kwargs.values()))):
            raise self._trace.unsupported(f"{name} keeps results in a cache and is given more than plain values")
        result = self._memo(*args, **kwargs)
        if not leads_to(result, lambda value: isinstance(value, np.ndarray)):
            return result
        if id(result) not in self._known:
            given = ", ".join([*map(repr, args), *(f"{key}={value!r}" for key, value in kwargs.items())])
            made = self._patch(result, f"{name}({given})", partial(self._memo, *args, **kwargs))
            self._known[id(result)] = (result, made)
        return self._known[id(result)][1]

    def __getattr__(self, name: str) -> Any:
        if name in _CHANGES:
            raise self._trace.unsupported(f"the function empties a cache with {name}")
        return getattr(self._memo, name)


def _may_be_given(value: Any) -> bool:
    return is_plain(value) or isinstance(value, type | np.dtype)
