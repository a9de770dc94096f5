# SPDX-License-Identifier: Apache-2.0
"""TorchScript's functions are captured as the Python that they were made from.

Their interpreter makes tensors that no dispatcher sees, and keeps what it learned of stand-ins: calls that follow on a
GPU run kernels that it chose for these.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_lock = threading.Lock()
_capturing = threading.local()
_captures = 0
_SCRIPTED: Any = torch._C.ScriptFunction
_as_compiled: Any = _SCRIPTED.__dict__["__call__"]


class _UnlikeError(Exception):
    """The Python of a function may take an argument for something else than TorchScript does."""


def _call(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls a function of TorchScript; the Python of it where this thread captures."""
    written = getattr(function, "_torchdynamo_inline", None) if getattr(_capturing, "depth", 0) else None
    if written is not None:
        try:
            taken = {a.name: a.type for a in function.schema.arguments}
            positions = [_taken(kind, value) for kind, value in zip(taken.values(), args, strict=False)]
            named = {name: _taken(taken.get(name), value) for name, value in kwargs.items()}
        except _UnlikeError:
            pass
        else:
            return written(*positions, *args[len(taken) :], **named)
    return _as_compiled.__get__(function, type(function))(*args, **kwargs)


def _taken(kind: Any, value: Any) -> Any:
    """An argument as TorchScript hands it to the code: a whole number for a fraction is one, a list is a copy."""
    match kind.kind() if kind is not None else "":
        case "TensorType" if isinstance(value, torch.Tensor):
            return value
        case "IntType" if type(value) in (int, bool):
            return int(value)
        case "FloatType" if type(value) in (int, float):
            return float(value)
        case "BoolType" if type(value) is bool:
            return value
        case "StringType" if type(value) is str:
            return value
        case "OptionalType":
            return None if value is None else _taken(kind.getElementType(), value)
        case "ListType" if type(value) in (list, tuple):
            return [_taken(kind.getElementType(), part) for part in value]
    raise _UnlikeError


@contextmanager
def scripts_as_written() -> Iterator[None]:
    """Runs the body with TorchScript's functions called as the Python that they were made from, in this thread."""
    global _captures
    with _lock:
        if not _captures:
            _SCRIPTED.__call__ = _call
        _captures += 1
    _capturing.depth = getattr(_capturing, "depth", 0) + 1
    try:
        yield
    finally:
        _capturing.depth -= 1
        with _lock:
            _captures -= 1
            if not _captures:
                _SCRIPTED.__call__ = _as_compiled
