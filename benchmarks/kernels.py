"""What fusec made of a function: its kernels, their predicted and their measured times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

import fusec
from benchmarks import noise
from benchmarks.peers import THREADS
from benchmarks.report import KernelTime
from fusec.build import Options, run_passes
from fusec.compiled import Variant
from fusec.frontend.structures import flatten
from fusec.ir.parse import parse
from fusec.passes.cost.program import predict, seconds_after
from fusec.probing import Calls
from fusec.runtime.program import KernelReport, Launch, Program
from fusec.target.cpu import cpu_target
from fusec.target.rates import Rates, usual_rates
from fusec.tuning.machines import known_rates
from fusec.tuning.probe import Prober

T = TypeVar("T")
TRIES = 3

SHORTEST = 5e-6
"""Seconds of a kernel that can be told from the time that launching it from Python takes."""

OF_A_PROBE = ("multiply", "vector", "l2", "bandwidth", "region", "far_start", "ends")
"""Of the rates, what a probe measures; the others are of calls, some of which are measured as often."""


def kernel_times(
    function: Callable[..., Any], args: Sequence[Any], earlier: Rates, repeats: int, peers: int = 0, calls: int = 1
) -> tuple[list[KernelTime], float]:
    """Each kernel of the function for these arguments, and the predicted seconds of a call.

    Equal kernels (all but the name) are counted together. ``peers`` have their turns between two turns of ``calls``
    calls: they leave as much in the caches as the function itself would. ``earlier``: rates before the function was
    timed as a whole.
    """
    rates = earlier.halfway(rates_now())
    variant = fusec.compile(function, *args, freeze=False).only
    executable, program = variant.executable, _predicted(variant, rates)
    leaves, _ = flatten(tuple(args), {}, lambda value: hasattr(value, "dtype") and hasattr(value, "shape"))
    inputs = [leaves[a] if isinstance(a, int) else a() for a in variant.arguments]
    seconds = _undisturbed(lambda: executable.profile(inputs, repeats))
    measured: dict[str, float] = {}
    for step, taken in zip(executable.program.steps, seconds, strict=True):
        if isinstance(step, Launch):
            name = step.group or step.kernel
            measured[name] = measured.get(name, 0.0) + taken
    groups: dict[tuple[object, ...], list[tuple[KernelReport, float]]] = {}
    reports = [report for report in program.reports if report.kernel in measured]
    for report in reports:
        key = (report.kind, report.schedule, report.flops, report.bytes, len(report.fused))
        groups.setdefault(key, []).append((report, measured[report.kernel]))
    whole = sum(report.predicted for report in reports) + program.overhead
    if peers:
        own = sum(float(slot.type.most_bytes) for slot in program.slots if slot.kind != "view")
        whole += seconds_after(program, cpu_target(), rates, THREADS, peers * own) / calls
    return [_merge(group) for group in groups.values()], whole


@cache
def _prober() -> Prober:
    return Prober(cpu_target(), THREADS)


@cache
def _calls() -> Calls:
    return Calls()


def rates_now() -> Rates:
    """What the machine does in this minute: how fast it is depends on what the host's other guests do."""
    target = cpu_target()
    known = known_rates(target) or usual_rates(target, THREADS)
    now = _undisturbed(_prober().measure)
    known = replace(known, **{name: getattr(now, name) for name in OF_A_PROBE}, measured=True)
    return _undisturbed(lambda: _calls().measure(known))


def _undisturbed(work: Callable[[], T]) -> T:
    """What it gives when no other process runs beside it, or the last of TRIES times."""
    for _ in range(TRIES):
        start = noise.now()
        found = work()
        if noise.taken_by_others(start, noise.now()) < noise.TOLERATED:
            break
    return found


def _predicted(variant: Variant, rates: Rates) -> Program:
    """The variant's program, made of its graph once more, as the cost model sees it with these rates."""
    target = variant.executable.program.target
    program = run_passes(parse(variant.graph_text), target, Options(target)).program
    program = predict(program, cpu_target(), rates, THREADS)
    more = rates.tensors if variant.executable.library == "torch" else 0.0
    return replace(program, overhead=program.overhead + more)


def refuse_eager(function: Any) -> None:
    """RuntimeError where calls of a function that ``fusec.jit`` made ran as written: those are not to be timed."""
    jitted = getattr(function, "_fusec", function)
    reasons = dict(jitted.dispatcher.eager_calls) if hasattr(jitted, "dispatcher") else {}
    if reasons:
        raise RuntimeError(f"fusec ran calls as written: {reasons}")


def _merge(group: Sequence[tuple[KernelReport, float]]) -> KernelTime:
    """One line for equal kernels; seconds are of all of them."""
    first, measured = group[0][0], sum(seconds for _, seconds in group)
    return KernelTime(
        first.kernel,
        " ".join(f"{name}={size}" for name, size in first.schedule),
        sum(report.predicted for report, _ in group),
        measured if measured > SHORTEST * len(group) else None,
        sum(report.limit for report, _ in group),
        first.bound,
        len(group),
    )
