"""Parallel loops: every point once, whatever the threads; teams in chains; other cores; forked processes."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from tile_harness import buffer, const, iters, kernel, load, op, sym

from fusec.codegen.tvm import parallel
from fusec.codegen.tvm.build import compile_kernels
from fusec.ir.types import f32
from fusec.target.cpu import cpu_target
from fusec.tile.nodes import Grid, Iter, Store

POINTS = (2, 3, 31, 32, 33, 300)
WIDTH = 16


def _kernel(points):
    """Adds one to each element, a row of 16 a point."""
    x, out = buffer("x", f32, (points, WIDTH)), buffer("out", f32, (points, WIDTH))
    b, i = sym("b", points), sym("i", WIDTH)
    body = (Store(iters((i, WIDTH)), out, (b, i), op("add", load(x, b, i), const(1.0, f32))),)
    return kernel(f"add{points}", (x, out), (Grid((Iter(b, points),), body),))


@pytest.fixture(scope="module")
def module():
    return compile_kernels([_kernel(points) for points in POINTS], cpu_target())


@pytest.fixture
def threads():
    yield parallel.set_threads
    parallel.set_threads(len(os.sched_getaffinity(0)))


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("points", POINTS)
def test_every_point_is_run_once(module, threads, points, count):
    threads(count)
    function = module.function(f"add{points}")
    run, table, kept = module.chain([(f"add{points}", [(1, 0, 0), (1, 0, 0)])] * 5)
    x = np.zeros((points, WIDTH), np.float32)
    for k in range(20):
        function(x.ctypes.data, x.ctypes.data)
        run(table, x.ctypes.data)
        assert (x == 6 * (k + 1)).all()
    del kept


def test_the_number_of_points_comes_first_in_a_closure():
    """Where the launcher looks for it; were it elsewhere, the right results would come slowly."""
    text = compile_kernels([_kernel(37)], cpu_target()).llvm()
    name = re.search(r"(%closure_loop_parallel\S*) = type { i32, ", text)
    assert name is not None
    assert re.search(r"store i32 37, ptr %\d+, align 8", text)


def test_kernels_of_several_loops_change_teams_while_others_run(module, threads):
    threads(2)
    launches = [(f"add{points}", [(1, 0, 0), (1, 0, 0)]) for points in (300, 2, 33, 300)]
    run, table, kept = module.chain(launches)
    wrong = []

    def work():
        x = np.zeros((300, WIDTH), np.float32)
        for k in range(300):
            run(table, x.ctypes.data)
            if not ((x[33:] == 2 * (k + 1)).all() and (x[:2] == 4 * (k + 1)).all()):
                wrong.append(k)

    runners = [threading.Thread(target=work) for _ in range(3)]
    for runner in runners:
        runner.start()
    for runner in runners:
        runner.join()
    assert not wrong
    del kept


def test_a_failure_in_a_team_is_told_and_the_next_call_runs(module, threads):
    threads(2)
    launches = [("add33", [(1, 0, 0), (1, 0, 0)])] * 3
    run, table, kept = module.chain([*launches, ("add33", [(1, 0, 0)]), *launches])
    good, good_table, good_kept = module.chain(launches)
    x = np.zeros((33, WIDTH), np.float32)
    for k in range(4):
        with pytest.raises(TypeError, match="add33"):
            run(table, x.ctypes.data)
        assert (x == 6 * k + 3).all()
        good(good_table, x.ctypes.data)
        assert (x == 6 * k + 6).all()
    del kept, good_kept


PROGRAM = """
import os, sys
import numpy as np
from fusec.codegen.tvm import parallel
from fusec.codegen.tvm.module import CompiledModule
module = CompiledModule.from_bytes(open(sys.argv[1], "rb").read())
run, table, kept = module.chain([("add300", [(1, 0, 0), (1, 0, 0)])] * 10)
def check(count):
    x = np.zeros((300, 16), np.float32)
    for k in range(30):
        run(table, x.ctypes.data)
        assert (x == 10 * (k + 1)).all()
"""

ON_ONE_CORE = "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nparallel.set_threads(4)\ncheck(4)\n"
FORKED = """
parallel.set_threads(2)
check(2)
child = os.fork()
if child == 0:
    parallel.set_threads(1)
    try:
        check(1)
    except BaseException:
        os._exit(1)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.parametrize("text", [ON_ONE_CORE, FORKED])
def test_fewer_cores_than_threads_and_forked_processes(module, tmp_path: Path, text):
    saved = tmp_path / "module"
    saved.write_bytes(module.to_bytes())
    subprocess.run([sys.executable, "-c", PROGRAM + text, str(saved)], check=True, timeout=60)


WITH_TORCH = """
import torch
import fusec

@fusec.jit
def f(x):
    return torch.softmax(torch.softmax(x, 0), 1)

x = torch.randn(400, 64)
expected = torch.softmax(f.dispatcher.function(x) * 2, 0)
counts = []
for count in (1, 2, 3, 1, 2):
    torch.set_num_threads(count)
    for _ in range(10):
        got = torch.softmax(f(x) * 2, 0)
        assert torch.allclose(got, expected, atol=1e-6)
    counts.append(len(os.listdir("/proc/self/task")))
assert counts[-1] <= counts[2], counts  # one pool for both
print(counts)
"""


def test_torchs_pool_and_its_number_of_threads_are_shared():
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "-c", "import os\n" + WITH_TORCH], check=True, timeout=120, capture_output=True, text=True
    )
    one, two, three, *_ = map(int, done.stdout.strip(" []\n").split(","))
    assert two <= one + 1
    assert three <= one + 2


def test_a_team_is_no_larger_than_the_number_asked_for():
    """Its memory is as large as that number, which need not be OpenMP's own."""
    said = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 2)
    alone = compile_kernels([_kernel(300)], cpu_target())
    library = parallel._openmp()
    assert library is not None
    openmp = (library.GOMP_parallel, library.omp_get_num_threads, library.omp_get_thread_num, said)
    process = ctypes.CDLL(None)
    addresses = map(parallel._address, (*openmp, process.pthread_self, process.sched_yield))
    alone.module.get_function(parallel.SETUP)(*addresses)
    before = len(os.listdir("/proc/self/task"))
    run, table, kept = alone.chain([("add300", [(1, 0, 0), (1, 0, 0)])] * 3)
    x = np.zeros((300, WIDTH), np.float32)
    seen = []

    def work():
        library.omp_set_num_threads(7)
        for _ in range(5):
            run(table, x.ctypes.data)
            seen.append(len(os.listdir("/proc/self/task")))

    caller = threading.Thread(target=work)
    caller.start()
    caller.join()
    assert (x == 15).all()
    assert max(seen) <= before + 2, (seen, before)  # the caller and one more
    del kept
