"""Kernels in CUDA C++ against libraries and plain kernels, arrays in host memory, and the host's time a launch.

``python -m benchmarks.cuda [--only SECTION,...] [--out FILE]`` on a machine with a CUDA GPU, torch and CuPy. Peers are
called in turn in one process with random data; the median is shown. Device times are between events, and the L2 cache
is overwritten before each. The table says what was asked of fusec, as a multiple of a peer's rate, what part of the
GPU's own rate (matmuls, or a copy's bytes, as :class:`fusec.target.gpu.GpuTarget` has them) that is, and what the
cost model predicts of it.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cupy
import numpy as np
import torch

import fusec
from fusec.report import predicted_seconds
from fusec.runtime import staging
from fusec.target.gpu import gpu_target

from . import mma_sync
from .workloads.gpu import (
    add_rmsnorm,
    attention,
    causal_attention,
    changed_attention,
    epilogue_gelu,
    flex_changed,
    layernorm_gelu,
    linear_gelu,
    rand,
    sdpa,
    silu_mul,
    softmax,
)

Call = Callable[[], Any]


@dataclass(frozen=True)
class Row:
    """A work's figures by peer.

    ``asked``: the least multiple of a peer's rate. ``limit``: of the GPU, in ``unit``. ``model``: the cost model's
    seconds over the measured ones.
    """

    name: str
    rates: dict[str, float]
    unit: str
    asked: dict[str, float] = field(default_factory=dict)
    limit: float = 0.0
    model: float = 0.0

    def against(self, peer: str) -> float:
        """How many times as fast as the peer."""
        mine, other = self.rates["fusec"], self.rates[peer]
        return mine / other if self.unit in ("TFLOP/s", "GB/s") else other / mine


NAIVE = """extern "C" __global__ void naive(const float* a, const float* b, float* c, int n) {
    const int column = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
    float sum = 0;
    for (int k = 0; k < n; ++k) sum += a[row * n + k] * b[k * n + column];
    c[row * n + column] = sum;
}"""


def predicted(function: Callable[..., Any], args: tuple[Any, ...], language: str = "") -> float:
    """Seconds by the cost model, for this device."""
    if language:
        os.environ["FUSEC_GPU_LANGUAGE"] = language
    try:
        return predicted_seconds(fusec.lower(fusec.trace(function, *args)).program)
    finally:
        os.environ.pop("FUSEC_GPU_LANGUAGE", None)


def device_times(calls: dict[str, Call], rounds: int = 15) -> dict[str, float]:
    """Median seconds on the device, the calls in turn; each round starts with another of them."""
    flush = torch.empty(2 * torch.cuda.get_device_properties(0).L2_cache_size, dtype=torch.int8, device="cuda")
    found: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for number in range(rounds + 2):
        for name in (*names[number % len(names) :], *names[: number % len(names)]):
            call = calls[name]
            flush.zero_()
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            call()
            stop.record()
            torch.cuda.synchronize()
            if number >= 2:
                found[name].append(start.elapsed_time(stop) * 1e-3)
    return {name: statistics.median(times) for name, times in found.items()}


def wall_times(calls: dict[str, Call], rounds: int = 7) -> dict[str, float]:
    """Median seconds of whole calls, in turn; results are let go before the next."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 2):
        for name, call in calls.items():
            start = time.perf_counter()
            result = call()
            if number >= 2:
                found[name].append(time.perf_counter() - start)
            del result
    return {name: statistics.median(times) for name, times in found.items()}


def compiled(function: Callable[..., Any], language: str = "") -> Callable[..., Any]:
    """The function through fusec, its kernels in one language where one is given."""
    jitted = fusec.jit(function, fallback="error", cache=False)

    def call(*args: Any) -> Any:
        if language:
            os.environ["FUSEC_GPU_LANGUAGE"] = language
        try:
            return jitted(*args)
        finally:
            os.environ.pop("FUSEC_GPU_LANGUAGE", None)

    return call


def matmuls() -> list[Row]:
    """A linear layer with gelu in bf16, against the library's fused epilogue, and its matmul without any."""
    rows = []
    for m, k, n in ((8192, 4096, 14336), (4096, 4096, 4096), (16384, 1024, 4096)):
        x, w, b = rand(m, k), rand(n, k, scale=k**-0.5), rand(n)
        fast = compiled(linear_gelu)
        calls: dict[str, Call] = {
            "cuBLASLt's epilogue": lambda a=(x, w, b): epilogue_gelu(*a),
            "cuBLAS without": lambda a=(x, w): torch.nn.functional.linear(*a),
            "fusec": lambda f=fast, a=(x, w, b): f(*a),
        }
        times = device_times(calls)
        rates = {peer: 2e-12 * m * k * n / t for peer, t in times.items()}
        asked = {"cuBLASLt's epilogue": 1.08, "cuBLAS without": 1.0}
        limit = gpu_target("cuda:0").half_flops * 1e-12
        model = predicted(linear_gelu, (x, w, b)) / times["fusec"]
        rows.append(Row(f"linear+bias+gelu bf16 {m}×{k}×{n}", rates, "TFLOP/s", asked, limit, model))
    return rows


def singles() -> list[Row]:
    """float32 matmuls, without tf32."""
    torch.backends.cuda.matmul.allow_tf32 = False
    return [
        matmul("4096³", 4096, lambda x, w: x @ w),
        matmul("4096³, x @ w.T", 4096, lambda x, w: x @ w.T),
        matmul("2048³", 2048, lambda x, w: x @ w, naive_matmul),
    ]


def matmul(
    name: str, n: int, function: Callable[..., Any], plain: Callable[[Any, Any, int], Call] | None = None
) -> Row:
    """One matmul of n by n matrices; ``plain`` makes one more peer."""
    x, w = (torch.randn(n, n, device="cuda") for _ in range(2))
    fast = compiled(function, "cuda")
    calls: dict[str, Call] = {"cuBLAS": lambda: function(x, w), "fusec": lambda: fast(x, w)}
    if plain is not None:
        calls["an element a thread"] = plain(x, w, n)
    times = device_times(calls)
    rates = {peer: 2e-12 * n**3 / t for peer, t in times.items()}
    asked = {"cuBLAS": 0.95} if plain is None else {"an element a thread": 4.6}
    model = predicted(function, (x, w), "cuda") / times["fusec"]
    return Row(f"float32 matmul {name}", rates, "TFLOP/s", asked, gpu_target("cuda:0").single_flops * 1e-12, model)


def naive_matmul(x: Any, w: Any, n: int) -> Call:
    """The matmul by a kernel whose threads compute an element each."""
    a, b, c = (cupy.from_dlpack(t) for t in (x, w, torch.empty(n, n, device="cuda")))
    kernel = cupy.RawKernel(NAIVE, "naive")
    stream = cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)

    def run() -> None:
        with stream:
            kernel((n // 16, n // 16), (16, 16), (a, b, c, n))

    return run


def pointwise() -> list[Row]:
    """Maps and rows in both languages."""
    shape = (16384, 8192)
    works: list[tuple[str, Callable[..., Any], tuple[Any, ...], float]] = [
        ("softmax bf16 16384×8192", softmax, (rand(*shape),), 4),
        ("layernorm+gelu", layernorm_gelu, (rand(*shape), rand(8192), rand(8192)), 4),
        ("add+rmsnorm", add_rmsnorm, (rand(*shape), rand(*shape), rand(8192)), 8),
        ("silu(x)·y", silu_mul, (rand(*shape), rand(*shape)), 6),
    ]
    rows: list[Row] = []
    for name, function, args, each in works:
        in_cuda, in_triton = compiled(function, "cuda"), compiled(function, "triton")
        calls: dict[str, Call] = {
            "eager": lambda f=function, a=args: f(*a),
            "fusec, Triton": lambda f=in_triton, a=args: f(*a),
            "fusec": lambda f=in_cuda, a=args: f(*a),
        }
        times = device_times(calls)
        rates = {k: each * shape[0] * shape[1] / t * 1e-9 for k, t in times.items()}
        model = predicted(function, args, "cuda") / times["fusec"]
        rows.append(Row(name, rates, "GB/s", limit=gpu_target("cuda:0").bandwidth * 1e-9, model=model))
    return rows


def attentions() -> list[Row]:
    """Attention in bf16 as plain code, against cuDNN's; scores changed by hand, against FlexAttention."""
    rows, limit = [], gpu_target("cuda:0").half_flops * 1e-12
    for b, h, n, d in ((4, 16, 4096, 128), (1, 16, 16384, 128), (4, 32, 4096, 64), (1, 32, 16384, 64)):
        for causal in (False, True):
            q, k, v = (rand(b, h, n, d) for _ in range(3))
            fast = compiled(causal_attention if causal else attention)
            library = sdpa("CUDNN_ATTENTION", causal)
            calls: dict[str, Call] = {
                "cuDNN": lambda f=library, a=(q, k, v): f(*a),
                "fusec": lambda f=fast, a=(q, k, v): f(*a),
            }
            flops, times = 4.0 * b * h * n * n * d * (0.5 if causal else 1.0), device_times(calls)
            rates = {peer: flops / t * 1e-12 for peer, t in times.items()}
            name = f"attention D{d} {'causal' if causal else 'full'} B{b} H{h} N{n}"
            model = predicted(causal_attention if causal else attention, (q, k, v)) / times["fusec"]
            rows.append(Row(name, rates, "TFLOP/s", {"cuDNN": 1.0}, limit, model))
    q, k, v = (rand(4, 16, 4096, 128) for _ in range(3))
    fast, flex = compiled(changed_attention), flex_changed()
    calls = {"FlexAttention": lambda: flex(q, k, v), "fusec": lambda: fast(q, k, v)}
    flops = 4.0 * 4 * 16 * 128 * sum(min(i + 1, 1024) for i in range(4096))
    times = device_times(calls)
    rates = {peer: flops / t * 1e-12 for peer, t in times.items()}
    name = "ALiBi, soft cap, window 1024, D128 B4 H16 N4096"
    model = predicted(changed_attention, (q, k, v)) / times["fusec"]
    return [*rows, Row(name, rates, "TFLOP/s", {"FlexAttention": 2.5}, limit, model)]


def by_mma_sync() -> list[Row]:
    """Products and attention by the instructions that GPUs before Hopper have."""
    return [Row(name, rates, unit, model=model) for name, rates, unit, model in mma_sync.rows(device_times)]


def from_host() -> list[Row]:
    """64 matmuls of 2048×2048 float32 with one matrix, from and to NumPy arrays."""
    batch, n = 64, 2048
    rng = np.random.default_rng(0)
    pageable, w = rng.standard_normal((batch, n, n), np.float32), rng.standard_normal((n, n), np.float32)
    pinned = staging.pinned_empty(pageable.shape, pageable.dtype)
    pinned[...] = pageable
    function: Callable[..., Any] = lambda x, w: x @ w  # noqa: E731
    fast = fusec.jit(function, target="cuda", fallback="error")
    on_card = fusec.jit(function, fallback="error")
    there, back = cupy.empty(pinned.shape, np.float32), staging.pinned_empty(pinned.shape, pinned.dtype)
    weight = cupy.asarray(w)
    one, other = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))

    def both_ways() -> None:
        there.data.copy_from_host_async(pinned.ctypes.data, pinned.nbytes, one)
        there.data.copy_to_host_async(back.ctypes.data, back.nbytes, other)
        one.synchronize()
        other.synchronize()

    def compute() -> Any:
        made = on_card(there, weight)
        cupy.cuda.Device().synchronize()
        return made

    limits = wall_times({"link, both ways at once": both_ways, "compute": compute})
    rows: list[Row] = []
    fresh = np.frombuffer(bytearray(pageable.nbytes), np.float32).reshape(pageable.shape)  # never pinned where it lies
    fresh[...] = pageable
    for name, x in (("pinned", pinned), ("an array that comes again in pageable", pageable), ("pageable", fresh)):
        calls: dict[str, Call] = {
            "copy, compute, copy": lambda x=x: cupy.asnumpy(cupy.asarray(x) @ cupy.asarray(w)),
            "fusec": lambda x=x: fast(x, w),
        }
        slower = {"slower of link and compute": max(limits.values())}
        asked = {"copy, compute, copy": 1.5, "slower of link and compute": 0.9}
        rows.append(Row(f"64 matmuls of 2048² from {name} memory", wall_times(calls) | limits | slower, "s", asked))
    return rows


def launches() -> list[Row]:
    """Host time of one small kernel, called with device addresses."""
    x, y = cupy.ones(1024, np.float32), cupy.ones(1024, np.float32)
    raw = cupy.RawKernel('extern "C" __global__ void nothing(const float* x, float* y) {}', "nothing")
    from fusec.codegen.cuda.build import compile_kernels
    from fusec.ir.parse import parse
    from fusec.passes.pipeline import lower
    from fusec.target.gpu import gpu_target

    text = "graph @m(%x: f32[1024]) {\n  %y = exp(%x) : f32[1024]\n  return %y\n}"
    kernels = lower(parse(text), "cuda:0").program.kernels
    module = compile_kernels(kernels, gpu_target("cuda:0"))
    run = module.function(kernels[0].name, 0)
    a, b = x.data.ptr, y.data.ptr
    calls: dict[str, Call] = {
        "CuPy's RawKernel": lambda: raw((1,), (128,), (x, y)),
        "fusec": lambda: run(a, b),
    }
    best: dict[str, float] = {}
    for name, call in calls.items():
        for _ in range(30):
            start = time.perf_counter()
            for _ in range(200):
                call()
            best[name] = min(best.get(name, math.inf), (time.perf_counter() - start) / 200 * 1e6)
            torch.cuda.synchronize()
    return [Row("host time a launch", best | {"4 µs": 4.0}, "µs", {"4 µs": 1.0})]


def table(rows: list[Row]) -> str:
    """The rows as Markdown."""
    heads = "| work | unit | fusec | peers | times a peer's (asked) | of the card's | predicted ÷ measured |"
    lines = [heads, "|---|---|---|---|---|---|---|"]
    for row in rows:
        peers = ", ".join(f"{peer} {value:.4g}" for peer, value in row.rates.items() if peer != "fusec")
        asked = ", ".join(f"{row.against(peer):.3f} ({times:g} {peer})" for peer, times in row.asked.items())
        part = f"{row.rates['fusec'] / row.limit:.2f}" if row.limit else "–"
        model = f"{row.model:.2f}" if row.model else "–"
        cells = (row.name, row.unit, f"{row.rates['fusec']:.4g}", peers, asked or "–", part, model)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="", help="names of sections, separated by commas")
    options = parser.parse_args()
    rows = []
    for section in (matmuls, attentions, singles, by_mma_sync, pointwise, from_host, launches):
        if options.only and section.__name__ not in options.only.split(","):
            continue
        made = section()
        print(table(made), flush=True)
        rows += made
    name = torch.cuda.get_device_name()
    text = f"# CUDA C++ kernels and host arrays on one {name}\n\n`python -m benchmarks.cuda`; medians.\n\n{table(rows)}"
    if options.out is not None:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
