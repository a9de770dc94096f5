"""What fusec made of a function: its kernels, their predicted and their measured times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import fusec
from benchmarks.peers import THREADS
from benchmarks.report import KernelTime
from fusec.frontend.capture import flatten
from fusec.passes.cost.program import seconds_after
from fusec.runtime.machines import known_rates
from fusec.runtime.program import KernelReport, Launch
from fusec.target.cpu import cpu_target
from fusec.target.rates import usual_rates

SHORTEST = 5e-6
"""Seconds of a kernel that can be told from the time that launching it from Python takes."""


def kernel_times(
    function: Callable[..., Any], args: Sequence[Any], repeats: int, peers: int = 0, calls: int = 1
) -> tuple[list[KernelTime], float]:
    """Each kernel of the function for these arguments, and the predicted seconds of a call.

    Equal kernels (all but the name) are counted together. ``peers`` have their turns between two turns of ``calls``
    calls: they leave as much in the caches as the function itself would.
    """
    variant = fusec.compile(function, *args, freeze=False).only
    executable = variant.executable
    leaves, _ = flatten(tuple(args), {}, lambda value: hasattr(value, "dtype") and hasattr(value, "shape"))
    inputs = [leaves[a] if isinstance(a, int) else a() for a in variant.arguments]
    seconds = executable.profile(inputs, repeats)
    measured: dict[str, float] = {}
    for step, taken in zip(executable.program.steps, seconds, strict=True):
        if isinstance(step, Launch):
            name = step.group or step.kernel
            measured[name] = measured.get(name, 0.0) + taken
    groups: dict[tuple[object, ...], list[tuple[KernelReport, float]]] = {}
    reports = [report for report in executable.program.reports if report.kernel in measured]
    for report in reports:
        key = (report.kind, report.schedule, report.flops, report.bytes, len(report.fused))
        groups.setdefault(key, []).append((report, measured[report.kernel]))
    whole = sum(report.predicted for report in reports) + executable.program.overhead
    if peers:
        target = cpu_target()
        rates = known_rates(target) or usual_rates(target, THREADS)
        own = sum(float(slot.type.most_bytes) for slot in executable.program.slots if slot.kind != "view")
        whole += seconds_after(executable.program, target, rates, THREADS, peers * own) / calls
    return [_merge(group) for group in groups.values()], whole


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
