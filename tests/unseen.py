"""Notes that code takes while it is captured, kept where no capture finds or takes back state."""

from __future__ import annotations

import ctypes
from typing import Any


class Notes:
    """A list of up to 10,000 values."""

    def __init__(self) -> None:
        self._held: Any = (ctypes.py_object * 10000)()
        self._count = ctypes.c_size_t(0)

    def add(self, value: object) -> None:
        self._held[self._count.value] = value
        self._count.value += 1

    def number(self) -> int:
        return int(self._count.value)

    def take(self) -> list[Any]:
        """The notes since the last time."""
        number, self._count.value = self._count.value, 0
        return list(self._held[:number])
