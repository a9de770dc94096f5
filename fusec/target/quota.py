# SPDX-License-Identifier: Apache-2.0
"""How many processors this process may keep busy: those it may run on, and the share of time that Linux gives it.

A container's limit (``docker run --cpus=2``, a Kubernetes limit) is a quota of time in a control group, which leaves
the process all processors to run on: with a thread on each, the quota is used up early in each period, and all wait.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil
from pathlib import Path

_MOUNTED = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def usable_processors(mounted: Path = _MOUNTED, own: Path = _OWN) -> int:
    """The processors of the affinity mask, or as many as the quota amounts to (rounded up), where these are fewer."""
    quotas = [quota for folder in _folders(mounted, own) if (quota := _quota(folder)) is not None]
    return max(1, min([len(os.sched_getaffinity(0)), *map(ceil, quotas)]))


@contextmanager
def within_quota() -> Iterator[int]:
    """While entered, an OpenMP library that is loaded takes :func:`usable_processors` for its number of threads.

    It reads its environment when it is loaded, and what it finds there holds for all threads that call it. A number
    that the environment has already stays.
    """
    threads = usable_processors()
    told = _THREADS in os.environ or threads == len(os.sched_getaffinity(0))
    if not told:
        os.environ[_THREADS] = str(threads)
    try:
        yield threads
    finally:
        if not told:
            del os.environ[_THREADS]


_THREADS = "OMP_NUM_THREADS"


def _folders(mounted: Path, own: Path) -> Iterator[Path]:
    """The folders of the process's control groups for processors, and of the groups that these are in.

    A line of ``own`` is ``number:controllers:path``, ``0::path`` in version 2; within a container the path may be
    the host's, of which only the root is mounted.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            roots = [mounted, mounted / "unified"]
        elif "cpu" in controllers.split(","):
            roots = [mounted / controllers, mounted / "cpu"]
        else:
            continue
        for root in roots:
            group = root / path.lstrip("/")
            yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(root))


def _quota(folder: Path) -> float | None:
    """Processors' worth of time that a control group gets; None where it has no limit."""
    try:
        if (folder / "cpu.max").exists():
            limit, period = (folder / "cpu.max").read_text().split()
        else:
            limit, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return float(limit) / float(period) if limit != "max" and float(limit) > 0 else None
    except (OSError, ValueError):
        return None
