"""Threads: how many TVM uses, and that it does not pin them."""

from __future__ import annotations

import os

import tvm

_ALL_CORES = 1


def set_threads(count: int) -> None:
    """Kernels launched from now on use this many threads: on the calling thread at once, on others from their first
    parallel launch. ValueError for less than one.

    TVM keeps a pool for each thread that launches, and by default takes half of the machine's hardware threads
    and pins them; both are set through its environment variables, the only way that reaches pools not yet made.
    """
    if count < 1:
        raise ValueError(f"a kernel needs at least one thread, not {count}")
    os.environ["TVM_NUM_THREADS"] = str(count)
    os.environ["TVM_BIND_THREADS"] = "0"
    tvm.get_global_func("runtime.config_threadpool")(_ALL_CORES, count)
