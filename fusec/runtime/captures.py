# SPDX-License-Identifier: Apache-2.0
"""Which captures run now: calls that these make of other compiled functions become part of them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class _Thread(threading.local):
    capturing = False


_thread = _Thread()


class Captures:
    """How many captures run now, in any thread."""

    __slots__ = ("_lock", "running")

    def __init__(self) -> None:
        self.running = 0
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def run(self) -> Iterator[None]:
        """While entered, this thread's calls of compiled functions become part of what is captured."""
        outer, _thread.capturing = _thread.capturing, True
        with self._lock:
            self.running += 1
        try:
            yield
        finally:
            with self._lock:
                self.running -= 1
            _thread.capturing = outer


captures = Captures()


def is_capturing() -> bool:
    """Whether this thread captures a function."""
    return captures.running > 0 and _thread.capturing
