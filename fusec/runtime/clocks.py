# SPDX-License-Identifier: Apache-2.0
"""Times of a CUDA device on the host's clock, from events on its streams. Nothing here waits unless it is asked to."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

from fusec.frontend.capture import Library


class DeviceClock(Protocol):
    """One device, by one library's events."""

    def mark(self) -> Any:
        """An event on the current stream."""

    def nanoseconds(self, mark: Any, wait: bool) -> int | None:
        """When the event happened, by ``time.perf_counter_ns``; None where it has not. ``wait``: until it has."""

    def row(self) -> tuple[int, str]:
        """A number and a name for the device's current stream."""


@dataclass
class _Rows:
    device: int
    numbers: dict[int, int] = field(default_factory=dict)

    def row(self, stream: int) -> tuple[int, str]:
        number = self.numbers.setdefault(stream, len(self.numbers))
        return self.device * 1000 + number, f"cuda:{self.device} stream {number}"


class TorchClock:
    """A device by PyTorch's events."""

    def __init__(self, device: int) -> None:
        import torch

        self._torch, self._device, self._rows = torch, device, _Rows(device)
        # A stream of its own: the first event is over at once, whatever the others are busy with.
        own = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._first = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._first.record(own)
        self._first.synchronize()
        self._start = time.perf_counter_ns()

    def mark(self) -> Any:
        event = self._torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self._torch.cuda.current_stream(self._device))
        return event

    def nanoseconds(self, mark: Any, wait: bool) -> int | None:
        if wait:
            mark.synchronize()
        elif not mark.query():
            return None
        return self._start + int(self._first.elapsed_time(mark) * 1e6)

    def row(self) -> tuple[int, str]:
        return self._rows.row(self._torch.cuda.current_stream(self._device).cuda_stream)


class CupyClock:
    """A device by CuPy's events."""

    def __init__(self, device: int) -> None:
        import cupy

        self._cupy, self._rows = cupy, _Rows(device)
        with cupy.cuda.Device(device):
            self._first = cupy.cuda.Event()
            self._first.record(cupy.cuda.Stream(non_blocking=True))
            self._first.synchronize()
        self._start = time.perf_counter_ns()

    def mark(self) -> Any:
        event = self._cupy.cuda.Event()
        event.record()
        return event

    def nanoseconds(self, mark: Any, wait: bool) -> int | None:
        if wait:
            mark.synchronize()
        elif not mark.done:
            return None
        return self._start + int(float(self._cupy.cuda.get_elapsed_time(self._first, mark)) * 1e6)

    def row(self) -> tuple[int, str]:
        return self._rows.row(self._cupy.cuda.get_current_stream().ptr)


def is_capturing(library: Library) -> bool:
    """Whether the library's current stream records a CUDA graph: no clock can be made or read meanwhile."""
    if library == "cupy":
        import cupy

        return bool(cupy.cuda.get_current_stream().is_capturing())
    import torch

    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


@cache
def device_clock(library: Library, device: int) -> DeviceClock:
    """The clock of a device. The library's errors where it can't be used."""
    return CupyClock(device) if library == "cupy" else TorchClock(device)
