# SPDX-License-Identifier: Apache-2.0
"""Calls as traces and profilers see them: a range around each call and each of its steps, with the user's lines.

A program's code has a test before its first step: whether a trace is recorded, NVTX ranges are asked for, or the
library's own profiler is on. Where it is, the call goes to :attr:`Executable.watched` instead, which does the
same, step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from fusec import config, tracing
from fusec.frontend.capture import Library
from fusec.location import Location
from fusec.runtime.clocks import DeviceClock, device_clock, is_capturing
from fusec.runtime.code import Scope
from fusec.runtime.program import Call, KernelReport, Launch, Pack, Program, Step

_LINES_SHOWN = 8

Range = Callable[[str], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Label:
    """What a range is called (``kernel [file.py:3,4]``), its category, and what a trace says of it."""

    name: str
    category: str
    details: dict[str, Any]


def call_label(program: Program) -> Label:
    """The label of a whole call."""
    reports = program.reports
    details = {
        "target": program.target,
        "kernels": sum(isinstance(step, Launch) for step in program.steps),
        "flops": sum(r.flops for r in reports),
        "bytes": sum(r.bytes for r in reports),
    }
    return Label(f"fusec {program.name}", "call", details)


def step_labels(program: Program) -> list[Label]:
    """The label of each step. Where several kernels make one group, its figures stand at the first."""
    reports = {report.kernel: report for report in program.reports}
    told: set[str] = set()
    return [_step_label(program, step, reports, told) for step in program.steps]


def _step_label(program: Program, step: Step, reports: dict[str, KernelReport], told: set[str]) -> Label:
    match step:
        case Launch():
            if not step.group:  # a packing of what no version counter guards
                return Label(f"pack {program.slots[step.arguments[0]].name}", "pack", {"kernel": step.kernel})
            report = reports.get(step.group)
            if report is None:
                return Label(step.kernel, "kernel", {})
            # Groups that are alike share a kernel; a group's first step goes by the name that explain gives the group.
            name, details = (step.kernel, {}) if step.group in told else (step.group, _details(report))
            told.add(step.group)
            return Label(_named(name, [o.location for o in report.fused]), "kernel", details)
        case Pack():
            return Label(f"pack {program.slots[step.arguments[0]].name}", "pack", {"kernel": step.kernel})
        case Call():
            details = {"reason": step.attributes.reason} if step.attributes.reason else {}
            return Label(_named(step.attributes.target, [step.location]), "library", details)


def _details(report: KernelReport) -> dict[str, Any]:
    return {
        "kind": report.kind,
        "ops": [f"{o} {o.location.short}" if o.location is not None else str(o) for o in report.fused],
        "tiles": " ".join(f"{name}={size}" for name, size in report.schedule),
        "flops": report.flops,
        "bytes": report.bytes,
        "predicted us": report.predicted * 1e6,
        "limit us": report.limit * 1e6,
        "bound": report.bound,
    }


def _named(name: str, locations: Sequence[Location | None]) -> str:
    """``name [model.py:3,4 util.py:7]``."""
    lines = sorted(
        {(location.short.rpartition(":")[0], location.line) for location in locations if location is not None}
    )
    if not lines:
        return name
    files = groupby(lines[:_LINES_SHOWN], key=lambda line: line[0])
    text = " ".join(f"{file}:{','.join(str(n) for _, n in found)}" for file, found in files)
    return f"{name} [{text}{', ...' if len(lines) > _LINES_SHOWN else ''}]"


class Watcher:
    """Makes the ranges of one program's calls. Safe to use from many threads."""

    def __init__(self, program: Program, library: Library, device: int | None) -> None:
        self._call, self._steps = call_label(program), step_labels(program)
        self._library = library
        self._device = device

    def call(self) -> ExitStack:
        """The range of a call."""
        return self._range(self._call, None)

    def step(self, number: int) -> ExitStack:
        """The range of a step."""
        timed = tracing.on and self._device is not None and not is_capturing(self._library)
        clock = device_clock(self._library, self._device) if timed and self._device is not None else None
        return self._range(self._steps[number], clock)

    def _range(self, label: Label, clock: DeviceClock | None) -> ExitStack:
        stack = ExitStack()
        if self._library == "torch":
            import torch.autograd.profiler as profiler

            if profiler._is_profiler_enabled:
                stack.enter_context(profiler.record_function(label.name))
        if config.nvtx():
            push_pop = _nvtx(self._library)
            if push_pop is not None:
                push_pop[0](label.name)
                stack.callback(push_pop[1])
        if tracing.on:
            stack.enter_context(tracing.span(label.name, label.category, **label.details))
            if clock is not None:
                stack.enter_context(_on_device(label, clock))
        return stack


@contextmanager
def _on_device(label: Label, clock: DeviceClock) -> Any:
    """Marks on the current stream before and after; nothing waits for the device."""
    start = clock.mark()
    yield
    end = clock.mark()

    def times(wait: bool) -> tuple[int, int] | None:
        last = clock.nanoseconds(end, wait)
        first = clock.nanoseconds(start, wait)
        return None if first is None or last is None else (first, last)

    row, row_name = clock.row()
    tracing.on_device(label.name, row, row_name, label.details, times)


def _nvtx(library: Library) -> tuple[Callable[[str], Any], Callable[[], Any]] | None:
    """What begins and ends an NVTX range; None where the library has no NVTX."""
    if library == "cupy":
        from cupy.cuda import nvtx

        return (nvtx.RangePush, nvtx.RangePop) if nvtx.available else None
    if library == "torch":
        import torch

        if torch.version.cuda is not None:
            return torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop
    return None


def watch_test(scope: Scope, profiler: Any) -> str:
    """The condition under which a call is watched. ``profiler``: the library's module with its switch, or None."""
    test = f"{scope.bind(tracing, 'tracing')}.watched"
    return test if profiler is None else f"{test} or {scope.bind(profiler, 'profiler')}._is_profiler_enabled"
