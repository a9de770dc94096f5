"""How many tasks share the keys of an attention."""

from __future__ import annotations

import pytest

from fusec.passes.families.attention.schedule.cpu import LEAST_KEYS, attention_candidates, key_parts
from fusec.target.cpu import cpu_target


@pytest.mark.parametrize(
    ("tasks", "keys", "threads", "parts"),
    [
        (1, 32768, 1, 1),
        (1, 32768, 2, 2),
        (3, 8192, 2, 2),  # three tasks keep one of two threads idle half of the time
        (4, 4096, 2, 1),
        (12, 1024, 2, 1),
        (1, 2 * LEAST_KEYS - 1, 2, 1),
        (1, 32768, 64, 64),
        (8, 4096, 64, 8),
        (12, 1024, 64, 4),
        (1, 0, 2, 1),
    ],
)
def test_parts(tasks, keys, threads, parts):
    assert key_parts(tasks, keys, threads) == parts


def test_threads_are_busy_evenly():
    for threads in (2, 16, 64):
        for tasks in range(1, 3 * threads):
            whole = tasks * key_parts(tasks, 65536, threads)
            assert whole / (-(-whole // threads) * threads) > 0.8, (tasks, threads)


def test_few_queries_have_few_lanes():
    sizes = [attention_candidates(n, 4096, 64, 64, 32, cpu_target("cpu:znver5"))[0].queries for n in (1, 16, 17, 64)]
    assert sizes == [16, 16, 32, 64]
