# SPDX-License-Identifier: Apache-2.0
"""Progress of long work, on a terminal."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fusec import config

PATIENCE = 2.0
"""Seconds that work takes before a bar is shown."""

Done = Callable[[], None]

_shown = threading.Lock()
"""Held by the one bar that may be shown: work within other work shows none of its own."""


@contextmanager
def bar(what: str, total: int) -> Iterator[Done]:
    """On a terminal and after :data:`PATIENCE` a bar with the time left. Call what it gives after each of ``total``."""
    if not sys.stderr.isatty() or not _shown.acquire(blocking=False):
        yield lambda: None
        return
    columns = (
        *(TextColumn("fusec: {task.description}", markup=False), BarColumn(), MofNCompleteColumn()),
        *(TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()),
    )
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    task = progress.add_task(what, total=total)
    timer = threading.Timer(PATIENCE, progress.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda: progress.advance(task)
    finally:
        timer.cancel()
        timer.join()
        progress.stop()
        _shown.release()


@contextmanager
def tuning_bar(kernel: str, candidates: int) -> Iterator[Done]:
    """A line in the log, and a bar."""
    config.logger("tune").info("%s: measuring %d schedules", kernel, candidates)
    with bar(f"tuning {kernel}", candidates) as done:
        yield done
