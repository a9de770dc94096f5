# SPDX-License-Identifier: Apache-2.0
"""The device header: tile operations for kernels in CUDA C++, as texts that NVRTC includes by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

NAMES = (
    "base.cuh",
    "scalar.cuh",
    "reduce.cuh",
    "wide.cuh",
    "copy.cuh",
    "tiled.cuh",
    "mma.cuh",
    "rows.cuh",
    "mma_gemm.cuh",
    "windows.cuh",
    "halves.cuh",
    "skinny_gemm.cuh",
    "softmax.cuh",
    "mma_attention.cuh",
    "barrier.cuh",
    "tma.cuh",
    "fragment.cuh",
    "wgmma.cuh",
    "gemm_tiles.cuh",
    "block_scales.cuh",
    "gemm.cuh",
    "split.cuh",
    "attention.cuh",
)
"""By memory level: what all use, scalars, waiting, global to shared memory, registers, tensor cores."""

SHAPES = "wgmma_shapes.cuh"
MAX_COLUMNS = 256
_KINDS = {"bf16": "k16.f32.bf16.bf16", "f16": "k16.f32.f16.f16", "tf32": "k8.f32.tf32.tf32"}
_EIGHT = {
    "f8e4m3": "k32.f32.e4m3.e4m3",
    "f8e5m2": "k32.f32.e5m2.e5m2",
    "f8e4m3_f8e5m2": "k32.f32.e4m3.e5m2",
    "f8e5m2_f8e4m3": "k32.f32.e5m2.e4m3",
}
_INTEGERS = {"s8": "k32.s32.s8.s8"}
"""Operands of 8 bits, in shared memory and along K."""
_TRANSPOSABLE = ("bf16", "f16")


def headers(columns: Iterable[int] = ()) -> dict[str, str]:
    """The header's files by name, with wgmma's instructions for results of these numbers of columns."""
    return {**_files(), SHAPES: wgmma_shapes(columns)}


@cache
def _files() -> dict[str, str]:
    folder = Path(__file__).parent / "include"
    return {name: (folder / name).read_text() for name in NAMES}


def wgmma_shapes(columns: Iterable[int]) -> str:
    """``Wgmma<N>`` for each N, a multiple of 8 from 8 to 256 (PTX ISA, wgmma.mma_async); for integers those of 16."""
    parts = [_shape(n) for n in sorted(set(columns))]
    return "\n".join(
        ["#pragma once", '#include "wgmma.cuh"', "", "namespace fusec {", "", *parts, "}  // namespace fusec", ""]
    )


def _shape(n: int) -> str:
    if n % 8 or not 8 <= n <= MAX_COLUMNS:
        raise ValueError(f"wgmma has no shape of {n} columns")
    shared = _choices(n, "shared", {**_KINDS, **_EIGHT})
    integers = _choices(n, "shared", _INTEGERS if n % 16 == 0 else {})
    registers = _choices(n, "registers", _KINDS)
    return f"""template <>
struct Wgmma<{n}> {{
    template <typename T, bool kTransposedA = false, bool kTransposedB = false>
    __device__ static void shared(float (&d)[{n // 2}], u64 a, u64 b, int add) {{
{shared}    }}

    template <typename T, bool kTransposedA = false, bool kTransposedB = false>
    __device__ static void shared(int (&d)[{n // 2}], u64 a, u64 b, int add) {{
{integers}    }}

    template <typename T, bool kTransposedB = false>
    __device__ static void registers(float (&d)[{n // 2}], const u32 (&a)[4], u64 b, int add) {{
{registers}    }}
}};
"""


def _choices(n: int, source: str, kinds: Mapping[str, str]) -> str:
    return "".join(
        f"        if constexpr (is_same<T, {kind}>) {{\n{_instruction(n, kind, source, shape)}        }}\n"
        for kind, shape in kinds.items()
    )


def _instruction(n: int, kind: str, source: str, shape: str) -> str:
    """One asm statement: accumulators first, then the operands, ``add`` and which operands are transposed."""
    count = n // 2
    results = ", ".join(f"%{i}" for i in range(count))
    words = 1 if source == "shared" else 4
    a = ", ".join(f"%{count + i}" for i in range(words))
    b, add = count + words, count + words + 1
    transposable = (2 if source == "shared" else 1) if kind in _TRANSPOSABLE else 0
    flags = [f"%{add + 1 + i}" for i in range(transposable)]
    register = "r" if kind in _INTEGERS else "f"
    outputs = ", ".join(f'"+{register}"(d[{i}])' for i in range(count))
    inputs = ['"l"(a)'] if source == "shared" else [f'"r"(a[{i}])' for i in range(4)]
    inputs += ['"l"(b)', '"r"(add)']
    if flags:
        inputs += ['"n"(int(kTransposedA))', '"n"(int(kTransposedB))'][2 - transposable :]
    left = a if source == "shared" else f"{{{a}}}"
    tail = ", ".join(["p", *([] if kind in _INTEGERS else ["1", "1"]), *flags])
    return f"""            asm volatile(
                "{{ .reg .pred p; setp.ne.b32 p, %{add}, 0;\\n"
                "wgmma.mma_async.sync.aligned.m64n{n}{shape} "
                "{{{results}}}, "
                "{left}, %{b}, {tail}; }}"
                : {outputs}
                : {", ".join(inputs)});
"""
