# SPDX-License-Identifier: Apache-2.0
"""Measures this machine: its memory and units by kernels, and what calls take by calls of compiled functions."""

from __future__ import annotations

import time
from dataclasses import replace
from importlib.util import find_spec
from statistics import median

import numpy as np

from fusec.api import jit
from fusec.errors import CacheError
from fusec.runtime.cache import write_whole
from fusec.target.cpu import CpuTarget, host_cpu
from fusec.target.rates import Rates
from fusec.tuning.machines import profile_path
from fusec.tuning.probe import measure_rates

_ROWS, _PAUSE = 9, 0.02
"""Rows of calls, and seconds between them: another guest of the host slows a core for tenths of a second."""

_CALLS = 1000
_INPUTS = 17
_FAR_CALLS = 9
_CACHES, _LARGEST = 2, 256 << 20
"""What passes before a call that finds nothing of itself: so many last caches, and bytes at most."""


def measure_machine(threads: int | None = None) -> Rates:
    """Measures this machine, with all its cores or so many threads, and keeps what was found.

    Takes some seconds, in which other programs should rest. CacheError where it can't be kept.
    """
    target = host_cpu()
    rates = _with_calls(measure_rates(target, threads or target.cores), target)
    path = profile_path(target)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(path, rates.to_json().encode())
    except OSError as error:
        raise CacheError(f"can't keep the machine's profile: {error}") from None
    return rates


def _with_calls(rates: Rates, target: CpuTarget) -> Rates:
    """With what a call takes around its kernels, also where the caches hold nothing of it."""
    calls = Calls()
    found = calls.measure(rates)
    far, far_many = (calls.seconds_after_others(name, target) for name in ("one", "many"))
    return replace(found, library=max(far - found.call, 1e-9), far_argument=max((far_many - far) / (_INPUTS - 1), 1e-9))


class Calls:
    """Measures what calls that compute next to nothing take, as often as it is asked."""

    def __init__(self) -> None:
        many: list[object] = [np.zeros(8, np.float32) for _ in range(_INPUTS)]
        self._arrays = {"one": many[:1], "many": many}
        if find_spec("torch"):
            import torch

            self._arrays["tensors"] = [torch.zeros(8, device="cpu")]
        # A function each: one that has seen other kinds of arguments looks longer for what it compiled for these.
        self._compiled = {name: jit(fallback="error", cache=False)(_total) for name in self._arrays}

    def measure(self, rates: Rates) -> Rates:
        """The rates with those of calls, of further inputs and of PyTorch's arrays, where it is there."""
        rows: dict[str, list[float]] = {name: [] for name in self._arrays}
        for name in rows:
            self._seconds(1, name)
        for _ in range(_ROWS):
            for name, found in rows.items():
                found.append(self._seconds(_CALLS, name))
            time.sleep(_PAUSE)
        typical = {name: median(found) for name, found in rows.items()}
        one = typical["one"]
        argument = max((typical["many"] - one) / (_INPUTS - 1), 1e-9)
        tensors = max(typical["tensors"] - one, 0.0) if "tensors" in typical else rates.tensors
        return replace(rates, call=one, argument=argument, tensors=tensors)

    def seconds_after_others(self, name: str, target: CpuTarget) -> float:
        """Of a call before which other memory passed."""
        others = np.ones(min(_CACHES * target.l3, _LARGEST), np.uint8)
        found = []
        for _ in range(_FAR_CALLS):
            others.max()
            found.append(self._seconds(1, name))
        return median(found)

    def _seconds(self, calls: int, name: str) -> float:
        compiled, arrays = self._compiled[name], self._arrays[name]
        start = time.perf_counter()
        for _ in range(calls):
            compiled(*arrays)
        return (time.perf_counter() - start) / calls


def _total(first: object, *others: object) -> object:
    total = first
    for x in others:
        total = total + x  # type: ignore[operator]
    return total * 2  # type: ignore[operator]
