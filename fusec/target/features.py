# SPDX-License-Identifier: Apache-2.0
"""Which instructions LLVM may choose for an x86-64 processor that it is told to compile for."""

from __future__ import annotations

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
"""Flags of the instructions of each processor, from LLVM's X86.td; without those that only intrinsics give, such as
VAES."""


def features_of(mcpu: str) -> tuple[str, ...]:
    """Flags, as Linux spells them, of what code for LLVM's ``mcpu`` may use."""
    return _FEATURES[mcpu]
