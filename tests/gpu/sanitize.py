"""compute-sanitizer over every kind of kernel in CUDA C++, at small sizes.

``python tests/gpu/sanitize.py [--tools memcheck racecheck ...] [--kinds ...] [--jobs N]`` on a machine with a card and
compute-sanitizer (``make sanitize``). Fails where a tool finds anything; its report is printed then. Results are
compared by the other tests.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOOLS = ("memcheck", "racecheck", "synccheck")
FAULT = "fault"
FOUND = 86
"""The exit status of compute-sanitizer where a tool found something; every other but 0 is a failure of the run."""


def pointwise(names: Iterable[str]) -> None:
    import test_cuda as kernels

    for name in names:
        text = (kernels.POINTWISE | kernels.PRODUCTS)[name]
        graph = kernels.parse(text)
        arrays = kernels.given(graph)
        kernels.indices_inside(graph, arrays)
        kernels.run(text, arrays)


def maps() -> None:
    pointwise(["chain_f32_7", "chain_bf16_4096", "odd_offset", "flipped", "two_orders", "joined", "padded", "picked"])
    pointwise(["chain_broadcast", "counted", "casts", "functions_f16", "binaries_i64"])


def rows() -> None:
    pointwise(["softmax_f32_31", "softmax_bf16_1000", "softmax_f32_8192", "sum_columns", "sum_columns_odd"])
    pointwise(["cluster_softmax", "cluster_softmax_odd", "cluster_norm"])
    pointwise(["sum_outer", "max_middle", "any", "norm_bf16", "statistics"])


def plain_products() -> None:
    pointwise(["product_f32", "product_f64_transposed", "product_i32", "product_odd", "product_batched"])
    pointwise(["product_one_row", "product_left_transposed", "product_of_computed"])


def hopper_products() -> None:
    import test_hopper as kernels

    names = "together in_turns small_tile wide_tile tile_192 tf32 odd_sizes odd_columns nn tt_in_turns batched"
    names += " one_step_together split split_odd_columns split_transposed split_tf32"
    for name in [*names.split(), "residual", "two_outputs", "float_result", "swiglu", "clusters_beyond_the_end"]:
        text, schedule = kernels.CASES[name]
        kernels.run(text, schedule, kernels.given(text))


def hopper_attention() -> None:
    import test_hopper_attention as kernels
    import torch

    names = ["plain", "odd length", "three groups", "one group", "wide heads", "heads of 80", "other values"]
    names += ["causal, odd length", "causal, more keys", "soft cap, slopes and a window", "bias, odd length"]
    names += ["persistent", "persistent, three groups", "persistent, soft cap, slopes and a window"]
    for name in [*names, "finite fill", "epilogue", "joined heads"]:
        kernels.run(name, kernels.given(kernels.CASES[name][1], torch.bfloat16), torch.bfloat16)


def mma_products() -> None:
    import test_mma as kernels

    names = "square wide small flat odd_everything depth_of_4 depth_of_2 odd_columns nn tn_flat tn_odd tf32_odd"
    for name in [*names.split(), "tf32_tt_small", "batched_nn", "two_outputs", "float_result", "swiglu_odd", "sliced"]:
        text, schedule = kernels.CASES[name]
        for shift in (0, 1):
            kernels.run(text, schedule, kernels.given(text), shift)


def mma_attention() -> None:
    import test_mma_attention as kernels
    import torch

    names = ["plain", "odd length, two buffers", "few rows", "heads of 256", "heads of 80", "heads of 32"]
    names += ["other values", "causal, odd length", "causal, more keys", "soft cap, slopes and a window"]
    for name in [*names, "bias, odd length", "finite fill", "epilogue", "joined heads"]:
        function, shapes, schedule = kernels.CASES[name]
        for shift in (0, 1):
            kernels.run(function, kernels.given(shapes, torch.bfloat16, shift), schedule)


FAULTS = {
    "memcheck": "results[threadIdx.x + 4096] = 1;",
    "racecheck": "tile[threadIdx.x] = threadIdx.x; results[threadIdx.x] = tile[63 - threadIdx.x];",
    "synccheck": "if (threadIdx.x % 2) __syncthreads(); results[threadIdx.x] = 1;",
}
"""What each tool must complain of: else it does not see our kernels."""


def fault(tool: str) -> None:
    import torch

    from fusec.codegen.cuda.build import arch_of
    from fusec.codegen.cuda.module import CudaModule
    from fusec.codegen.cuda.nvrtc import compile_source
    from fusec.codegen.cuda.source import KernelSource, ModuleSource
    from fusec.target.gpu import gpu_target

    card = gpu_target("cuda:0")
    body = f"__shared__ float tile[64];\n{FAULTS[tool]}"
    text = f'extern "C" __global__ void faulty(float* results) {{\n{body}\n}}'
    source = ModuleSource((KernelSource("faulty", text, ("f32",), (1, 1, 1), 64),), arch_of(card))
    module = CudaModule(card, source, {"faulty": compile_source(text, source.arch, "faulty")})
    with suppress(RuntimeError):
        module.function("faulty", 0)(torch.empty(128, device="cuda").data_ptr())
        torch.cuda.synchronize()


KINDS: dict[str, Callable[[], None]] = {
    "maps": maps,
    "rows": rows,
    "plain-products": plain_products,
    "hopper-products": hopper_products,
    "hopper-attention": hopper_attention,
    "mma-products": mma_products,
    "mma-attention": mma_attention,
}


def check(tool: str, kind: str) -> tuple[int, str, float]:
    """Runs a kind's kernels under a tool: the exit status, what was printed, seconds."""
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", str(FOUND), "--print-limit", "5"]
    if tool == "racecheck":
        command += ["--racecheck-report", "all"]
    command += [sys.executable, __file__, "--run", kind, "--tools", tool]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    start = time.perf_counter()
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, env=environment, cwd=ROOT, text=True, **both)
    return done.returncode, done.stdout, time.perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tools", nargs="+", default=list(TOOLS), choices=TOOLS)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--jobs", type=int, default=3, help="runs at a time")
    parser.add_argument("--run", choices=[*KINDS, FAULT], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        tests = Path(__file__).parent
        sys.path[:0] = [str(tests), str(ROOT)]
        if options.run == FAULT:
            fault(options.tools[0])
        else:
            KINDS[options.run]()
        return 0
    if shutil.which("compute-sanitizer") is None:
        print("compute-sanitizer is not here: it comes with the CUDA toolkit")
        return 2
    wanted = [(tool, kind) for tool in options.tools for kind in (FAULT, *options.kinds)]
    failed = False
    with ThreadPoolExecutor(options.jobs) as pool:
        for (tool, kind), (status, text, seconds) in zip(wanted, pool.map(lambda w: check(*w), wanted), strict=True):
            summary = " ".join(re.findall(r"(?:ERROR|RACECHECK) SUMMARY: .*", text)) or f"exit status {status}"
            print(f"{tool:10} {kind:18} {seconds:6.1f} s  {summary}", flush=True)
            if status != (FOUND if kind == FAULT else 0):
                failed = True
                print(text[-6000:], flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
