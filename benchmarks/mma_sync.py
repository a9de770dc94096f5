"""Products and attention by mma.sync, as GPUs before Hopper have them.

Triton's kernels are compiled for sm_80 and their PTX is assembled for the GPU at hand, so that both run the same
instructions on the same GPU; of Triton's first schedules the fastest is shown. ``python -m benchmarks.cuda`` has the
rows.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import fusec
from fusec.codegen.cuda.build import compile_kernels as compile_cuda
from fusec.codegen.triton.build import compile_kernels as compile_triton
from fusec.codegen.triton.compile import Binary
from fusec.codegen.triton.module import TritonModule
from fusec.errors import FusecError
from fusec.ir.graph import Graph
from fusec.passes.families.attention.schedule.mma import MmaAttentionSchedule
from fusec.passes.families.gemm.schedule.mma import MmaGemmSchedule
from fusec.passes.lower.context import LoweringContext
from fusec.passes.pipeline import lower
from fusec.passes.schedule.base import GpuSchedule
from fusec.passes.select_gpu import GpuSelector
from fusec.report import predicted_seconds
from fusec.runtime.executable import Executable
from fusec.target.gpu import gpu_target

Call = Callable[[], Any]
Times = Callable[[dict[str, Call]], dict[str, float]]
Row = tuple[str, dict[str, float], str, float]
"""Name, rates by peer, their unit, and the cost model's seconds over the measured ones."""
_TRIED = 10


class MmaSync(GpuSelector):
    """Takes schedules for warps' instructions alone."""

    def candidates(self, context: LoweringContext) -> list[GpuSchedule]:
        found = super().candidates(context)
        return [s for s in found if isinstance(s, MmaGemmSchedule | MmaAttentionSchedule)]


@dataclass
class Nth(GpuSelector):
    """Takes the candidate of a number."""

    number: int = 0

    def candidates(self, context: LoweringContext) -> list[GpuSchedule]:
        return super().candidates(context)[self.number :]


def by_mma_sync(function: Callable[..., Any], *arguments: Any) -> Executable:
    graph = fusec.trace(function, *arguments)
    card = gpu_target("cuda:0")
    program = lower(graph, "cuda:0", selector=MmaSync(card, cuda=True)).program
    return Executable(program, compile_cuda(program.kernels, card), "torch")


def triton_for_sm_80(graph: Graph, number: int) -> Executable:
    """Triton's kernel by its schedule of that number. FusecError or IndexError where there is none."""
    card, older = gpu_target("cuda:0"), gpu_target("cuda:sm_80")
    program = lower(graph, "cuda:sm_80", selector=Nth(older, number=number)).program
    module = compile_triton(program.kernels, older)
    binaries = {name: _assembled(binary) for name, binary in module.binaries.items()}
    module = TritonModule(card, module.text, binaries, module.compile_unaligned)
    return Executable(replace(program, target="cuda:0"), module, "torch")


def _assembled(binary: Binary) -> Binary:
    """The kernel's PTX, which was made for another GPU, in this GPU's code."""
    from triton.backends.nvidia.compiler import get_ptxas

    major, minor = torch.cuda.get_device_capability()
    ptxas = get_ptxas(10 * major + minor).path  # whose version of PTX Triton wrote
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        source.write_text(binary.assembly)
        subprocess.run([ptxas, f"-arch=sm_{major}{minor}", "-O3", str(source), "-o", str(made)], check=True)
        return replace(binary, code=made.read_bytes())


def best_of_triton(function: Callable[..., Any], arguments: tuple[Any, ...], times: Times) -> Call:
    graph = fusec.trace(function, *arguments)
    calls: dict[str, Call] = {}
    for number in range(_TRIED):
        try:
            made = triton_for_sm_80(graph, number)
        except (FusecError, IndexError):
            continue
        calls[str(number)] = lambda made=made: made(*arguments)
    found = times(calls)
    return calls[min(found, key=found.__getitem__)]


def rows(times: Times) -> list[Row]:
    """bf16 matmuls, and attention with heads of 128 and 64."""
    made = [matmul("4096³", 4096, 4096, times), matmul("4096×4096×4097", 4096, 4097, times)]
    for depth, heads, causal in ((128, 16, True), (128, 16, False), (64, 32, True)):
        made.append(attention(depth, heads, causal, times))
    return made


def matmul(name: str, n: int, k: int, times: Times) -> Row:
    x, w = (torch.randn(n, k, device="cuda").to(torch.bfloat16) for _ in range(2))
    function: Callable[..., Any] = torch.nn.functional.linear
    fast = by_mma_sync(function, x, w)
    calls: dict[str, Call] = {
        "cuBLAS (Hopper's instructions)": lambda: function(x, w),
        "Triton for sm_80": best_of_triton(function, (x, w), times),
        "fusec": lambda: fast(x, w),
    }
    found = times(calls)
    rates = {peer: 2e-12 * n * n * k / t for peer, t in found.items()}
    return f"bf16 matmul by mma.sync, {name}", rates, "TFLOP/s", predicted_seconds(fast.program) / found["fusec"]


def attention(depth: int, heads: int, causal: bool, times: Times) -> Row:
    q, k, v = (torch.randn(4, heads, 4096, depth, device="cuda").to(torch.bfloat16) for _ in range(3))

    def plain(q: Any, k: Any, v: Any) -> Any:
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        if causal:
            allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
            scores = scores.masked_fill(~allowed, float("-inf"))
        return torch.softmax(scores, -1) @ v

    def flash() -> Any:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    fast = by_mma_sync(plain, q, k, v)
    calls: dict[str, Call] = {
        "FlashAttention-2": flash,
        "Triton for sm_80": best_of_triton(plain, (q, k, v), times),
        "fusec": lambda: fast(q, k, v),
    }
    flops = 4e-12 * 4 * heads * 4096**2 * depth * (0.5 if causal else 1.0)
    found = times(calls)
    rates, model = {peer: flops / t for peer, t in found.items()}, predicted_seconds(fast.program) / found["fusec"]
    return f"attention by mma.sync, heads of {depth}, {'causal' if causal else 'full'}", rates, "TFLOP/s", model
