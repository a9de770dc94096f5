"""NumPy's namespace with each function run by fusec: the module that array-api-tests is given.

Each call is jitted by itself, as a function has programs for so many signatures only. ``CALLS`` counts those that were
compiled and those that ran as written.
"""

from __future__ import annotations

import atexit
import functools
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import fusec

CALLS: Counter[str] = Counter()
_LIBRARIES = ("linalg", "fft")
__array_api_version__ = np.__array_api_version__
__version__ = np.__version__


def __getattr__(name: str) -> Any:
    return _member(np, name)


def _member(owner: Any, name: str) -> Any:
    value = getattr(owner, name)
    if isinstance(value, ModuleType):
        return _Namespace(value) if name in _LIBRARIES else value
    if isinstance(value, type) or not callable(value):
        return value
    return jitted(value)


class _Namespace:
    """A part of NumPy."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self.__name__ = module.__name__

    def __getattr__(self, name: str) -> Any:
        return _member(self._module, name)


@functools.cache
def jitted(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, jitted anew at each call that is given an array."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not _has_array((args, kwargs)):
            return function(*args, **kwargs)
        run = fusec.jit(lambda *a, **k: function(*a, **k))
        result = run(*args, **kwargs)
        CALLS["as written" if run.dispatcher.eager_calls else "compiled"] += 1
        return result

    return call


def _has_array(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return any(map(_has_array, value))
    return _has_array(tuple(value.values())) if isinstance(value, dict) else isinstance(value, np.ndarray)


@atexit.register
def _report() -> None:
    if "ARRAY_API_CALLS" in os.environ:
        Path(os.environ["ARRAY_API_CALLS"]).write_text(f"{dict(CALLS)}\n")
