"""Schedules of row kernels on a CPU."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RowSchedule:
    """``task_rows``: rows one parallel task does. ``keep_bytes``: a row's intermediate value is kept, not
    computed again, while it fits in this much scratch. ``lanes``: kept elements side by side when the reduced
    axis is not the innermost in memory."""

    task_rows: int
    keep_bytes: int
    lanes: int


def row_schedule(rows: int, reduced: int, threads: int, l2_bytes: int, serial_below: int = 16384) -> RowSchedule:
    """At least four tasks a thread where there is work for them; scratch within half of L2."""
    if rows * reduced <= serial_below:
        task_rows = max(rows, 1)
    else:
        least = max(1, serial_below // (2 * max(reduced, 1)))
        task_rows = max(1, min(max(least, 1), -(-rows // (4 * threads))))
    return RowSchedule(task_rows, l2_bytes // 2, 64)
