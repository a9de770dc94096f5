# SPDX-License-Identifier: Apache-2.0
"""Host memory that a GPU copies from and to: pinned buffers, the user's own arrays pinned, and copies ahead of need."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from fusec.errors import TargetError

_COPY_BYTES = 1 << 20
"""Of what one thread copies at least."""

_WORTH_PINNING = 16 << 20
"""Bytes of an array from which on it is pinned where it lies, the second time that it comes."""

Array = np.ndarray[Any, Any]


class Stages:
    """Pieces of arrays copied to pinned buffers by threads, some pieces ahead of the one that is asked for.

    pieces[n][k]: the part of input ``k`` that piece ``n`` needs in a buffer; every piece needs the same inputs.
    A whole piece is one thread's work where there are many of them: on an H200's host, 64 copies of 16 MB took 57 ms
    with each cut up among 8 threads, 25 with all in flight.
    """

    def __init__(self, pieces: Sequence[dict[int, Array]], behind: int) -> None:
        self._pieces = pieces
        self._pool, threads = _copiers()
        self._ahead = max(1, min(threads, len(pieces)))
        self._parts = max(1, threads // self._ahead)
        self._buffers = [_buffers(pieces) for _ in range(min(self._ahead + behind, len(pieces)))]
        self._copies: dict[int, list[Future[None]]] = {}
        self._free: list[Callable[[], object] | None] = [None] * len(self._buffers)

    def take(self, number: int) -> dict[int, Array]:
        """The buffers that hold piece ``number``; pieces are asked for in order."""
        for number_ahead in range(number, min(number + self._ahead, len(self._pieces))):
            if number_ahead not in self._copies:
                self._copies[number_ahead] = list(self._start(number_ahead))
        for copy in self._copies[number]:
            copy.result()
        self._copies[number] = []
        return self._views(number)

    def release(self, number: int, wait: Callable[[], object]) -> None:
        """Piece ``number`` may be overwritten once ``wait`` has returned."""
        self._free[number % len(self._buffers)] = wait

    def _views(self, number: int) -> dict[int, Array]:
        buffers = self._buffers[number % len(self._buffers)]
        return {k: np.ndarray(a.shape, a.dtype, buffers[k]) for k, a in self._pieces[number].items()}

    def _start(self, number: int) -> Iterator[Future[None]]:
        wait = self._free[number % len(self._buffers)]
        if wait is not None:
            wait()
        for k, target in self._views(number).items():
            for a, b in _parts(target, self._pieces[number][k], self._parts):
                yield self._pool.submit(np.copyto, a, b)


def _buffers(pieces: Sequence[dict[int, Array]]) -> dict[int, Array]:
    largest = {k: max(piece[k].nbytes for piece in pieces) for k in pieces[0]}
    return {k: pinned_empty((n,), np.dtype(np.uint8)) for k, n in largest.items()}


class _Pinned:
    """The user's arrays that were pinned where they lie: from the second time that one comes until it is freed."""

    def __init__(self) -> None:
        self._seen: dict[int, weakref.ref[Array]] = {}
        self._lock = threading.Lock()

    def offer(self, array: Array) -> bool:
        """Whether the array is pinned now. One that is small, or not in memory of its own, never is."""
        owner = _owner(array)
        if owner is None or not array.flags.c_contiguous or array.nbytes < _WORTH_PINNING:
            return False
        with self._lock:
            key = id(owner)
            known = self._seen.get(key)
            if known is None or known() is not owner:
                self._seen[key] = weakref.ref(owner, lambda _: self._seen.pop(key, None))
                return False
        runtime, start = load_cupy().cuda.runtime, array.ctypes.data
        try:
            runtime.hostRegister(start, array.nbytes, 1)  # cudaHostRegisterPortable
        except runtime.CUDARuntimeError:  # a part of it is pinned already, or the system refuses
            return False
        weakref.finalize(owner, runtime.hostUnregister, start).atexit = False
        return True


PINNED = _Pinned()
"""Of this process."""


def _owner(array: Array) -> Array | None:
    """The array that the memory belongs to; None where it is no array's own."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array if type(array) is np.ndarray and array.flags.owndata else None


@cache
def load_cupy() -> Any:
    """CuPy. TargetError where it is not installed or has no device."""
    try:
        import cupy
    except ImportError:
        raise TargetError(
            "arrays in host memory go to a GPU through CuPy, which is not installed: pip install fusec[cupy]"
        ) from None
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise TargetError(f"no GPU here: {error}") from None
    if not count:
        raise TargetError("no GPU here")
    return cupy


def pinned_empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An array in pinned memory of CuPy's pool, which gets it back with the last reference to the array.

    Where the system refuses to pin more, the array lies in plain memory: copies to it are slower, and right.
    """
    nbytes = prod(shape) * dtype.itemsize
    if not nbytes:
        return np.empty(shape, dtype)
    cupy = load_cupy()
    try:
        memory = cupy.cuda.alloc_pinned_memory(nbytes)
    except (cupy.cuda.runtime.CUDARuntimeError, MemoryError):
        return np.empty(shape, dtype)
    return np.frombuffer(memory, dtype, prod(shape)).reshape(shape)


def is_pinned(array: Array) -> bool:
    """Whether a copy to or from the array can run beside others."""
    cupy = load_cupy()
    kind = cupy.cuda.runtime.pointerGetAttributes(array.ctypes.data).type
    return int(kind) == 1  # cudaMemoryTypeHost


@cache
def _copiers() -> tuple[ThreadPoolExecutor, int]:
    count = max(1, min(8, (os.cpu_count() or 2) - 1))
    return ThreadPoolExecutor(count, "fusec-copy"), count


def copy_with_threads(target: Array, source: Array) -> None:
    """``target[...] = source``, in parts along the first axis where that pays."""
    copy: Callable[..., None] = np.copyto
    pool, count = _copiers()
    pairs = _parts(target, source, count)
    if len(pairs) == 1:
        copy(target, source)
    else:
        list(pool.map(copy, *zip(*pairs, strict=True)))


def _parts(target: Array, source: Array, count: int) -> list[tuple[Array, Array]]:
    """At most ``count`` parts of a copy, none of them small."""
    if count == 1 or source.ndim == 0 or source.nbytes < 2 * _COPY_BYTES:
        return [(target, source)]
    if source.flags.c_contiguous:
        target, source = target.reshape(-1), source.reshape(-1)
    parts = min(count, source.shape[0], source.nbytes // _COPY_BYTES)
    ends = [source.shape[0] * k // parts for k in range(parts + 1)]
    return [(target[a:b], source[a:b]) for a, b in pairwise(ends)]
