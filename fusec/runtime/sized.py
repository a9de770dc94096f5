# SPDX-License-Identifier: Apache-2.0
"""Programs of one range of extents, each with kernels scheduled for sizes up to some: a GPU's matmuls of few rows want
others than those of many.

Every one is right for all extents of the range. So there is one at first, for the sizes of the call that it is made
at, and another for sizes that calls have often had.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fusec.config import logger
from fusec.runtime.dynamic import SizeClass
from fusec.runtime.entry import Entry
from fusec.runtime.executable import Executable
from fusec.runtime.frequent import OFTEN

Write = Callable[[Executable, Sequence[tuple[int, Executable]], Callable[[int], Entry | None] | None], Entry]
log = logger("recompile")


class SizedEntry:
    """The entry of a plan for ranges. Safe to call from many threads.

    classes: at least one, the smallest first; the last has no ``upto``. build: the program that is scheduled for
    extents. write: the entry that runs a program, or for sizes up to some another, and that asks the function with the
    size, where one is given, for an entry to go to instead.
    """

    def __init__(
        self,
        classes: Sequence[SizeClass],
        build: Callable[[Mapping[str, int]], Executable],
        write: Write,
        size: int,
    ) -> None:
        self._classes, self._build, self._write = classes, build, write
        self._ends = [c.upto for c in classes if c.upto is not None]
        self._calls = [0] * len(classes)
        self._lock = threading.Lock()
        first = bisect_left(self._ends, size)
        self.executable = build(classes[first].usual)
        """The program that was made first."""
        self._made: dict[int, Executable] = {first: self.executable}
        self._refused: set[int] = set()
        self._entry = self._written()

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._entry(args, kwargs)

    @property
    def made(self) -> list[SizeClass]:
        """The classes that have programs."""
        return [self._classes[k] for k in sorted(self._made)]

    def _written(self) -> Entry:
        *smaller, last = sorted(self._made)
        programs = [(upto, self._made[k]) for k in smaller if (upto := self._classes[k].upto) is not None]
        whole = len(self._made) + len(self._refused) == len(self._classes)
        return self._write(self._made[last], programs, None if whole else self._other)

    def _other(self, size: int) -> Entry | None:
        """Counts a call; the entry to go to where it made a program."""
        k = bisect_left(self._ends, size)
        if k in self._made or k in self._refused:
            return None
        self._calls[k] += 1
        if self._calls[k] < OFTEN:
            return None
        with self._lock:
            if k not in self._made and k not in self._refused:
                self._make(k)
                self._entry = self._written()
        return self._entry

    def _make(self, k: int) -> None:
        try:
            self._made[k] = self._build(self._classes[k].usual)
        except Exception as error:  # there is one that serves these sizes
            self._refused.add(k)
            log.info("no program of its own for sizes up to %s: %s", self._classes[k].upto, error)
