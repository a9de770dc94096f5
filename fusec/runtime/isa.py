# SPDX-License-Identifier: Apache-2.0
"""Which instruction sets machine code needs, and which ones this CPU has."""

from __future__ import annotations

import platform
from collections.abc import Collection
from functools import cache
from pathlib import Path

from fusec.target.cpu import CpuTarget
from fusec.target.features import features_of
from fusec.target.tiles import allow_tiles


def required_features(target: CpuTarget) -> tuple[str, ...]:
    """CPU flags that code for a target may need, sorted."""
    if target.architecture == "aarch64":
        return ("asimd",) if target.mcpu == "neoverse-n1" else ("asimd", "sve")
    return tuple(sorted({*features_of(target.mcpu), *target.matmul_features}))


def can_run(target: CpuTarget) -> bool:
    """Whether this machine's CPU has what code for a target may need."""
    return not why_not(target)


def why_not(target: CpuTarget) -> str:
    """What code for a target may need and this machine does not have; empty where there is nothing."""
    return "" if target.name == "cpu" else missing(target.architecture, required_features(target))


def missing(architecture: str, features: Collection[str]) -> str:
    """What of an architecture and of CPU flags this machine does not have; empty where it has all."""
    here = host_architecture()
    if here != architecture:
        article = "an" if architecture[:1] in "aeiou" else "a"
        return f"it needs {article} {architecture} machine, this one is {here}"
    lacking = sorted(set(features) - host_features())
    if lacking:
        return (
            f"it needs a CPU with {', '.join(lacking)}, which this one does not have; "
            "compile it with a lesser target, such as target='cpu:x86-64-v3'"
        )
    if "amx_tile" in features and not allow_tiles():
        return "it needs AMX, whose tile registers Linux refuses to this process (arch_prctl)"
    return ""


@cache
def host_features() -> frozenset[str]:
    """The flags of this machine's CPU; empty where the system does not tell."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def host_architecture() -> str:
    """Such as ``x86_64``."""
    return platform.machine()
