# SPDX-License-Identifier: Apache-2.0
"""Parallel loops on the OpenMP pool that PyTorch uses, instead of TVM's own.

Two pools that both spin while they wait take the cores from each other: alternating library calls and kernels
then runs at half speed. So a module brings a launcher of its own (``launcher.py``) that hands TVM's loop closures to
``GOMP_parallel``. ``torch.set_num_threads`` holds for it.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

from fusec.notices import SettingWarning
from fusec.packages import is_there
from fusec.runtime.telling import warn_user
from fusec.target.quota import usable_processors, within_quota

SETUP = "fusec_setup"
"""Name of a module's function that takes the addresses of the OpenMP functions."""


def prepare() -> None:
    """To be called before a module is loaded: without an OpenMP library, loading looks for TVM's pool."""
    if _openmp() is None and is_there("tvm"):
        _prepare_tvm_pool()


def attach(module: Any) -> None:
    """Makes a loaded module's parallel loops run on OpenMP, if there is an OpenMP library; on the calling thread where
    there is neither that nor TVM's pool."""
    library = _openmp()
    if library is None and is_there("tvm"):
        return
    setup = module.get_function(SETUP)
    if library is None:
        openmp = (_never, _one, _zero, _one)
        _tell_serial()
    else:
        most = _torchs_number() or library.omp_get_max_threads
        openmp = (library.GOMP_parallel, library.omp_get_num_threads, library.omp_get_thread_num, most)
    process = ctypes.CDLL(None)
    setup(*map(_address, (*openmp, process.pthread_self, process.sched_yield)))
    _end_threads_before_forks()


def set_threads(count: int) -> None:
    """Kernels that this thread launches use ``count`` threads, as after ``torch.set_num_threads``.

    ValueError for less than one.
    """
    if count < 1:
        raise ValueError(f"a kernel needs at least one thread, not {count}")
    library = _openmp()
    if library is not None:
        torchs = _torchs_number()
        if torchs is not None:
            torchs()  # which gives a new thread the process's number, and must not do so later
        library.omp_set_num_threads(count)
        return
    if not is_there("tvm"):
        return
    os.environ["TVM_NUM_THREADS"] = str(count)
    _prepare_tvm_pool()
    import tvm_ffi

    tvm_ffi.get_global_func("runtime.config_threadpool")(_ALL_CORES, count)


_one = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 1)
_zero = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 0)
_never = ctypes.CFUNCTYPE(None)(lambda: None)  # one thread opens no region


@cache
def _tell_serial() -> None:
    text = "kernels run on one thread: GNU's OpenMP library (libgomp.so.1; Debian's libgomp1) is not installed"
    warn_user(text, SettingWarning)


_ALL_CORES = 1
_SOFT = 1
"""``omp_pause_soft``: what OpenMP allocated may stay."""


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _openmp() -> Any | None:
    """GNU's OpenMP library: the copy that torch has loaded, else the system's; None without either."""
    if "torch" in sys.modules:
        process = ctypes.CDLL(None)
        if hasattr(process, "GOMP_parallel"):
            return process
    try:
        return _systems_openmp()
    except OSError:
        return None


@cache
def _systems_openmp() -> Any:
    with within_quota():
        return ctypes.CDLL("libgomp.so.1", mode=ctypes.RTLD_GLOBAL)


def _torchs_number() -> Any | None:
    """PyTorch's function for the number of threads; None without PyTorch, or where it does not show the function.

    OpenMP has a number for each thread. This function sets it where ``torch.set_num_threads`` was called in another.
    """
    torch = sys.modules.get("torch")
    if torch is None or torch.__file__ is None:
        return None
    try:
        return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))[_TORCHS_NUMBER]
    except (OSError, AttributeError):
        return None


_TORCHS_NUMBER = "_ZN2at15get_num_threadsEv"
"""``at::get_num_threads()``, as compilers spell it."""


@cache
def _end_threads_before_forks() -> None:
    """A child process has none of the pool's threads and would wait for them for ever, PyTorch's operators too. So the
    pool of the thread that forks ends before; both processes make a new one when they need it."""
    pause = getattr(_openmp(), "omp_pause_resource_all", None)
    if pause is not None and hasattr(os, "register_at_fork"):
        os.register_at_fork(before=lambda: pause(_SOFT))


def _prepare_tvm_pool() -> None:
    """TVM takes half the hardware threads and pins them (the caller too) unless its environment says otherwise."""
    import tvm  # noqa: F401  (its runtime library brings the pool)

    os.environ.setdefault("TVM_NUM_THREADS", str(usable_processors()))
    os.environ["TVM_BIND_THREADS"] = "0"
