"""PyTorch notes for the whole process whether a dispatch mode is on, and each mode puts back what it found.

Modes of several threads end in another order than they began: the last to end puts back that there is one, and from
then on guards see modes that are none. So what was noted before the first of them is put back after the last.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch.utils import _python_dispatch

_NAMES = (
    "_is_in_torch_dispatch_mode",
    "_is_in_non_infra_torch_dispatch_mode",
    "_is_in_any_mode_without_ignore_compile_internals",
)
_lock = threading.Lock()
_running = 0
_before: Mapping[str, bool] = {}


@contextmanager
def dispatch_modes() -> Iterator[None]:
    """Runs a body that enters dispatch modes, on any thread."""
    global _running, _before
    with _lock:
        if not _running:
            _before = {name: vars(_python_dispatch)[name] for name in _NAMES if hasattr(_python_dispatch, name)}
        _running += 1
    try:
        yield
    finally:
        with _lock:
            _running -= 1
            if not _running:
                _put_back(_before)


def _put_back(noted: Mapping[str, bool]) -> None:
    module: Any = _python_dispatch
    for name, value in noted.items():
        setattr(module, name, value)
    told = getattr(module, "set_is_in_mode_without_ignore_compile_internals", None)
    if told is not None:
        told(noted[_NAMES[-1]])
