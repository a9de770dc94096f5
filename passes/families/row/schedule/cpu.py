# SPDX-License-Identifier: Apache-2.0
"""Schedules of row kernels on a CPU."""

from __future__ import annotations

from dataclasses import dataclass

from fusec.passes.families.map.schedule.cpu import non_temporal_from
from fusec.passes.schedule.base import CpuSchedule
from fusec.target.cpu import CpuTarget


@dataclass(frozen=True)
class RowSchedule(CpuSchedule):
    """``task_rows``: rows one parallel task does. ``scratch_bytes``: a row's intermediate value is kept, not computed
    again, while it fits in this much scratch. ``lanes``: retained elements side by side when the reduced axis is not
    the innermost in memory. ``non_temporal_bytes``: results of at least so many bytes go past the caches, 0 for none.
    ``overlaps``: while a row is computed the next one is fetched. ``staged``: while a row is stored the ones behind it
    are reduced. ``wide_bytes``: what all rows read in 16 bits is widened once a task where it fits in so much
    scratch."""

    task_rows: int
    scratch_bytes: int
    lanes: int
    non_temporal_bytes: int = 0
    overlaps: bool = False
    staged: bool = False
    wide_bytes: int = 0


def row_schedule(rows: int, reduced: int, threads: int, target: CpuTarget, serial_below: int = 16384) -> RowSchedule:
    """At least four tasks a thread where there is work for them; scratch within half of L2."""
    if rows * reduced <= serial_below:
        task_rows = max(rows, 1)
    else:
        least = min(max(1, serial_below // (2 * max(reduced, 1))), -(-rows // (4 * threads)))
        task_rows = max(least, min(TASK // max(reduced, 1), -(-rows // (16 * threads))))
    overlaps = ROW_BYTES * reduced <= target.l2 // 8 and ROW_BYTES * rows * reduced > target.l2
    return RowSchedule(
        task_rows, target.l2 // 2, 64, non_temporal_from(target), overlaps, target.takes_rows_in_stages, target.l1 // 3
    )


TASK = 262144
"""Elements of a task where there are many: it ends by waiting for what it streamed, and its first row and its last
overlap no other. Softmax of 4096² on Zen 5, of a copy: tasks of 16 rows 0.88, of 32 rows 0.91, of 64 rows 0.93."""

ROW_BYTES = 4
"""Of an element of a row, about."""
