"""Reading and copying as fast as memory allows: the limits of what it bounds, to be timed in turn with the peers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from benchmarks.harness import Peer
from benchmarks.native import reader, streamed_copy
from benchmarks.peers import THREADS
from fusec.runtime.memory import allocate

Array = np.ndarray[Any, Any]


def read_peer(nbytes: int) -> dict[str, Peer]:
    """``read``: every byte of memory of its own once, in large pages; by NumPy where there is no compiler."""
    memory = _filled(nbytes)
    read = reader(memory, THREADS)
    if read is not None:
        return {"read": Peer(read)}
    pool, parts = ThreadPoolExecutor(THREADS), np.array_split(memory.view(np.float32), THREADS)
    return {"read": Peer(lambda: list(pool.map(np.max, parts)))}


def copy_peers(source: Array) -> dict[str, Peer]:
    """``copyto``: NumPy's, each thread a part of an array that is there already; ``copy``: past the caches."""
    target = _filled(source.nbytes).view(source.dtype).reshape(source.shape)
    pool = ThreadPoolExecutor(THREADS)
    parts = list(zip(np.array_split(target, THREADS), np.array_split(source, THREADS), strict=True))
    peers = {"copyto": Peer(lambda: list(pool.map(lambda part: np.copyto(*part), parts)))}
    copy = streamed_copy(target, source, THREADS)
    return peers if copy is None else {**peers, "copy": Peer(copy)}


def _filled(nbytes: int) -> Array:
    """Memory of its own, whose pages are there."""
    memory = allocate(nbytes)
    memory.fill(0)
    return memory
