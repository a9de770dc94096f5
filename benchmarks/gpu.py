"""GPU table: plain PyTorch compiled by fusec against eager, torch.compile and the libraries' own kernels.

``python -m benchmarks.gpu [--only NAME,...] [--peers NAME,...] [--tuned quick|full] [--rounds N] [--out FILE]``. Peers
are called in turn in one process, the L2 cache holds other memory before each call, and the median of the times on the
device is shown, beside it what fusec's cost model predicts. ``--alone``: fusec alone, for the model's table.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch

import fusec
from fusec.report import predicted_seconds

from .workloads.gpu import Function, Work, works

Tune = Literal[False, "quick", "full"]
NEAR = 1.3
"""The model is right where neither its time nor the measured one is more than so many times the other."""


class Clock:
    """Times calls on the device with a cold L2 cache.

    The cache is overwritten, and then filled by reading, so that no call pays for writing the clock's own memory back:
    on an H200 that took 7 µs of a call that reads 117 MB, and kept a plain read of as much below 3.2 TB/s.
    """

    def __init__(self) -> None:
        self.sweep = torch.zeros(256 * 2**20, dtype=torch.int8, device="cuda")
        self.other = torch.zeros(256 * 2**18, dtype=torch.int32, device="cuda")

    def once(self, call: Callable[[], Any], ahead: int = 0) -> float:
        """Seconds on the device, which is busy for ``ahead`` cycles first.

        The host prepares the call in them, as it does where calls follow one another; without, a call that takes the
        host longer than the sweep shows that time.
        """
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.sweep.zero_()
        self.other.sum(dtype=torch.int64)
        if ahead:
            torch.cuda._sleep(ahead)
        start.record()
        call()
        stop.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(stop)) * 1e-3

    def host(self, call: Callable[[], Any], calls: int = 200) -> float:
        """Seconds of Python and driver a call, the device idle enough not to matter."""
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        seconds = time.perf_counter() - start
        torch.cuda.synchronize()
        return seconds / calls


def peers_of(work: Work, wanted: set[str], tuned: Tune) -> dict[str, Function]:
    found: dict[str, Function] = {"fusec": fusec.jit(work.function, fallback="error")}
    if "eager" in wanted:
        found["eager"] = work.function
    if tuned:
        found["fusec tuned"] = fusec.jit(work.function, fallback="error", tune=tuned)
    if work.unit == "µs a call":
        found["fusec graph"] = fusec.jit(work.function, fallback="error", graph=True)
    if "compile" in wanted:
        found["torch.compile"] = torch.compile(work.function, dynamic=False)
    if "autotune" in wanted and work.autotuned:
        found["max-autotune"] = torch.compile(work.function, dynamic=False, mode="max-autotune-no-cudagraphs")
    return found | (work.peers if "library" in wanted else {})


def errors(work: Work, function: Function, args: tuple[Any, ...]) -> tuple[float, float]:
    """The largest error of fusec and of eager against float64."""
    exact = first(work.function(*(a.double() if a.is_floating_point() else a for a in args)))
    mine, eager = first(function(*args)).double(), first(work.function(*args)).double()
    return float((mine - exact).abs().max()), float((eager - exact).abs().max())


def predicted(function: Function, args: tuple[Any, ...]) -> float:
    """Seconds of a call by the cost model, for this device."""
    return predicted_seconds(fusec.lower(fusec.trace(function, *args)).program)


def first(result: Any) -> Any:
    return result[0] if isinstance(result, tuple) else result


def measure(work: Work, wanted: set[str], rounds: int, clock: Clock, tuned: Tune = False) -> dict[str, Any]:
    args = work.arguments()
    row: dict[str, Any] = {"name": work.name, "unit": work.unit, "notes": []}
    calls: dict[str, Callable[[], Any]] = {}
    with torch.no_grad():
        for name, function in peers_of(work, wanted, tuned).items():
            try:
                start = time.perf_counter()
                function(*args)
                torch.cuda.synchronize()
                row[f"first {name}"] = time.perf_counter() - start
                calls[name] = lambda f=function: f(*args)
                calls[name]()
            except Exception as error:
                lines = str(error).strip().splitlines() or [type(error).__name__]
                row["notes"].append(f"{name} failed: {lines[0][:300]}")
                traceback.print_exc(limit=-4)
                torch.cuda.empty_cache()
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(rounds):
            for name, call in calls.items():
                times[name].append(clock.host(call) if work.unit == "µs a call" else clock.once(call))
        if times.get("fusec"):
            seconds = statistics.median(times["fusec"])
            row |= {"ms": seconds * 1e3, "predicted": predicted(work.function, args) * 1e3}
        for name, values in times.items():
            seconds = statistics.median(values)
            scale = {"TFLOP/s": 1e-12, "GB/s": 1e-9, "µs a call": 0.0}[work.unit]
            row[name] = work.amount / seconds * scale if scale else seconds * 1e6
        if work.exact and "fusec" in calls and "eager" in wanted:
            try:
                mine, eager = errors(work, calls["fusec"].__defaults__[0], args)  # type: ignore[attr-defined]
                row["error"] = mine / max(eager, 1e-30)
            except torch.OutOfMemoryError:
                row["notes"].append("no float64 reference: out of memory")
    return row


def copy_bandwidth(clock: Clock) -> float:
    source = torch.empty(2**30, dtype=torch.int8, device="cuda")
    target = torch.empty_like(source)
    return 2 * 2**30 / statistics.median(clock.once(lambda: target.copy_(source)) for _ in range(15))


NAMES = (
    "fusec",
    "fusec tuned",
    "fusec graph",
    "eager",
    "torch.compile",
    "max-autotune",
    "cublasLt",
    "cuDNN",
    "FA2",
    "FlexAttention",
    "grouped_mm",
    "scaled_mm",
    "sdpa",
    "sdpa compiled",
)


def table(rows: list[dict[str, Any]], heading: str) -> str:
    shown = [n for n in NAMES if any(n in row for row in rows)]
    heads = ("work", "unit", *shown, "ms", "predicted ms", "predicted ÷ measured", "error ÷ eager's")
    lines = [heading, "", modelled(rows), "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in rows:
        cells = [f"{row[n]:.1f}" if n in row else "–" for n in shown]
        error = f"{row['error']:.2f}" if "error" in row else "–"
        model = [f"{row['ms']:.4g}", f"{row['predicted']:.4g}", f"{row['predicted'] / row['ms']:.2f}"]
        cells += [*(model if "ms" in row else ["–"] * 3), error]
        lines.append(f"| {row['name']} | {row['unit']} | {' | '.join(cells)} |")
    lines += ["", *(f"- {row['name']}: {note}" for row in rows for note in row["notes"])]
    return "\n".join(lines) + "\n"


def modelled(rows: list[dict[str, Any]]) -> str:
    """How many rows' times the cost model says."""
    ratios = [row["predicted"] / row["ms"] for row in rows if "ms" in row]
    near = sum(1 / NEAR <= ratio <= NEAR for ratio in ratios)
    return f"Model within {NEAR - 1:.0%} on {near} of {len(ratios)} rows."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="parts of names of works, separated by commas")
    parser.add_argument("--peers", default="eager,compile,autotune,library", help="eager, compile, autotune, library")
    parser.add_argument("--alone", action="store_true", help="fusec alone, its times beside the predicted ones")
    parser.add_argument("--tuned", default=False, choices=("quick", "full"), help="fusec with tune= beside its default")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/gpu.md"), help="file for the table")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("no CUDA device here")
    clock = Clock()
    bandwidth = copy_bandwidth(clock)
    name = torch.cuda.get_device_name()
    heading = f"{name}, torch {torch.__version__}, copy {bandwidth / 1e9:.0f} GB/s; higher is better but for µs"
    print(heading, flush=True)
    wanted = set() if options.alone else set(options.peers.split(","))
    rows: list[dict[str, Any]] = []
    for work in works():
        if options.only and not any(part in work.name for part in options.only.split(",")):
            continue
        try:
            rows.append(measure(work, wanted, options.rounds, clock, options.tuned))
        except Exception as error:
            rows.append({"name": work.name, "unit": work.unit, "notes": [f"failed: {str(error)[:300]}"]})
            traceback.print_exc(limit=-6)
        print({k: round(v, 2) if isinstance(v, float) else v for k, v in rows[-1].items()}, flush=True)
        torch.cuda.empty_cache()
        options.out.write_text(table(rows, heading))
    print(table(rows, heading))


if __name__ == "__main__":
    main()
