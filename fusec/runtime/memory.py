# SPDX-License-Identifier: Apache-2.0
"""Memory that is used again: large results, scratch and the plan of scratch inside one call.

The first touch of a fresh page costs more than a memory-bound kernel's work on it, so blocks of memory are kept and
handed out again. A block is a NumPy byte array; whatever lies in it (an array, a tensor made from an array, a view, a
DLPack capsule) holds a reference to it. It is free again when its reference count says that only the pool knows it.

What differs for the user of a large result: a NumPy array does not own its data and a tensor's storage can't grow, so
``resize`` and ``resize_`` to more elements are refused.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from fusec.ir.indexing import round_up

ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector."""

DEVICE_ALIGNMENT = 512
"""The same on a GPU: what its allocators give."""

POOLED_BYTES = 256 * 1024
"""Results at least this large come from the pool; smaller ones are cheaper from the library's allocator."""

_PAGE = 4096
_HUGE_PAGE = 2 * 1024 * 1024
_BLOCKS_PER_SIZE = 256
_DEFAULT_LIMIT = 1 << 30
_MOST_PLANS = 1024

Block = np.ndarray[Any, np.dtype[np.uint8]]


def allocate(nbytes: int) -> Block:
    """A fresh byte array, aligned to a page, or to a huge page where it is larger than one.

    It is made over a memoryview, so NumPy takes it, and not what lies below, for the base of views into it.
    """
    alignment = _HUGE_PAGE if nbytes >= _HUGE_PAGE else _PAGE
    raw = np.empty(nbytes + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return np.frombuffer(memoryview(raw.data)[start : start + nbytes], np.uint8)


def size_class(nbytes: int) -> int:
    """``nbytes`` rounded up so that nearby sizes share blocks: at most an eighth more, whole pages."""
    step = max(_PAGE, 1 << max((nbytes - 1).bit_length() - 4, 0))
    return max(-(-nbytes // step), 1) * step


class _Entry:
    """A block the pool knows: the array, its address and when it was last handed out."""

    __slots__ = ("address", "array", "taken")

    def __init__(self, array: Block) -> None:
        self.array = array
        self.address = int(array.ctypes.data)
        self.taken = 0


class _Group:
    """The blocks of one size, and the position of the one that was handed out last.

    A search begins there: a result dropped at once is followed by one in the same memory, and results that are dropped
    in the order they were made (a model's caches, old and new) are found without passing all that are in use.
    """

    __slots__ = ("at", "entries")

    def __init__(self) -> None:
        self.entries: list[_Entry] = []
        self.at = 0

    def take_idle(self, clock: int) -> _Entry | None:
        """A block that nobody else refers to, handed out by this clock."""
        entries, at = self.entries, self.at
        if at < len(entries) and _count((entry := entries[at]).array) <= _IDLE_COUNT:
            entry.taken = clock
            return entry
        for i in chain(range(at + 1, len(entries)), range(min(at, len(entries)))):
            entry = entries[i]
            if _count(entry.array) <= _IDLE_COUNT:
                self.at, entry.taken = i, clock
                return entry
        return None


def _idle_count() -> int:
    """How often the interpreter counts an array that only an entry holds."""
    entry = _Entry(np.empty(1, np.uint8))
    return _count(entry.array)


_count = sys.getrefcount
_IDLE_COUNT = _idle_count()

_COUNTS_ARE_EXACT = sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()


class Pool:
    """Blocks of memory that are handed out again once nobody refers to them. Safe to use from many threads.

    ``limit``: bytes the pool remembers at most, in use or not. Beyond it the blocks longest not handed out are
    forgotten: freed when idle, else left to whoever still holds them.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._groups: dict[int, _Group] = {}
        self._total = 0
        self._clock = 0

    def take(self, nbytes: int) -> tuple[Block, int]:
        """A block of at least ``nbytes`` that nobody else refers to, and its address. Its contents are not defined.

        It is the caller's until the caller and everything made over it are gone.
        """
        return self.take_size(size_class(nbytes))

    def take_size(self, size: int) -> tuple[Block, int]:
        """:meth:`take` for a size that :func:`size_class` gave."""
        with self._lock:
            self._clock = clock = self._clock + 1
            group = self._groups.get(size)
            if group is not None and (idle := group.take_idle(clock)) is not None:
                return idle.array, idle.address
        entry = _Entry(allocate(size))
        array, address = entry.array, entry.address
        if _COUNTS_ARE_EXACT and size <= self.limit:
            self._remember(size, entry)
        return array, address

    def _remember(self, size: int, entry: _Entry) -> None:
        with self._lock:
            entry.taken = self._clock
            entries = self._groups.setdefault(size, _Group()).entries
            entries.append(entry)
            self._total += size
            if len(entries) > _BLOCKS_PER_SIZE:
                self._forget(size, min(entries, key=lambda e: e.taken))
            while self._total > self.limit:
                every = ((s, e) for s, group in self._groups.items() for e in group.entries)
                self._forget(*min(every, key=lambda found: found[1].taken))

    def _forget(self, size: int, entry: _Entry) -> None:
        entries = self._groups[size].entries
        entries.remove(entry)
        if not entries:
            del self._groups[size]
        self._total -= size

    def release(self) -> int:
        """Forgets every block and returns how many bytes of them were idle, which are freed now."""
        with self._lock:
            idle = sum(
                size
                for size, group in self._groups.items()
                for entry in group.entries
                if _count(entry.array) <= _IDLE_COUNT
            )
            self._groups.clear()
            self._total = 0
        return idle

    @property
    def held_bytes(self) -> int:
        """Bytes that the pool remembers, in use or idle."""
        return self._total

    def _after_fork(self) -> None:
        self._lock = threading.Lock()


def _default_limit() -> int:
    return min(_DEFAULT_LIMIT, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 16)


POOL = Pool(_default_limit())
"""The process's pool."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=POOL._after_fork)


def release_memory() -> int:
    """Frees the memory that fusec keeps for later results, and returns its bytes. What results lie in stays."""
    return POOL.release()


class ArenaPlan:
    """:func:`plan_arena` for pieces whose bytes are known at the call: ``plan(sizes)`` is a size for
    :meth:`Pool.take_size` and the offsets. Plans are kept, the latest :data:`_MOST_PLANS` at least. Sizes that grow by
    a little at each call share one, made for :func:`size_class` of each."""

    def __init__(self, lives: Sequence[tuple[int, int]], alignment: int = ALIGNMENT) -> None:
        self._lives, self._alignment = tuple(lives), alignment
        self._known: dict[tuple[int, ...], tuple[int, tuple[int, ...]]] = {}

    def __call__(self, sizes: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        found = self._known.get(sizes)
        if found is None:
            roomy = tuple(map(size_class, sizes))
            found = self._known.get(roomy) or self._plan(roomy)
            if len(self._known) >= _MOST_PLANS:
                self._known = {}
            self._known[roomy] = self._known[sizes] = found
        return found

    def _plan(self, sizes: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        offsets, total = plan_arena(sizes, self._lives, self._alignment)
        return size_class(max(total, 1)), tuple(offsets)


def plan_arena(
    sizes: Sequence[int], lives: Sequence[tuple[int, int]], alignment: int = ALIGNMENT
) -> tuple[list[int], int]:
    """Where each piece of scratch lies in one block, and the block's bytes.

    ``lives[i]`` are the first and last step (inclusive) that touch piece ``i``; pieces whose lives meet don't
    overlap. Offsets are multiples of ``alignment``. The largest pieces are placed first, each at the lowest
    offset that is free (best-fit by size, as in Pisarchyk and Lee, 2020).
    """
    offsets = [0] * len(sizes)
    placed: list[int] = []
    total = 0
    for i in sorted(range(len(sizes)), key=lambda j: (-sizes[j], j)):
        size = round_up(sizes[i], alignment)
        neighbours = sorted(
            (offsets[j], offsets[j] + sizes[j])
            for j in placed
            if lives[j][0] <= lives[i][1] and lives[i][0] <= lives[j][1]
        )
        start = 0
        for low, high in neighbours:
            if start + size <= low:
                break
            start = max(start, round_up(high, alignment))
        offsets[i] = start
        total = max(total, start + size)
        placed.append(i)
    return offsets, total
