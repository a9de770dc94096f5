"""Table of training on a GPU: forward and backward of plain PyTorch code, compiled by fusec through ``torch.compile``,
against eager, torch.compile's own backend and the library.

``python -m benchmarks.training [--only NAME,...] [--rounds N] [--profile] [--out FILE]``. Peers are called in turn in
one process, the L2 cache holds other memory before each call, and the median of the times on the device is shown, which
is busy before each call, so that the host runs ahead as it does in a loop of steps. What a call costs the host (Python,
autograd, launches) stands in a column of its own. Errors are those of the worst gradient, by its norm, from the
gradients of the same work in float32.
``--profile`` prints the kernels of fusec's call by time.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .gpu import Clock, copy_bandwidth
from .workloads.training import Step, steps

AHEAD = 40_000_000
"""Cycles, some 20 ms: longer than the host takes for the longest step."""

NAMES = ("fusec", "eager", "torch.compile", "library")


def call_of(step: Step, function: Any, args: tuple[Any, ...], gradient: Any) -> Callable[[], Any]:
    """Forward, backward and, where asked for, the optimizer's step; gives the gradients."""
    learned = list(function.parameters()) if isinstance(function, nn.Module) else []
    wanted = [*(a for a in args if a.requires_grad), *learned]
    optimizer = torch.optim.AdamW(learned, lr=1e-4, fused=True) if step.optimizer else None

    def call() -> list[Any]:
        for tensor in wanted:
            tensor.grad = None
        result = function(*args)
        result.backward(None if result.dim() == 0 else gradient)
        gradients = [tensor.grad for tensor in wanted]
        if optimizer is not None:
            optimizer.step()
        return gradients

    return call


def measure(step: Step, rounds: int, clock: Clock, profile: bool) -> dict[str, Any]:
    args = step.arguments()
    with torch.no_grad():
        result = step.function(*args)
    gradient = torch.randn_like(result)
    functions: dict[str, Any] = {name: copy.deepcopy(step.function) for name in NAMES[:3]}
    if step.library is not None:
        functions["library"] = step.library
    del result
    row: dict[str, Any] = {"notes": []}
    calls: dict[str, Callable[[], Any]] = {}
    first: dict[str, list[Any]] = {}
    for name, function in functions.items():
        torch._dynamo.reset()
        start = time.perf_counter()
        backend = {"fusec": "fusec", "torch.compile": "inductor"}.get(name)
        called = function if backend is None else torch.compile(function, dynamic=False, backend=backend)
        try:
            call = call_of(step, called, args, gradient)
            first[name] = [g.clone() for g in call()]
            call()
            torch.cuda.synchronize()
            calls[name] = call
            row[f"peak {name}"] = peak(call)
        except Exception as failure:
            row["notes"].append(f"{name} failed: {str(failure).strip().splitlines()[0][:200]}")
            traceback.print_exc(limit=-4)
        row[f"first {name}"] = time.perf_counter() - start
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(clock.once(call, AHEAD))
    row |= {f"host {name}": clock.host(call, 5) * 1e3 for name, call in calls.items()}
    row |= {name: statistics.median(values) * 1e3 for name, values in times.items()}
    exact = reference(step, args, gradient)
    if exact is not None:
        row |= {f"error {name}": max(map(error, found, exact)) for name, found in first.items()}
    if profile and "fusec" in calls:
        tell_kernels(step, calls["fusec"])
    return row


def reference(step: Step, args: tuple[Any, ...], gradient: Any) -> list[Any] | None:
    """The gradients of the same work in float32; None where memory does not hold it."""
    wide = [x.detach().float().requires_grad_(x.requires_grad) if x.is_floating_point() else x for x in args]
    function = copy.deepcopy(step.function)
    if isinstance(function, nn.Module):
        function.float()
    tf32 = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        found = call_of(replace(step, optimizer=False), function, tuple(wide), gradient.float())()
        return [x.cpu() for x in found]
    except torch.OutOfMemoryError:
        return None
    finally:
        torch.backends.cudnn.allow_tf32 = tf32


def error(found: Any, exact: Any) -> float:
    """The norm of a gradient's error, in parts of its own norm."""
    exact = exact.to(found.device)
    return float((found.float() - exact).norm() / exact.norm())


def peak(call: Callable[[], Any]) -> float:
    """MiB that a call has at most at a time, beside what is there before it."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def tell_kernels(step: Step, call: Callable[[], Any]) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as told:
        call()
        torch.cuda.synchronize()
    found = sorted(told.key_averages(), key=lambda event: -event.device_time_total)[:18]
    print(f"kernels of {step.name}:")
    for event in found:
        print(f"  {event.device_time_total:9.1f} µs {event.count:4d} × {event.key[:130]}")


def line(step: Step, row: dict[str, Any], copied: float) -> str:
    best = min((row[n] for n in NAMES[1:] if n in row), default=float("nan"))
    mine = row.get("fusec", float("nan"))
    reached = f"{step.flops / mine / 1e9:.0f} TFLOP/s" if step.flops else "–"
    if step.nbytes:
        reached = f"{100 * step.nbytes / mine * 1e3 / copied:.0f} % of copy"
    cells = [f"{row[n]:.3f}" if n in row else "–" for n in NAMES]
    memory = ", ".join(f"{row[f'peak {n}']:.0f}" if f"peak {n}" in row else "–" for n in ("fusec", "torch.compile"))
    host = ", ".join(f"{row[f'host {n}']:.2f}" if f"host {n}" in row else "–" for n in NAMES[:3])
    errors = ", ".join(f"{row[f'error {n}']:.1e}" if f"error {n}" in row else "–" for n in ("fusec", "eager"))
    return f"| {step.name} | {' | '.join(cells)} | {best / mine:.2f} | {reached} | {host} | {memory} | {errors} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    names = set(filter(None, given.only.split(",")))
    clock = Clock()
    copied = copy_bandwidth(clock)
    others = ("best ÷ fusec", "fusec reaches", "host ms: fusec, eager, compile", "peak MiB: fusec, compile")
    others = (*others, "error: fusec, eager")
    columns = ("forward and backward", *(f"{n}, ms" for n in NAMES), *others)
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    notes: list[str] = []
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; copy {copied / 1e9:.0f} GB/s", file=sys.stderr)
    for name, make in steps():
        if names and not any(n in name for n in names):
            continue
        step = make()
        row = measure(step, given.rounds, clock, given.profile)
        lines.append(line(step, row, copied))
        print(lines[-1], f"first {row.get('first fusec', 0):.1f} s", flush=True)
        notes += [f"- {step.name}: {note}" for note in row["notes"]]
        if given.out is not None:
            given.out.write_text("\n".join([*lines, "", *notes]) + "\n")
        del step, row
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
