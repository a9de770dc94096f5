# SPDX-License-Identifier: Apache-2.0
"""How long a program takes on a GPU: its kernels, which follow each other, its library calls, and the host."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from fusec.errors import FusecError
from fusec.ir.types import f32
from fusec.runtime.attentions import Attention, attention_from_text
from fusec.runtime.calls import ATTENTION, EIGHT_BIT_MATMUL, MATMUL
from fusec.runtime.eight_bit_matmuls import eight_bit_matmul_from_text
from fusec.runtime.matmuls import Matmul, matmul_from_text
from fusec.runtime.program import Call, Launch, Program
from fusec.target.gpu import GpuTarget
from fusec.target.gpu_rates import EIGHT_BITS, GpuRates

LIBRARY_SHARE = 0.86
"""What the library's matmuls reach of the rate of Hopper's instructions in fusec's own (``benchmarks/results/gpu.md``:
cuBLASLt with bias and gelu, 660 to 760 of 860 TFLOP/s)."""

LIBRARY_SHARE_F32 = 0.76
"""What the library's matmuls of f32 reach of the rate of f32's multiply-adds (H200, µs: 2048³ 354, 4096³ 2728, 8192³
21494, 128×16384×16384 1421)."""

ATTENTION_SHARE = {"cudnn": 0.78, "flash": 0.42}
"""The same of the library's attention with heads of 128 columns."""


def eight_bit_share(integers: bool, fast: bool) -> float:
    """The same of the library's matmuls of 8 bits (H200, 8192×4096×14336: 737 TFLOP/s of bytes; of floats 1304, and
    1508 where sums keep few digits)."""
    return 0.45 if integers else 0.92 if fast else 0.78


KERNELS = 3
"""Kernels of another library call."""


def predict_gpu(program: Program, target: GpuTarget) -> Program:
    """The program with its ``overhead``: what a call takes more, or less, than its kernels would alone.

    A kernel's own time has a launch in it, of which the next one's hides most. Calls are taken to follow each other, so
    that the host's work hides behind the device's, or the device waits for the host.
    """
    rates = target.rates
    launches = sum(isinstance(step, Launch) for step in program.steps)
    calls = [step for step in program.steps if isinstance(step, Call)]
    kernels = sum(report.predicted for report in program.reports)
    library = sum(_call_seconds(program, call, rates) for call in calls)
    alone = len(program.reports) + len(calls)
    device = kernels + library - max(alone - 1, 0) * (rates.launch - rates.follow)
    host = rates.call + (launches + KERNELS * len(calls)) * rates.host_launch
    return replace(program, overhead=max(device, host) - kernels)


def _call_seconds(program: Program, call: Call, rates: GpuRates) -> float:
    """Of a library call, launch and all."""
    slots = (*call.arguments, *call.results)
    moved = sum(program.slots[slot].type.most_bytes for slot in slots) / rates.read
    text = call.attributes.arguments
    try:
        if call.attributes.target == MATMUL:
            single = program.slots[call.arguments[0]].type.dtype is f32
            rate = rates.simt * LIBRARY_SHARE_F32 if single else rates.tensor * LIBRARY_SHARE
            compute = _flops(matmul_from_text(text)) / rate
            return rates.launch + max(moved, compute)
        if call.attributes.target == EIGHT_BIT_MATMUL:
            m = eight_bit_matmul_from_text(text)
            flops = 2.0 * prod(m.lhs.sizes) * m.rhs.sizes[-1]
            share = eight_bit_share(m.dtype == "i32", m.fast)
            return rates.launch + max(moved, flops / (2 * EIGHT_BITS * rates.tensor) / share)
        if call.attributes.target == ATTENTION:
            attention, backend = attention_from_text(text)
            return rates.launch + max(moved, _attended(attention) / rates.tensor / ATTENTION_SHARE[backend])
    except FusecError:
        pass
    return rates.launch + (KERNELS - 1) * rates.follow + moved


def _flops(p: Matmul) -> float:
    return 2.0 * prod(p.lhs.sizes) * p.rhs.sizes[-1]


def _attended(a: Attention) -> float:
    batch, heads, queries, depth = a.query.sizes
    return 2.0 * batch * heads * queries * a.key.sizes[2] * (depth + a.value.sizes[3]) * (0.5 if a.causal else 1.0)
