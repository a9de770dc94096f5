# SPDX-License-Identifier: Apache-2.0
"""A lock between threads and processes: a file that the one who holds it has locked with the system.

Not the package filelock: on Python 3.12 and later importing it adds an audit hook to the process, which costs 190 ns at
each ``id()``, at each read of a function's code, and at whatever else raises audit events.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

if sys.platform == "win32":
    import msvcrt

    def _lock(handle: int) -> None:
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)

    def _unlock(handle: int) -> None:
        os.lseek(handle, 0, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)
else:
    import fcntl

    def _lock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _unlock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_UN)  # closing is not enough where a forked child has the file open too


_HELD_BY_OTHERS = (BlockingIOError, PermissionError)
"""What the systems raise when another has locked the file."""

_PAUSE = 0.05


@contextlib.contextmanager
def locked(path: Path, seconds: float) -> Iterator[None]:
    """Entered once the file, which is made where there is none, is locked; the system frees a killed process's lock.

    TimeoutError where others hold it so long, OSError where the file can't be opened or locked.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _wait(handle, path, time.monotonic() + seconds)
        try:
            yield
        finally:
            _unlock(handle)
    finally:
        os.close(handle)


def _wait(handle: int, path: Path, end: float) -> None:
    while True:
        try:
            return _lock(handle)
        except _HELD_BY_OTHERS:
            if time.monotonic() >= end:
                raise TimeoutError(f"others hold {path}") from None
        time.sleep(_PAUSE)
