# SPDX-License-Identifier: Apache-2.0
"""What this machine was measured to do, kept in the cache folder from one process to the next.

A profile counts for one model of CPU with these features, caches and cores, or for one model of GPU, and for the
versions that measured it.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from fusec.config import cache_dir, logger
from fusec.packages import installed
from fusec.runtime.isa import host_features
from fusec.target.cpu import CpuTarget, host_model
from fusec.target.gpu import GpuTarget
from fusec.target.gpu_rates import GpuRates
from fusec.target.rates import Rates

_FORMAT, _GPU_FORMAT = 5, 1

log = logger("cache")


def machine_facts(target: CpuTarget) -> tuple[str, ...]:
    """What measurements on this machine depend on."""
    return host_model(), " ".join(sorted(host_features())), repr(target)


def known_rates(target: CpuTarget) -> Rates | None:
    """What was measured here; None where nothing was, or where the target is another machine."""
    if target.name != "cpu":
        return None
    path = profile_path(target)
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


def known_gpu_rates(target: GpuTarget, device: str) -> GpuRates | None:
    """What was measured of this GPU (``device`` is the driver's name for it); None where nothing was."""
    path = gpu_profile_path(target, device)
    try:
        return _read_gpu(path, path.stat().st_mtime_ns)
    except OSError:
        return None


@cache
def _read_gpu(path: Path, changed: int) -> GpuRates | None:
    try:
        return GpuRates.from_json(path.read_text())
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("the GPU's profile %s can't be read: %s", path.name, error)
        return None


def gpu_profile_path(target: GpuTarget, device: str) -> Path:
    """For one model of GPU, and for the versions that measured it; whatever rates the target has."""
    facts = (device, target.arch, target.sms, target.l2, target.clock)
    text = "\n".join(map(str, (_GPU_FORMAT, installed("triton"), *facts)))
    return cache_dir() / "machines" / hashlib.sha256(text.encode()).hexdigest()[:32]


def profile_path(target: CpuTarget) -> Path:
    facts = (str(_FORMAT), installed("apache-tvm"), *machine_facts(target))
    return cache_dir() / "machines" / hashlib.sha256("\n".join(facts).encode()).hexdigest()[:32]
