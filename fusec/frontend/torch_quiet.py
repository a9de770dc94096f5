# SPDX-License-Identifier: Apache-2.0
"""PyTorch's fake tensors log a traceback for each error that they raise; the user gets the error itself."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_capturing = threading.local()


class _NotWhileCapturing(logging.Filter):
    """Drops records that this thread's capture causes; other threads and other uses of fake tensors log as before."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not getattr(_capturing, "depth", 0)


_filter = _NotWhileCapturing()


@contextmanager
def quiet_fake_tensors() -> Iterator[None]:
    """Runs the body without fake tensors' own error log."""
    logging.getLogger("torch._subclasses.fake_tensor").addFilter(_filter)
    _capturing.depth = getattr(_capturing, "depth", 0) + 1
    try:
        yield
    finally:
        _capturing.depth -= 1
