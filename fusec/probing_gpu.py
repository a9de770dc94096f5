# SPDX-License-Identifier: Apache-2.0
"""Measures a GPU for the cost model: programs that one rate bounds, beside what the model says of them.

A rate is scaled by what a program was predicted to take over what it took, both without the launch: then the model says
the time that was measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from fusec.api import jit, lower, trace
from fusec.errors import CacheError
from fusec.report import predicted_seconds
from fusec.runtime.cache import write_whole
from fusec.selectors import machine_of
from fusec.target.gpu import GpuTarget
from fusec.target.gpu_rates import GpuRates
from fusec.tuning.machines import gpu_profile_path

REPEATS = 15
_CALLS, _ROW = 400, 16
"""Calls of which the host's time is taken, and kernels in a row on the device."""

_SWEEP = 256 << 20
"""Bytes that pass before a call, so that it finds nothing in L2; read last, for what was written must leave L2, too."""


@dataclass(frozen=True)
class Probe:
    """``function(*arguments(torch, device))``, bound by the rates that are named."""

    rates: tuple[str, ...]
    function: Callable[..., Any]
    arguments: Callable[[Any, str], tuple[Any, ...]]


def _half(torch: Any, device: str, *shape: int) -> Any:
    return torch.randn(*shape, device=device, dtype=torch.bfloat16)


def _single(torch: Any, device: str, *shape: int) -> Any:
    return torch.randn(*shape, device=device)


def _sums(x: Any) -> Any:
    return x.sum(-1)


def _twice(x: Any) -> Any:
    return x * 2


def _matmul(x: Any, w: Any) -> Any:
    return x @ w.T


def _two_matmuls(x: Any, w: Any) -> Any:
    return (x @ w.T).relu() @ w.T


PROBES = (
    Probe(("read",), _sums, lambda t, d: (_half(t, d, 65536, 8192),)),
    Probe(("copy",), _twice, lambda t, d: (_half(t, d, 32768, 8192),)),
    Probe(("tensor", "warp_tensor"), _matmul, lambda t, d: (_half(t, d, 8192, 4096), _half(t, d, 8192, 4096))),
    Probe(("simt", "special"), _matmul, lambda t, d: (_single(t, d, 4096, 4096), _single(t, d, 4096, 4096))),
)
"""One gigabyte read, half a gigabyte copied, matmuls of 16 bits and of f32. What L2 gives is a fit to matmuls
(:data:`fusec.target.gpu_rates.L2`), and not measured."""


def measure_gpu(index: int = 0) -> GpuRates:
    """Measures GPU number ``index`` of this process, and keeps what was found.

    Takes some seconds, in which other programs should rest. TargetError without that GPU, CacheError where the rates
    can't be kept.
    """
    import torch

    device = f"cuda:{index}"
    target = machine_of(device)
    assert isinstance(target, GpuTarget)
    with torch.cuda.device(index), torch.no_grad():
        timer = Timer(torch, device)
        rates = timer.launches(target.rates)
        ratios: dict[str, float] = {}
        for probe in PROBES:
            arguments = probe.arguments(torch, device)
            predicted = predicted_seconds(lower(trace(probe.function, *arguments)).program) - target.rates.launch
            call = jit(fallback="error")(probe.function)
            measured = timer.seconds(lambda call=call, arguments=arguments: call(*arguments)) - rates.launch  # type: ignore[misc]
            ratios |= dict.fromkeys(probe.rates, predicted / measured)
            del arguments
            torch.cuda.empty_cache()
    rates = scaled(rates, ratios)
    path = gpu_profile_path(target, torch.cuda.get_device_name(index))
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(path, rates.to_json().encode())
    except OSError as error:
        raise CacheError(f"can't keep the GPU's profile: {error}") from None
    return rates


def scaled(rates: GpuRates, ratios: Mapping[str, float]) -> GpuRates:
    """The rates, those that are named times so much."""
    found = {name: getattr(rates, name) * ratio for name, ratio in ratios.items()}
    return replace(rates, **found, measured=True)


class Timer:
    """Times calls on the device, and what the host takes for them."""

    def __init__(self, torch: Any, device: str) -> None:
        self._torch, self._device = torch, device
        self._written = torch.zeros(_SWEEP, dtype=torch.int8, device=device)
        self._read = torch.zeros(_SWEEP // 4, dtype=torch.int32, device=device)

    def seconds(self, call: Callable[[], Any], times: int = 1) -> float:
        """Median of so many calls in a row, with other memory in L2; the host is ahead of the device."""
        cuda = self._torch.cuda
        found: list[float] = []
        for number in range(REPEATS + 2):
            start, stop = (cuda.Event(enable_timing=True) for _ in range(2))
            self._written.zero_()
            self._read.sum(dtype=self._torch.int64)
            start.record()
            for _ in range(times):
                call()
            stop.record()
            cuda.synchronize()
            if number >= 2:
                found.append(start.elapsed_time(stop) * 1e-3)
        return median(found)

    def host(self, call: Callable[[], Any]) -> float:
        """Seconds of the host for a call, the device idle enough not to matter."""
        call()
        found = []
        for _ in range(REPEATS):
            self._torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(_CALLS):
                call()
            found.append((time.perf_counter() - start) / _CALLS)
        return median(found)

    def launches(self, rates: GpuRates) -> GpuRates:
        """The rates with what launches take here, on the device and on the host."""
        one = self._torch.ones(1, device=self._device)
        x, w = _half(self._torch, self._device, 32, 256), _half(self._torch, self._device, 256, 256)
        smallest = jit(fallback="error")(_twice)
        matmul, two = (jit(fallback="error")(f) for f in (_matmul, _two_matmuls))
        alone, row = (self.seconds(lambda: smallest(one), n) for n in (1, _ROW))
        in_host = [self.host(call) for call in (lambda: matmul(x, w), lambda: two(x, w))]
        host_launch = max(in_host[1] - in_host[0], 1e-7)
        follow = (row - alone) / (_ROW - 1)
        if follow >= in_host[0]:  # the device waited for the host
            follow = rates.follow
        call = max(in_host[0] - host_launch, 1e-7)
        return replace(rates, launch=alone, follow=max(follow, 1e-7), call=call, host_launch=host_launch)
