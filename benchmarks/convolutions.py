"""Table of convolutional work on a GPU: plain PyTorch code compiled by fusec against eager and torch.compile.

``python -m benchmarks.convolutions [--only NAME,...] [--rounds N] [--out FILE]``. Peers are called in turn in one
process, eager and torch.compile with inputs in both memory formats, the L2 cache holds other memory before each call,
and the median of the times on the device is shown.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import fusec

from .gpu import Clock, copy_bandwidth
from .workloads.convolutions import Work, works
from .workloads.modules import in_format

NAMES = ("fusec", "eager", "eager other format", "torch.compile", "compile other format", "max-autotune")


def other_format(work: Work, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """The function and its images in the other memory format."""
    last = args[0].dim() != 4 or args[0].is_contiguous()
    function = in_format(work.function, last) if isinstance(work.function, nn.Module) else work.function
    return function, tuple(in_format(a, last) for a in args)


def measure(work: Work, rounds: int, clock: Clock) -> dict[str, Any]:
    args = work.arguments()
    other, moved = other_format(work, args)
    peers: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "fusec": (fusec.jit(work.function), args),
        "eager": (work.function, args),
        "eager other format": (other, moved),
        "torch.compile": (torch.compile(work.function, dynamic=False), args),
        "compile other format": (torch.compile(other, dynamic=False), moved),
    }
    if not work.model:
        peers["max-autotune"] = (
            torch.compile(work.function, dynamic=False, mode="max-autotune-no-cudagraphs"),
            args,
        )
    row: dict[str, Any] = {"name": work.name, "notes": []}
    calls: dict[str, Callable[[], Any]] = {}
    with torch.no_grad():
        for name, (function, given) in peers.items():
            torch._dynamo.reset()
            start = time.perf_counter()
            try:
                function(*given)
                torch.cuda.synchronize()
                calls[name] = lambda f=function, a=given: f(*a)
                calls[name]()
            except Exception as failure:
                row["notes"].append(f"{name} failed: {str(failure).strip().splitlines()[0][:200]}")
                traceback.print_exc(limit=-4)
            row[f"first {name}"] = time.perf_counter() - start
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(rounds):
            for name, call in calls.items():
                times[name].append(clock.once(call))
        row |= {name: statistics.median(values) * 1e3 for name, values in times.items()}
        row["error"] = error(work, args, calls)
        if work.model:
            taken = ", ".join(f"{name} {peak(calls[name]):.0f}" for name in ("fusec", "torch.compile") if name in calls)
            row["notes"].append(f"MiB of memory at the peak of a call, beside weights and images: {taken}")
    return row


def peak(call: Callable[[], Any]) -> float:
    """MiB that a call has at most at a time."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def error(work: Work, args: tuple[Any, ...], calls: dict[str, Callable[[], Any]]) -> float:
    """The largest error against float64, in eager's; of a model's first images."""
    few = tuple(a[:8] for a in args) if work.model else args
    function = work.function
    exact = copy.deepcopy(function).double() if isinstance(function, nn.Module) else function
    try:
        wanted = _double(exact, few)
    except (RuntimeError, torch.OutOfMemoryError):
        return float("nan")
    mine, eager = (calls[name]()[: len(few[0])].double() for name in ("fusec", "eager"))
    return float((mine - wanted).abs().max() / (eager - wanted).abs().max())


def _double(function: Any, args: tuple[Any, ...]) -> Any:
    """The function in float64, with the weights that it closes over."""
    if isinstance(function, nn.Module) or function.__closure__ is None:
        return function(*(a.double() for a in args))
    cells = [cell for cell in function.__closure__ if isinstance(cell.cell_contents, torch.Tensor | nn.Module)]
    kept = [cell.cell_contents for cell in cells]
    try:
        for cell in cells:
            cell.cell_contents = copy.deepcopy(cell.cell_contents).double()
        return function(*(a.double() for a in args))
    finally:
        for cell, value in zip(cells, kept, strict=True):
            cell.cell_contents = value


def line(work: Work, row: dict[str, Any], copied: float) -> str:
    best = min((row[n] for n in NAMES[1:] if n in row), default=float("nan"))
    mine = row.get("fusec", float("nan"))
    reached = f"{work.flops / mine / 1e9:.0f} TFLOP/s" if work.flops else "–"
    if not work.flops and work.nbytes:
        reached = f"{100 * work.nbytes / mine * 1e3 / copied:.0f} % of copy"
    cells = [f"{row[n]:.4f}" if n in row else "–" for n in NAMES]
    return f"| {work.name} | {' | '.join(cells)} | {best / mine:.2f} | {reached} | {row['error']:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=1e9, help="start no further row after so long")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    names = set(filter(None, given.only.split(",")))
    clock, began = Clock(), time.perf_counter()
    copied = copy_bandwidth(clock)
    head = " | ".join(("work", *(f"{n}, ms" for n in NAMES), "best ÷ fusec", "fusec reaches", "error ÷ eager's"))
    lines = [f"| {head} |", "|" + "---|" * (len(NAMES) + 4)]
    notes: list[str] = []
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; copy {copied / 1e9:.0f} GB/s", file=sys.stderr)
    for work in works(names):
        if (names and not any(n in work.name for n in names)) or time.perf_counter() - began > given.seconds:
            continue
        row = measure(work, given.rounds, clock)
        lines.append(line(work, row, copied))
        print(lines[-1], f"first {row.get('first fusec', 0):.1f} s", flush=True)
        notes += [f"- {work.name}: {note}" for note in row["notes"]]
        if given.out is not None:
            given.out.write_text("\n".join([*lines, "", *notes]) + "\n")
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
