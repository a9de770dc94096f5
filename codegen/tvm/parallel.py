"""Parallel loops on the OpenMP pool that PyTorch uses, instead of TVM's own.

Two pools that both spin while they wait take the cores from each other: alternating library calls and kernels
then runs at half speed. So a module brings a launcher of its own, in LLVM IR, that hands TVM's loop closures to
``GOMP_parallel``. It cuts a grid into a few tasks a thread, which threads take in turn; so an uneven grid (a
causal mask) is balanced, and so is a machine with other work. ``torch.set_num_threads`` holds for it.

The types and the calling convention are those of TVM's ``TVMBackendParallelLaunch`` (c_backend_api.h):
a closure is ``int (*)(int task, {void* sync, int tasks}*, void* data)``.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

import tvm_ffi

SETUP = "fusec_setup"
"""Name of a module's function that takes the addresses of the OpenMP functions."""

TASKS_PER_THREAD = 16

LAUNCHER_IR = f"""
@__TVMBackendParallelLaunch = external global ptr
@fusec_gomp_parallel = weak global ptr null
@fusec_num_threads = weak global ptr null
declare i32 @fusec_worker(ptr)
declare i32 @fusec_launch(ptr, ptr, i32)
define i32 @fusec_worker_impl(ptr %job) {{
entry:
  %env = alloca {{ ptr, i32 }}, align 8
  %closure = load ptr, ptr %job
  %data_at = getelementptr i8, ptr %job, i64 8
  %data = load ptr, ptr %data_at
  %next = getelementptr i8, ptr %job, i64 16
  %count_threads = load ptr, ptr @fusec_num_threads
  %threads = call i32 %count_threads()
  %share = udiv i32 256, %threads
  %few = icmp ult i32 %share, {TASKS_PER_THREAD}
  %most = select i1 %few, i32 %share, i32 {TASKS_PER_THREAD}
  %none = icmp eq i32 %most, 0
  %each = select i1 %none, i32 1, i32 %most
  %tasks = mul i32 %threads, %each
  store ptr null, ptr %env
  %tasks_at = getelementptr i8, ptr %env, i64 8
  store i32 %tasks, ptr %tasks_at
  br label %take
take:
  %task = atomicrmw add ptr %next, i32 1 monotonic
  %left = icmp slt i32 %task, %tasks
  br i1 %left, label %run, label %done
run:
  %status = call i32 %closure(i32 %task, ptr %env, ptr %data)
  br label %take
done:
  ret i32 0
}}
define i32 @fusec_launch_impl(ptr %closure, ptr %data, i32 %tasks) {{
  %job = alloca [3 x i64], align 16
  store ptr %closure, ptr %job
  %data_at = getelementptr i8, ptr %job, i64 8
  store ptr %data, ptr %data_at
  %next = getelementptr i8, ptr %job, i64 16
  store i64 0, ptr %next
  %parallel = load ptr, ptr @fusec_gomp_parallel
  call void %parallel(ptr @fusec_worker, ptr %job, i32 0, i32 0)
  ret i32 0
}}
define i32 @fusec_use(i64 %parallel, i64 %count_threads) {{
  %p = inttoptr i64 %parallel to ptr
  %c = inttoptr i64 %count_threads to ptr
  store ptr %p, ptr @fusec_gomp_parallel
  store ptr %c, ptr @fusec_num_threads
  store ptr @fusec_launch, ptr @__TVMBackendParallelLaunch
  ret i32 0
}}
"""


def prepare() -> None:
    """To be called before a module is loaded: without an OpenMP library, loading looks for TVM's pool."""
    if _openmp() is None:
        _prepare_tvm_pool()


def attach(module: Any) -> None:
    """Makes a loaded module's parallel loops run on OpenMP, if there is an OpenMP library."""
    library = _openmp()
    if library is None:
        return
    setup = module.get_function(SETUP)
    setup(_address(library.GOMP_parallel), _address(library.omp_get_num_threads))


def set_threads(count: int) -> None:
    """Kernels that this thread launches use ``count`` threads, as after ``torch.set_num_threads``.

    ValueError for less than one.
    """
    if count < 1:
        raise ValueError(f"a kernel needs at least one thread, not {count}")
    library = _openmp()
    if library is not None:
        library.omp_set_num_threads(count)
        return
    os.environ["TVM_NUM_THREADS"] = str(count)
    _prepare_tvm_pool()
    tvm_ffi.get_global_func("runtime.config_threadpool")(_ALL_CORES, count)


_ALL_CORES = 1


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _openmp() -> Any | None:
    """GNU's OpenMP library: the copy that torch has loaded, else the system's; None without either."""
    if "torch" in sys.modules:
        process = ctypes.CDLL(None)
        if hasattr(process, "GOMP_parallel"):
            return process
    try:
        return ctypes.CDLL("libgomp.so.1", mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return None


def _prepare_tvm_pool() -> None:
    """TVM takes half the hardware threads and pins them (the caller too) unless its environment says otherwise."""
    import tvm  # noqa: F401  (its runtime library brings the pool)

    os.environ.setdefault("TVM_NUM_THREADS", str(len(os.sched_getaffinity(0))))
    os.environ["TVM_BIND_THREADS"] = "0"
