"""Which instruction sets machine code needs, and which ones this CPU has."""

from __future__ import annotations

import platform
from collections.abc import Collection
from functools import cache
from pathlib import Path

from fusec.target.cpu import CpuTarget
from fusec.target.tiles import allow_tiles

_V3 = ("avx2", "bmi1", "bmi2", "f16c", "fma", "movbe")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
_ICE_LAKE = (
    *_V4,
    "avx512_bitalg",
    "avx512_vbmi2",
    "avx512_vnni",
    "avx512_vpopcntdq",
    "avx512ifma",
    "avx512vbmi",
    "gfni",
)
_ZEN_4 = (*_ICE_LAKE, "avx512_bf16")
_FEATURES: dict[str, tuple[str, ...]] = {
    "x86-64": ("sse2",),
    "x86-64-v3": _V3,
    "haswell": _V3,
    "znver3": _V3,
    "x86-64-v4": _V4,
    "skylake-avx512": _V4,
    "icelake-server": _ICE_LAKE,
    "znver4": _ZEN_4,
    "znver5": (*_ZEN_4, "avx_vnni"),
    "sapphirerapids": (*_ZEN_4, "avx512_fp16", "avx_vnni"),
}
"""Flags (as Linux spells them) of instructions that LLVM may choose for each processor it is told to compile for, from
LLVM's X86.td; without those that only intrinsics give, such as VAES."""


def required_features(target: CpuTarget) -> tuple[str, ...]:
    """CPU flags that code for a target may need, sorted."""
    if target.architecture == "aarch64":
        return ("asimd",) if target.mcpu == "neoverse-n1" else ("asimd", "sve")
    known = _FEATURES.get(target.mcpu, _V4 if target.has_avx512 else _V3)
    return tuple(sorted({*known, *target.products}))


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
        return f"it needs a {architecture} machine, this one is {here}"
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
