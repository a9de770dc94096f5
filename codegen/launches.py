# SPDX-License-Identifier: Apache-2.0
"""Kernels of a module as Python functions, whatever language they were written in."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import cached_property

from fusec.runtime import launch
from fusec.runtime.code import Scope, make_function
from fusec.runtime.launch import DeviceKernel, Run
from fusec.target.gpu import GpuTarget, require_device

KernelFunction = Callable[..., None]
KernelLookup = Callable[[str, bool], DeviceKernel | None]
"""From a kernel's name, and whether every address is a multiple of 16, to its code; None where it has nothing to do."""


class Launches:
    """Prepared launches of kernels compiled for one target. Safe to use from many threads."""

    def __init__(self, target: GpuTarget, kernel: KernelLookup) -> None:
        self._target, self._kernel = target, kernel
        self._runs: dict[tuple[str, int, bool], Run] = {}
        self._lock = threading.RLock()

    def function(self, name: str, device: int | None = None) -> KernelFunction:
        """The kernel, called with the address of each parameter and its sizes, on torch's current stream of the device.

        The device is torch's current one where none is given. TargetError where there is none, or one of another
        architecture.
        """
        import torch

        index = torch.cuda.current_device() if device is None and torch.cuda.is_available() else device or 0
        require_device(self._target.backend, self._target.arch, index)
        kernel = self._kernel(name, True)
        if kernel is None:
            return lambda *addresses: None
        names = [f"a{i}" for i in range(kernel.arguments - bool(kernel.scratch))]
        scope = Scope()
        run = scope.bind(self.row([(name, range(len(names)))], len(names), index), "run")
        stream = scope.bind(torch._C._cuda_getCurrentRawStream, "stream_of")
        lines = [f"{run}({stream}({index}), {', '.join(names)})"]
        made: KernelFunction = make_function(f"launch_{name}", names, lines, scope)
        return made

    def row(
        self, launches: Sequence[tuple[str, Sequence[int]]], arguments: int, device: int, *, graph: bool = False
    ) -> Run:
        """One function for kernels launched one after another: see :meth:`fusec.runtime.launch.Device.row`.

        Addresses that are no multiples of 16 run code of their own. TargetError where there is no such device, or one
        of another architecture.
        """
        require_device(self._target.backend, self._target.arch, device)
        found = [(name, numbers, self._kernel(name, True)) for name, numbers in launches]
        wanted = [(name, numbers, kernel) for name, numbers, kernel in found if kernel is not None]
        if not wanted:
            return lambda stream, *addresses: None
        if len(wanted) == 1 and list(wanted[0][1]) == list(range(arguments)):
            return self._single(wanted[0][0], device, True)

        def one_by_one(stream: int, *addresses: int) -> None:
            for name, numbers, _ in wanted:
                self._single(name, device, True)(stream, *[addresses[i] for i in numbers])

        if any(kernel.scratch for _, _, kernel in wanted):
            return one_by_one
        kernels = [(kernel, numbers) for _, numbers, kernel in wanted]
        return launch.device(device).row(kernels, arguments, one_by_one, graph=graph)

    def _single(self, name: str, device: int, aligned: bool) -> Run:
        with self._lock:
            known = self._runs.get((name, device, aligned))
            if known is None:
                known = self._runs[name, device, aligned] = self._make(name, device, aligned)
        return known

    def _make(self, name: str, device: int, aligned: bool) -> Run:
        kernel = self._kernel(name, aligned)
        assert kernel is not None
        count = kernel.arguments

        def misaligned(stream: int, *given: int) -> None:
            self._single(name, device, False)(stream, *given[: count - bool(kernel.scratch)])

        run = launch.device(device).row([(kernel, range(count))], count, misaligned if aligned else None)
        return _with_scratch(run, kernel.scratch, device) if kernel.scratch else run


def _with_scratch(run: Run, size: int, device: int) -> Run:
    """Memory for the kernel itself goes along as one more address."""
    import torch

    def call(stream: int, *addresses: int) -> None:
        memory = torch.empty(size, dtype=torch.int8, device=f"cuda:{device}")
        run(stream, *addresses, memory.data_ptr())

    return call


class Launched:
    """A module of kernels for one target, launched by :class:`Launches`."""

    target: GpuTarget

    def kernel(self, name: str, aligned: bool) -> DeviceKernel | None:
        """The kernel's code for addresses that are multiples of 16, or for others; None where it has nothing to do."""
        raise NotImplementedError

    def function(self, name: str, device: int | None = None) -> KernelFunction:
        """See :meth:`Launches.function`."""
        return self._launches.function(name, device)

    def row(
        self, launches: Sequence[tuple[str, Sequence[int]]], arguments: int, device: int, *, graph: bool = False
    ) -> Run:
        """See :meth:`Launches.row`."""
        return self._launches.row(launches, arguments, device, graph=graph)

    @cached_property
    def _launches(self) -> Launches:
        return Launches(self.target, self.kernel)
