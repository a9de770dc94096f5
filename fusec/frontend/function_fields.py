# SPDX-License-Identifier: Apache-2.0
"""A function's code and defaults as memory: compared in one step, and unseen by audit hooks.

Each read of ``__code__``, ``__defaults__`` or ``__kwdefaults__`` raises an audit event. With a hook in Python
(``sys.addaudithook``) that is 250 ns, 750 a call for the three. The memory takes 35 ns; without a hook the three take
57.
"""

from __future__ import annotations

import ctypes
import struct
from types import FunctionType
from typing import Any

Fields = ctypes.Array[ctypes.c_char]

_FORM = "3P"
_BYTES = struct.calcsize(_FORM)
_WORD = struct.calcsize("P")


def _find() -> int | None:
    """Where a function object holds its code, defaults and keyword defaults, in this order; None where it does not."""

    def sample(x: int, y: int = 1, *, z: int = 2) -> None: ...

    def plain() -> None: ...

    starts = range(object.__basicsize__, FunctionType.__basicsize__ - _BYTES + 1, _WORD)
    samples: list[Any] = [sample, plain]
    return next((start for start in starts if all(_is_at(f, start) for f in samples)), None)


def _is_at(function: FunctionType, start: int) -> bool:
    parts = (function.__code__, function.__defaults__, function.__kwdefaults__)
    return _at(function, start).raw == struct.pack(_FORM, *(0 if part is None else id(part) for part in parts))


def _at(function: FunctionType, start: int) -> Fields:
    return (ctypes.c_char * _BYTES).from_address(id(function) + start)


_START = _find()


def fields_of(function: FunctionType) -> tuple[Fields, bytes] | None:
    """Memory whose ``raw`` is equal to the bytes while the function has the code and defaults of now; None where this
    Python keeps them elsewhere. All four objects must be kept alive."""
    if _START is None:
        return None
    fields = _at(function, _START)
    return fields, fields.raw
