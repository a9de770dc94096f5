# SPDX-License-Identifier: Apache-2.0
"""Plain values, which compare by value: which they are, copies of containers of them, and whether two are the same."""

from __future__ import annotations

import enum
from operator import is_
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from fusec.frontend import raw
from fusec.frontend.raw import is_a

SINGLETONS = (None, True, False, Ellipsis, NotImplemented)
SCALARS = (int, float, complex, str, bytes)


def is_plain(value: Any) -> bool:
    """An immutable value that compares by value: number, string, dtype, device, enum member, slice, range."""
    kind = type(value)
    if kind in SCALARS or any(value is s for s in SINGLETONS):
        return True
    if issubclass(kind, np.dtype | np.generic | enum.Enum | range | slice):
        return True
    if kind.__module__ == "torch":
        return kind.__name__ in ("dtype", "device", "layout", "memory_format", "Size")
    return kind is tuple and all(is_plain(part) for part in value)


def plain_copy(value: Any) -> Any:
    """A tuple, list, dict or set with the parts of one that may be of another class."""
    if is_a(value, dict):
        return dict(raw.items_of(value))
    for kind in (tuple, list, set, frozenset):
        if is_a(value, kind):
            return value if type(value) is kind and kind in (tuple, frozenset) else kind(raw.values_of(value))
    raise TypeError(f"{type(value).__name__} is no container")


def same_plain(now: Any, then: Any) -> bool:
    """Equal, with equal types and signs of zero, part by part. Sets compare as sets."""
    if now is then:
        return True
    if isinstance(then, set | frozenset):
        return bool(now == then)
    if now != then:
        return False
    if isinstance(then, dict):
        return list(now) == list(then) and all(map(_same_part, now.values(), then.values()))
    return all(map(_same_part, now, then))


def same_settings(now: dict[str, Any], then: dict[str, Any]) -> bool:
    """Whether the attributes ``then`` are as they were; there may be others."""
    if all(map(is_, map(now.get, then), then.values())):
        return True
    return all(name in now and _same_part(now[name], held) for name, held in then.items())


def _same_part(now: Any, then: Any) -> bool:
    if now is then:
        return True
    if type(now) is not type(then):
        return False
    if isinstance(then, tuple):
        return len(now) == len(then) and all(map(_same_part, now, then))
    return repr(now) == repr(then) if isinstance(then, float | complex) else bool(now == then)


def same_array(now: Any, then: Any) -> bool:
    """Whether two arrays of one library have equal elements of one type; NaN equals NaN."""
    if type(now) is not type(then) or now.shape != then.shape or now.dtype != then.dtype:
        return False
    if isinstance(then, np.ndarray):
        return bool(np.array_equal(now, then, equal_nan=then.dtype.kind in "fc"))
    return bool(((now == then) | ((now != now) & (then != then))).all())


def brief(value: Any) -> str:
    """A value in some words. No ``__repr__`` of the user's runs."""
    kind = type(value)
    if is_a(value, FunctionType):
        code = value.__code__
        return f"function {value.__qualname__} ({code.co_filename}:{code.co_firstlineno})"
    if is_a(value, ModuleType):
        return f"module {value.__name__}"
    if is_a(value, type):
        return f"{kind.__name__} {value.__name__}"
    if kind in (list, dict, tuple, set, frozenset):
        parts = [*value, *value.values()] if kind is dict else list(value)
        if not all(map(is_plain, parts)):
            return f"{kind.__name__} of {len(value)}"
    elif not is_plain(value):
        return f"{kind.__qualname__} at {id(value):#x}"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
