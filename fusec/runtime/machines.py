"""What this machine was measured to do, kept in the cache folder from one process to the next.

A profile counts for one model of CPU with these features, caches and cores, and for the versions that measured it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from statistics import median

from fusec.config import cache_dir, logger
from fusec.errors import CacheError
from fusec.runtime.cache import write_whole
from fusec.runtime.isa import host_features
from fusec.target.cpu import CpuTarget, host_cpu, host_model
from fusec.target.rates import Rates

_FORMAT = 5
_REPEATS = 5
_CALLS = 2000
_INPUTS = 17
_FAR_CALLS = 9
_CACHES, _LARGEST = 2, 256 << 20
"""What passes before a call that finds nothing of itself: so many last caches, and bytes at most."""

log = logger("cache")


def machine_facts(target: CpuTarget) -> tuple[str, ...]:
    """What measurements on this machine depend on."""
    return host_model(), " ".join(sorted(host_features())), repr(target)


def known_rates(target: CpuTarget) -> Rates | None:
    """What was measured here; None where nothing was, or where the target is another machine."""
    if target.name != "cpu":
        return None
    path = _path(target)
    try:
        return _read(path, path.stat().st_mtime_ns)
    except OSError:
        return None


@cache
def _read(path: Path, changed: int) -> Rates | None:
    try:
        return Rates.from_json(path.read_text())
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("the machine's profile %s can't be read: %s", path.name, error)
        return None


def measure_machine(threads: int | None = None) -> Rates:
    """Measures this machine, with all its cores or so many threads, and keeps what was found.

    Takes some seconds, in which other programs should rest. CacheError where it can't be kept.
    """
    from fusec.runtime.probe import measure_rates

    target = host_cpu()
    rates = _with_calls(measure_rates(target, threads or target.cores), target)
    path = _path(target)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(path, rates.to_json().encode())
    except OSError as error:
        raise CacheError(f"can't keep the machine's profile: {error}") from None
    return rates


def _path(target: CpuTarget) -> Path:
    facts = (str(_FORMAT), _tvm(), *machine_facts(target))
    return cache_dir() / "machines" / hashlib.sha256("\n".join(facts).encode()).hexdigest()[:32]


def _tvm() -> str:
    try:
        return version("apache-tvm")
    except PackageNotFoundError:
        return "none"


def _with_calls(rates: Rates, target: CpuTarget) -> Rates:
    """With what a call takes around its kernels, also where the caches hold nothing of it; of PyTorch's arrays where it
    is there.
    """
    import numpy as np

    arrays = [np.zeros(8, np.float32) for _ in range(_INPUTS)]
    one, many = (_call_seconds(_total, *arrays[:n]) for n in (1, _INPUTS))
    others = np.ones(min(_CACHES * target.l3, _LARGEST), np.uint8)
    far, far_many = (_call_seconds(_total, *arrays[:n], before=others.max) for n in (1, _INPUTS))
    found = replace(
        rates,
        call=one,
        argument=max((many - one) / (_INPUTS - 1), 1e-9),
        library=max(far - one, 1e-9),
        far_argument=max((far_many - far) / (_INPUTS - 1), 1e-9),
    )
    if not find_spec("torch"):
        return found
    import torch

    return replace(found, tensors=max(_call_seconds(_total, torch.zeros(8)) - one, 0.0))


def _call_seconds(
    function: Callable[..., object], *arrays: object, before: Callable[[], object] | None = None
) -> float:
    """Seconds of a call that computes next to nothing: the least of some rows of calls, or, where something is to run
    before each, the call in the middle of some.
    """
    from fusec.api import jit

    compiled = jit(fallback="error", cache=False)(function)
    compiled(*arrays)

    def seconds(calls: int) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            compiled(*arrays)
        return (time.perf_counter() - start) / calls

    if before is None:
        return min(seconds(_CALLS) for _ in range(_REPEATS))
    found = []
    for _ in range(_FAR_CALLS):
        before()
        found.append(seconds(1))
    return median(found)


def _total(first: object, *others: object) -> object:
    total = first
    for x in others:
        total = total + x  # type: ignore[operator]
    return total * 2  # type: ignore[operator]
