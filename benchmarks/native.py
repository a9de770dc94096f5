"""C++ files of this folder, compiled for this machine."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fusec.target.cpu import cpu_target

Array = np.ndarray[Any, Any]


def native(name: str, *flags: str) -> ctypes.CDLL | None:
    """The file as a library; None without a compiler. WIDTH is the bytes of a vector."""
    if not shutil.which("g++"):
        return None
    source, width = Path(__file__).with_name(name), cpu_target().vector_bits // 8
    with tempfile.TemporaryDirectory() as folder:
        library = f"{folder}/{source.stem}.so"
        command = ["g++", "-O3", "-march=native", f"-DWIDTH={width}", "-shared", "-fPIC", *flags]
        subprocess.run([*command, str(source), "-o", library], check=True, capture_output=True)
        return ctypes.CDLL(library)


@cache
def _memory() -> ctypes.CDLL | None:
    library = native("memory.cpp", "-fopenmp", "-std=c++17")
    if library is not None:
        library.read_all.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        library.read_all.restype = ctypes.c_float
        library.copy_all.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        library.copy_all.restype = None
    return library


def reader(source: Array, threads: int) -> Callable[[], None] | None:
    """Reads every byte once. None without a compiler."""
    library = _memory()
    if library is None:
        return None
    return lambda: library.read_all(source.ctypes.data, source.nbytes, threads)


def streamed_copy(target: Array, source: Array, threads: int) -> Callable[[], None] | None:
    """A copy past the caches; ``target`` starts a cache line. None without a compiler."""
    library = _memory()
    if library is None:
        return None
    assert target.ctypes.data % 64 == 0
    assert source.nbytes % 64 == 0
    return lambda: library.copy_all(target.ctypes.data, source.ctypes.data, source.nbytes, threads)
