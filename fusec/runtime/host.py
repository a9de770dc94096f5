# SPDX-License-Identifier: Apache-2.0
"""Programs on a GPU for arrays in host memory: chunks of a batch go in, are computed and go out on several streams.

Copies of both directions and kernels overlap. Arrays in pageable memory pass through pinned buffers, which a few
threads fill; a large one that comes again is pinned where it lies. Results are made in pinned memory. Pinned and device
memory come from CuPy's pools.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from fusec import tracing
from fusec.errors import DeviceError
from fusec.ir.types import fixed
from fusec.runtime.adapters import load_arrays
from fusec.runtime.arrays import Arrays
from fusec.runtime.code import Scope
from fusec.runtime.emit import Mark, ProgramWriter
from fusec.runtime.executable import Executable
from fusec.runtime.staging import PINNED, Stages, copy_with_threads, is_pinned, load_cupy, pinned_empty
from fusec.runtime.watch import Watcher

STREAMS = 4
"""Chunks on their way: one goes in, one is computed, one goes out, and one is ready. With 3 an H200's link waits."""

CHUNK_BYTES = 48 << 20
"""Of what one chunk reads and writes, about: large enough for the link's full speed, small beside a GPU's memory.

On an H200, 64 matmuls of 2048² from pinned memory: 24.0 ms with this, 24.7 with twice as much."""

Array = np.ndarray[Any, Any]


def chunk_of(batch: int, bytes_each: int) -> int:
    """Elements of a batch in one chunk: a divisor of the batch where one is near, so that all chunks are alike."""
    most = max(1, min(batch // STREAMS, CHUNK_BYTES // max(bytes_each, 1)))
    return next((n for n in range(most, most // 2, -1) if batch % n == 0), most)


@dataclass(frozen=True, eq=False)
class HostExecutable(Executable):
    """An executable for NumPy arrays whose program runs on CuPy's.

    batch: how many elements there are along the first axis of the inputs that ``sliced`` marks; 0: the arrays go in
    whole. chunk: how many of them the program takes. rest: the program for those that are left over. held: arrays of
    the inputs (by number) that are fixed.
    """

    inner: Executable | None = None
    rest: Executable | None = None
    batch: int = 0
    chunk: int = 0
    sliced: tuple[bool, ...] = ()
    held: Mapping[int, Array] = field(default_factory=dict)

    @property
    def arrays(self) -> Arrays:
        return load_arrays("numpy")

    def write(
        self,
        scope: Scope,
        inputs: Sequence[str],
        mark: Mark | None = None,
        arrays: Arrays | None = None,
        *,
        owned: bool = False,
    ) -> ProgramWriter:
        """One call of :meth:`run`, in the form of a program's lines."""
        run = scope.bind(self.run, f"run_{self.program.name}")
        lines = [f"made = {run}([{', '.join(inputs)}])"]
        if mark is not None:
            for number in range(len(self.program.steps)):
                lines = mark(number, lines)
        return _Written(lines, [f"made[{k}]" for k in range(len(self.program.outputs))])  # type: ignore[return-value]

    @cached_property
    def watched(self) -> Callable[..., list[Any]]:
        """The call as one range, in it the ranges of the program's own calls, chunk by chunk."""
        watcher = Watcher(self.program, "numpy", None)

        def call(*inputs: Any) -> list[Any]:
            with watcher.call():
                return self.run(inputs)

        return call

    def __call__(self, *inputs: Any) -> list[Any]:
        return self.watched(*inputs) if tracing.watched else self.run(inputs)

    @cached_property
    def _pipeline(self) -> _Pipeline:
        return _Pipeline(self)

    def freeze(self, values: Mapping[int, Any], shared: dict[tuple[object, ...], Any] | None = None) -> HostExecutable:
        """The executable with graph inputs ``values`` (by number) fixed, as they are now."""
        held = {**self.held, **{k: np.array(value) for k, value in values.items()}}
        return replace(self, fixed=self.fixed | frozenset(values), held=held)

    def run(self, given: Sequence[Array]) -> list[Array]:
        """The outputs, in pinned memory. DeviceError where the device fails, or its or pinned memory runs out."""
        free = iter(given)
        inputs = [self.held[k] if k in self.held else next(free) for k in range(len(self.program.inputs))]
        results = self._pipeline.run(inputs)
        for k, port in enumerate(self.program.output_ports):
            if port.mutates is not None:
                np.copyto(inputs[port.mutates], results[k])
                results[k] = inputs[port.mutates]
            elif port.strides is not None:
                results[k] = _laid_out(results[k], fixed(port.strides))
        return results


@dataclass
class _Written:
    lines: list[str]
    results: list[str]


class _Pipeline:
    """The streams, buffers and steps of one program's calls."""

    def __init__(self, host: HostExecutable) -> None:
        assert host.inner is not None
        self.host, self.inner = host, host.inner
        self.cupy = load_cupy()
        self.device = self.inner.device or 0

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        cupy = self.cupy
        try:
            with cupy.cuda.Device(self.device):
                return self._run(inputs)
        except (cupy.cuda.memory.OutOfMemoryError, MemoryError) as error:
            raise DeviceError(f"{self.inner.program.name}: no memory for a chunk: {error}") from None
        except cupy.cuda.runtime.CUDARuntimeError as error:
            raise DeviceError(f"{self.inner.program.name}: {error}") from None

    def _run(self, inputs: Sequence[Array]) -> list[Array]:
        host, cupy = self.host, self.cupy
        if not host.batch:
            return self._whole(inputs)
        streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(STREAMS)]
        shared = self._shared(inputs, streams)
        results = [self._result(slot) for slot in self.inner.program.outputs]
        pieces = [slice(start, min(start + host.chunk, host.batch)) for start in range(0, host.batch, host.chunk)]
        staged = [k for k, array in enumerate(inputs) if k not in shared and array.nbytes and not _is_ready(array)]
        stages = Stages([{k: inputs[k][piece] for k in staged} for piece in pieces], STREAMS)
        arrived: list[Any] = [None] * STREAMS
        for number, piece in enumerate(pieces):
            start, stop, at = piece.start, piece.stop, number % STREAMS
            if arrived[at] is not None:
                arrived[at].synchronize()  # no more chunks on the device than there are streams
            program = self.inner if stop - start == host.chunk else host.rest
            assert program is not None
            buffers = stages.take(number)
            with streams[at]:
                given = [
                    shared[k] if k in shared else self._put(buffers.get(k, array[piece]), streams[at])
                    for k, array in enumerate(inputs)
                ]
                arrived[at] = streams[at].record()
                stages.release(number, arrived[at].synchronize)
                made = program(*given)
                for result, array in zip(results, made, strict=True):
                    _fetch(array, result[start:stop], streams[at])
        for stream in streams:
            stream.synchronize()
        return results

    def _whole(self, inputs: Sequence[Array]) -> list[Array]:
        stream = self.cupy.cuda.Stream(non_blocking=True)
        with stream:
            given = [self._send(array, stream) for array in inputs]
            made = self.inner(*given)
            results = [pinned_empty(array.shape, array.dtype) for array in made]
            for result, array in zip(results, made, strict=True):
                _fetch(array, result, stream)
        stream.synchronize()
        return results

    def _shared(self, inputs: Sequence[Array], streams: Sequence[Any]) -> dict[int, Any]:
        """What every chunk reads, on the device before any of them."""
        found: dict[int, Any] = {}
        with streams[0]:
            for k, array in enumerate(inputs):
                if not self.host.sliced[k]:
                    found[k] = self._send(array, streams[0])
            there = streams[0].record()
        for stream in streams[1:]:
            stream.wait_event(there)
        return found

    def _result(self, slot: int) -> Array:
        type = self.inner.program.slots[slot].type
        return pinned_empty((self.host.batch, *type.static_shape[1:]), type.dtype.numpy)

    def _send(self, array: Array, stream: Any) -> Any:
        """The array on the device, row-major; through a pinned buffer unless it lies in pinned memory itself."""
        if array.nbytes and not _is_ready(array):
            source = np.ndarray(array.shape, array.dtype, pinned_empty((array.nbytes,), np.dtype(np.uint8)))
            copy_with_threads(source, array)
            array = source
        return self._put(array, stream)

    def _put(self, array: Array, stream: Any) -> Any:
        """The array, which lies row-major in pinned memory, on the device."""
        target = self.cupy.ndarray(array.shape, array.dtype)
        if array.nbytes:
            target.data.copy_from_host_async(array.ctypes.data, array.nbytes, stream)
        return target


def _is_ready(array: Array) -> bool:
    """Whether the array can be copied from where it lies, beside other work."""
    return array.flags.c_contiguous and (is_pinned(array) or PINNED.offer(array))


def _laid_out(array: Array, strides: Sequence[int]) -> Array:
    """A copy with the strides, in elements, that the function as written gives."""
    last = sum((n - 1) * s for n, s in zip(array.shape, strides, strict=True)) if array.size else -1
    memory = np.empty(last + 1, array.dtype)
    made = np.lib.stride_tricks.as_strided(memory, array.shape, [s * array.itemsize for s in strides])
    np.copyto(made, array)
    return made


def _fetch(array: Any, into: Array, stream: Any) -> None:
    if into.nbytes:
        array.data.copy_to_host_async(into.ctypes.data, into.nbytes, stream)
