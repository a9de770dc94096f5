"""Progress of long work, on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fusec import config


@contextmanager
def tuning_bar(kernel: str, candidates: int) -> Iterator[Callable[[], None]]:
    """A line in the log and, on a terminal, a bar with the time left."""
    config.logger("tune").info("%s: measuring %d schedules", kernel, candidates)
    if not sys.stderr.isatty():
        yield lambda: None
        return
    columns = (TextColumn("fusec: tuning {task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(kernel, total=candidates)
        yield lambda: bar.advance(task)
