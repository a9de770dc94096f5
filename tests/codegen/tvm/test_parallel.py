"""Kernels use as many threads as PyTorch does, from one pool, whatever sets their number; forked processes too."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

pytest.importorskip("torch")

Run = Callable[..., None]

BEGIN = """
import os, threading
import torch
import fusec

@fusec.jit
def rows(x):
    return torch.softmax(x, 1)

def threads():
    return len(os.listdir("/proc/self/task"))

x = torch.randn(400, 256)
"""

AGREE = """
before = threads()
rows(x)
assert threads() - before == torch.get_num_threads() - 1, (threads(), before, torch.get_num_threads())
"""

SET_AT_RUN_TIME = """
for count in (1, 2, 3):
    torch.set_num_threads(count)
    rows(x)
before = threads()
torch.relu(torch.randn(1000, 1000))  # PyTorch's own loop finds the threads that are there
assert threads() <= before
"""

NEW_THREAD = """
def work(count):
    before = threads()
    rows(x)
    found.append((threads() - before, torch.get_num_threads()))

found = []
rows(x)
for count in (1, 2):
    torch.set_num_threads(count)  # OpenMP's own number is each thread's
    thread = threading.Thread(target=work, args=(count,))
    thread.start()
    thread.join()
assert found == [(0, 1), (1, 2)], found
"""

FORKED = """
import multiprocessing
from torch.utils.data import DataLoader

torch.set_num_threads(2)
big = torch.randn(1000, 1000)
wanted, positive = rows(x), torch.relu(big)

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, k):
        return rows(x)[k]

def check(k):
    return torch.equal(rows(x), wanted) and torch.equal(torch.relu(big), positive)

for _ in range(2):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(check, range(4)) == [True] * 4
    assert check(0)
    (batch,) = DataLoader(Rows(), batch_size=4, num_workers=1, multiprocessing_context="fork")
    assert torch.allclose(batch, wanted[:4])
"""

MANY_CALLERS = """
torch.set_num_threads(2)
inputs = [torch.randn(400, 256) for _ in range(4)]
wanted = [torch.softmax(i, 1) for i in inputs]
most = []

def work(k):
    for _ in range(50):
        assert torch.allclose(rows(inputs[k]), wanted[k], atol=1e-6)
        most.append(threads())

rows(x)
before = threads()
callers = [threading.Thread(target=work, args=(k,)) for k in range(4)]
for caller in callers:
    caller.start()
for caller in callers:
    caller.join()
assert len(most) == 200
assert max(most) - before <= 4 * 2, (max(most), before)  # as many as PyTorch's operators would have
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a program in a process of its own. They share a cache: without the compiler they start sooner."""
    cache = str(tmp_path_factory.mktemp("cache"))

    def run(text: str, **environment: str) -> None:
        done = subprocess.run(
            [sys.executable, "-c", BEGIN + text],
            env={**os.environ, "FUSEC_CACHE_DIR": cache, **environment},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]

    return run


@pytest.mark.parametrize(
    "environment", [{"OMP_NUM_THREADS": "3"}, pytest.param({"TVM_NUM_THREADS": "5"}, marks=pytest.mark.nightly)]
)
def test_the_number_is_pytorchs(run: Run, environment: dict[str, str]) -> None:
    run(AGREE, **environment)


@pytest.mark.nightly
def test_the_number_on_one_core_is_pytorchs(run: Run) -> None:
    run("os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n" + AGREE)


def test_numbers_set_at_run_time_and_many_callers(run: Run) -> None:
    run(AGREE + SET_AT_RUN_TIME + NEW_THREAD + MANY_CALLERS)


NUMPYS = """
import os, sys, threading
if {hidden}:
    sys.modules["torch"] = None  # as where it is not installed
import numpy as np
import fusec
import fusec.target.quota as quota

quota.usable_processors = lambda: {usable}
os.sched_getaffinity = lambda pid: set(range(4))

@fusec.jit
def rows(x):
    return np.exp(x - x.max(1, keepdims=True))

def work():
    before = len(os.listdir("/proc/self/task"))
    rows(x)
    found.append(len(os.listdir("/proc/self/task")) - before + 1)

x, found = np.random.rand(400, 256), []
fusec.compile(rows, x)
work()
other = threading.Thread(target=work)
other.start()
other.join()
assert found == [{threads}, {threads}], found
assert os.environ.get("OMP_NUM_THREADS") == {variable!r}
"""


@pytest.mark.parametrize(
    ("usable", "variable", "threads", "hidden"),
    [
        (3, None, 3, True),
        pytest.param(1, None, 1, True, marks=pytest.mark.nightly),
        (2, "3", 3, True),
        pytest.param(1, None, 1, False, marks=pytest.mark.nightly),
    ],
)
def test_a_quota_of_time_limits_them(usable: int, variable: str | None, threads: int, hidden: bool) -> None:
    """In a process that did not load PyTorch itself; on every Python thread. OMP_NUM_THREADS goes before."""
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", NUMPYS.format(usable=usable, threads=threads, variable=variable, hidden=hidden)],
        env={**environment, **({"OMP_NUM_THREADS": variable} if variable else {})},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_forked_processes(run: Run) -> None:
    run(FORKED)
