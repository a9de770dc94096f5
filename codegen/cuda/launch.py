"""Kernels as Python functions of addresses: everything but addresses and stream is prepared once."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from fusec.codegen.cuda.driver import (
    OnDevice,
    check,
    launch_config,
    load_driver,
    load_function,
)
from fusec.codegen.cuda.source import KernelSource
from fusec.codegen.cuda.tensor_map import EncodedMap, TensorMap
from fusec.ir.types import DTYPES
from fusec.runtime.code import Scope, make_function

KernelFunction = Callable[..., None]
StreamOf = Callable[[int], int]
"""From a device's number to the handle of the caller's current stream there."""

_MAPS_KEPT = 256


class _Slot:
    """One launch record. Threads take one each, so that none writes into another's."""

    __slots__ = ("_attribute", "cells", "config", "held", "params", "record")

    def __init__(self, kernel: KernelSource) -> None:
        count, maps = len(kernel.dtypes), len(kernel.tensor_maps)
        self.record, self._attribute = launch_config(kernel.grid, kernel.threads, kernel.shared, kernel.cluster)
        self.config = ctypes.byref(self.record)
        self.cells = (ctypes.c_uint64 * count)()
        start = ctypes.addressof(self.cells)
        self.params = (ctypes.c_void_p * (count + maps))(*(start + 8 * k for k in range(count)))
        self.held: list[EncodedMap | None] = [None] * maps


def launcher(
    kernel: KernelSource,
    code: bytes,
    device: int,
    misaligned: KernelFunction | None,
    stream_of: StreamOf,
    current_device: Callable[[], int],
) -> KernelFunction:
    """A function that tests its addresses, writes them into a launch record and enters the driver.

    ``misaligned`` runs calls with an address that is no multiple of 16 bytes, where the kernel needs that.
    CodegenError where the device can't take the kernel.
    """
    blocks = kernel.cluster[0] * kernel.cluster[1] * kernel.cluster[2]
    function = load_function(code, kernel.name, device, kernel.shared, blocks)
    scope = Scope()
    bind = scope.bind
    names = [f"a{i}" for i in range(len(kernel.dtypes))]
    free: list[_Slot] = [_Slot(kernel)]
    lines = []
    if misaligned is not None and names:
        lines.append(f"if ({' | '.join(names)}) & 15: return {bind(misaligned, 'misaligned')}({', '.join(names)})")
    stock, kind, record = bind(free, "free"), bind(_Slot, "Slot"), bind(kernel, "kernel")
    lines.append(f"slot = {stock}.pop() if {stock} else {kind}({record})")
    lines.append(f"slot.record.stream = {bind(stream_of, 'stream_of')}({device})")
    if names:
        lines.append("cells = slot.cells")
        lines += [f"cells[{i}] = {name}" for i, name in enumerate(names)]
    for number, described in enumerate(kernel.tensor_maps):
        known: dict[int, EncodedMap] = {}
        address = f"a{described.parameter}"
        encode = bind(_encoder(described, known), f"encode_{number}")
        found = f"{bind(known, f'known_{number}')}.get({address}) or {encode}({address})"
        lines.append(f"slot.held[{number}] = made = {found}")
        lines.append(f"slot.params[{len(names) + number}] = made.address")
    enter = bind(load_driver().cuLaunchKernelEx, "launch")
    handle = bind(ctypes.c_void_p(function), "function")
    elsewhere = bind(_launch_elsewhere(device, kernel.name, function), "launch_elsewhere")
    lines += [
        f"if {bind(current_device, 'current_device')}() != {device}:",
        f"    {elsewhere}(slot)",
        f"elif {enter}(slot.config, {handle}, slot.params, None):",
        f"    {elsewhere}(slot)",
        f"{stock}.append(slot)",
    ]
    made: KernelFunction = make_function(f"launch_{kernel.name}", names, lines, scope)
    return made


def _launch_elsewhere(device: int, name: str, function: int) -> Callable[[_Slot], None]:
    """Launches with the device made current for it; FusecError where that fails, too."""
    handle = ctypes.c_void_p(function)

    def launch(slot: _Slot) -> None:
        with OnDevice(device):
            check(load_driver().cuLaunchKernelEx(slot.config, handle, slot.params, None), f"launching {name}")

    return launch


def _encoder(map: TensorMap, known: dict[int, EncodedMap]) -> Callable[[int], EncodedMap]:
    def encode(address: int) -> EncodedMap:
        if len(known) >= _MAPS_KEPT:
            known.clear()
        made = known[address] = EncodedMap(map, address, DTYPES[map.dtype].itemsize)
        return made

    return encode
