# SPDX-License-Identifier: Apache-2.0
"""Packed copies of weights: made once, and again when what they were made from has changed."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from fusec.errors import LoweringError
from fusec.ir.indexing import most
from fusec.runtime.arrays import Arrays, Watch, span
from fusec.runtime.code import Scope, make_function, spell
from fusec.runtime.emit import pack_sources
from fusec.runtime.memory import POOL, Block, allocate
from fusec.runtime.program import Pack, Program, root_of

_lock = threading.Lock()


class _Filled:
    """Packed memory and the arrays that it was made from, as they were."""

    __slots__ = ("__weakref__", "pair", "watch")

    def __init__(self, pair: tuple[Block, int], watch: Watch) -> None:
        self.pair = pair
        self.watch = watch


_shared: weakref.WeakValueDictionary[tuple[object, ...], _Filled] = weakref.WeakValueDictionary()
"""By kernel and source addresses, so that programs of other batch sizes share the packed weights of one module."""


class Packer:
    """Gives the packed memory of one step. Safe to call from many threads.

    Changed sources are packed into new memory: a thread that still reads the old one is not disturbed.
    ``digest`` identifies the kernel by its contents.
    """

    def __init__(self, program: Program, step: Pack, kernel: Callable[..., Any], arrays: Arrays, digest: str) -> None:
        target = program.slots[step.arguments[-1]]
        self._arrays = arrays
        self._nbytes = max(1, most(span(target.type, target.strides)) * target.type.dtype.itemsize)
        self._run = _runner(program, step, kernel, arrays)
        offsets = tuple(root_of(program, slot)[1] for slot in step.arguments[:-1])
        self._identity = (digest, offsets)
        self._filled: _Filled | None = None

    def __call__(self, sources: Sequence[Any]) -> tuple[Block, int]:
        filled = self._filled
        if filled is not None and filled.watch.same(sources):
            return filled.pair
        return self._refill(sources)

    def pack(self, sources: Sequence[Any]) -> Block:
        """The packed memory, made anew."""
        block = allocate(self._nbytes)
        self._run(int(block.ctypes.data), *sources)
        return block

    def _refill(self, sources: Sequence[Any]) -> tuple[Block, int]:
        watch = self._arrays.watch(sources)
        if watch is None:  # nothing tells when these change
            block, address = POOL.take(self._nbytes)
            self._run(address, *sources)
            return block, address
        key = (self._identity, watch.key)
        with _lock:
            known = _shared.get(key)
            if known is None or not known.watch.same(sources):
                block = self.pack(sources)
                known = _shared[key] = _Filled((block, int(block.ctypes.data)), watch)
            self._filled = known
        return known.pair


class Packings:
    """Gives the packed memory of some steps: ``packings(*sources)`` is what keeps it alive, then each step's address.

    Where nothing has changed, one look at all sources says so. ``steps``: each step's packer, and which of the sources
    are its own. Safe to call from many threads.
    """

    def __init__(self, arrays: Arrays, steps: Sequence[tuple[Packer, Sequence[int]]]) -> None:
        self._arrays = arrays
        self._steps = steps
        self._known: tuple[Watch | None, tuple[Any, ...]] = None, ()

    def __call__(self, *sources: Any) -> tuple[Any, ...]:
        watch, packed = self._known
        if watch is not None and watch.same(sources):
            return packed
        now = self._arrays.watch(sources)  # before each is looked at: what changes meanwhile is seen at the next call
        pairs = [packer([sources[k] for k in own]) for packer, own in self._steps]
        packed = ([block for block, _ in pairs], *(address for _, address in pairs))
        self._known = now, packed
        return packed


def _runner(program: Program, step: Pack, kernel: Callable[..., Any], arrays: Arrays) -> Callable[..., None]:
    """``run(address, *sources)``: fills the memory at ``address``."""
    scope = Scope()
    function = scope.bind(kernel, step.kernel)
    if any(kernel.sizes for kernel in program.kernels if kernel.name == step.kernel):
        raise LoweringError(f"{step.kernel} packs an array of symbolic extents once for all calls")
    names = {root: f"s{number}" for number, root in enumerate(pack_sources(program, [step]))}
    addresses = []
    for slot in step.arguments[:-1]:
        root, offset = root_of(program, slot)
        nbytes = spell(offset * program.slots[slot].type.dtype.itemsize)
        addresses.append(f"{arrays.address(scope, names[root])} + {nbytes}")
    line = f"{function}({', '.join([*addresses, 'address'])})"
    return make_function("run", ["address", *names.values()], [line], scope)
