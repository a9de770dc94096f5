# SPDX-License-Identifier: Apache-2.0
"""What became of a function, as text: its kernels, what each fused, what was not fused and why."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from fusec.location import Location
from fusec.runtime.lifetimes import LARGE, memory_of
from fusec.runtime.program import Call, Choice, Declined, KernelReport, Launch, Pack, Program
from fusec.target.gpu import is_gpu

WIDTH = 120
PACKED = (
    "kept packed, as freeze=True or static= asks (writes that PyTorch does not count are not promised to be seen: "
    "through .data, NumPy, a storage, a pointer)"
)
_NAMES_SHOWN = 12
_PRECISION = {
    "tf32": ("matmuls of f32 may round their operands to TF32 on a GPU",),
    "bf16": ("matmuls of f32 round their operands to bf16; their sums and results are f32",),
    "f16": ("matmuls of f32 round their operands to f16, where what is beyond 65504 is inf; sums and results are f32",),
}


def explain_program(
    program: Program,
    notes: Sequence[str] = (),
    eager: Mapping[str, int] | None = None,
    measured: Sequence[float] | None = None,
    *,
    owned: bool = False,
) -> str:
    """The report on a program. ``eager``: calls that ran as written, by reason. ``measured``: seconds of each step.
    ``owned``: calls are handed their inputs, as a backward is.

    Deterministic: the same program gives the same text.
    """
    parts: list[RenderableType] = [Text(summary(program), style="bold")]
    parts += [Text(said) for said in precision_lines(program)]
    if program.reports:
        parts.append(_kernel_table(program, measured))
        parts += [Text(line) for report in launched(program) for line in (*_fused_lines(report), *_why(report))]
    parts += section("library calls", [call_line(s) for s in program.steps if isinstance(s, Call) and s.results])
    parts += section("memory", memory_lines(program, owned))
    parts += section("measured", [line for choice in program.choices for line in _choice_lines(choice)])
    parts += section(PACKED, _pack_lines(program))
    parts += section("not fused", [declined_line(d) for d in dict.fromkeys(program.declined)])
    parts += section("notes", list(notes))
    parts += section("calls that ran as written", [f"{n} × {reason}" for reason, n in (eager or {}).items()])
    return render(Group(*parts))


def render(content: RenderableType) -> str:
    """Plain text, without colours, at a fixed width."""
    buffer = io.StringIO()
    Console(file=buffer, width=WIDTH, force_terminal=False, color_system=None, highlight=False).print(content)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def summary(program: Program) -> str:
    """One line: what a program is for, how many ops and kernels it has, and what a call is predicted to take."""
    reports = launched(program)
    ops = sum(len(report.fused) for report in reports)
    calls = sum(isinstance(step, Call) and bool(step.results) for step in program.steps)
    library = f", {_count(calls, 'library call')}" if calls else ""
    whole = predicted_seconds(program)
    known = program.overhead or is_gpu(program.target)
    expected = f", about {time_text(whole)} a call" if known and not calls else ""
    fused = f"{_count(ops, 'op')} in {_count(len(reports), 'kernel')}"
    return f"{program.name} on {program.target}: {fused}{library}{expected}"


def precision_lines(program: Program) -> Sequence[str]:
    """What matmuls may round, where the user allowed it."""
    return _PRECISION.get(program.precision, ())


def predicted_seconds(program: Program) -> float:
    """Of a call, where calls follow each other."""
    return sum(report.predicted for report in launched(program)) + program.overhead


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def launched(program: Program) -> list[KernelReport]:
    """The reports in the order of the launches."""
    by_name = {report.kernel: report for report in program.reports}
    names = dict.fromkeys(step.group or step.kernel for step in program.steps if isinstance(step, Launch))
    return [by_name[name] for name in names if name in by_name]


def kernel_seconds(program: Program, measured: Sequence[float] | None = None) -> dict[str, float]:
    """Seconds of each reported group: of its steps where they were ``measured``, else as tuning measured its choice."""
    if measured is None:
        tuned = {c.group: seconds for c in program.choices for text, seconds, _ in c.measured if text == c.chosen}
        return {group: seconds for group, seconds in tuned.items() if seconds is not None}
    found: dict[str, float] = {}
    for seconds, step in zip(measured, program.steps, strict=True):
        if isinstance(step, Launch):
            group = step.group or step.kernel
            found[group] = found.get(group, 0.0) + seconds
    return found


def _kernel_table(program: Program, measured: Sequence[float] | None) -> Table:
    times = kernel_seconds(program, measured)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    columns = ["kernel", "kind", "tiles", "flops", "bytes", "predicted"]
    for column in [*columns, *(["measured"] if times else []), "limit", "of the limit"]:
        table.add_column(column, justify="left" if column in ("kernel", "kind", "tiles") else "right")
    for report in launched(program):
        row = [
            report.kernel,
            report.kind,
            " ".join(f"{name}={size}" for name, size in report.schedule),
            amount_text(report.flops),
            amount_text(report.bytes),
            time_text(report.predicted),
        ]
        seconds = times.get(report.kernel, report.predicted)
        if times:
            row.append(time_text(seconds) if report.kernel in times else "-")
        share = f"{100 * report.limit / seconds:.0f} %" if seconds > 0 else "-"
        bound = "" if report.parts else f" {report.bound}"
        table.add_row(*row, f"{time_text(report.limit)}{bound}", share)
    return table


def _fused_lines(report: KernelReport) -> list[str]:
    by_line: dict[Location | None, list[str]] = {}
    for op in report.fused:
        by_line.setdefault(op.location, []).append(str(op))
    lines = [f"{report.kernel} does"]
    for location, names in by_line.items():
        more = f", and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
        where = location.short if location is not None else "-"
        lines.append(_wrapped(f"    {where:<24} ", ", ".join(names[:_NAMES_SHOWN]) + more))
    return lines


_TO = {
    "multiply": "multiplying",
    "elementwise": "elementwise code",
    "L2": "reading from L2",
    "L3": "L3",
    "memory": "main memory",
    "start": "starting",
}


def _why(report: KernelReport) -> list[str]:
    """What a CPU kernel's predicted time is made of, the longest first; they overlap in part."""
    if not report.parts:
        return []
    longest = sorted(report.parts, key=lambda part: -part[1])
    told = [f"{_TO[name]} {time_text(seconds)}" for name, seconds in longest if seconds >= 0.02 * longest[0][1]]
    return [_wrapped("    ", f"bound by {_TO[report.bound]}: {', '.join(told)}")]


def _wrapped(head: str, text: str) -> str:
    """Text broken at the report's width, the later lines below the first."""
    return textwrap.fill(text, WIDTH, initial_indent=head, subsequent_indent=" " * len(head))


def _pack_lines(program: Program) -> list[str]:
    packs = [step for step in program.steps if isinstance(step, Pack)]
    return [f"{program.slots[s.arguments[0]].name} by {s.kernel}" for s in packs if len(s.arguments) > 1]


def call_line(step: Call) -> str:
    """A library call, where it stands and why it is one."""
    where = f" at {step.location.short}" if step.location is not None else ""
    reason = f": {step.attributes.reason}" if step.attributes.reason else ""
    return f"{step.attributes.target}{where}{reason}"


def _choice_lines(choice: Choice) -> list[str]:
    """A group's alternatives, the fastest first, then those that were counted out."""
    timed = sorted((seconds, text) for text, seconds, _ in choice.measured if seconds is not None)
    lines = [f"{choice.group}"]
    lines += [f"{time_text(s):>10}  {text}{' (chosen)' if text == choice.chosen else ''}" for s, text in timed]
    return lines + [f"{'-':>10}  {text}: {why}" for text, seconds, why in choice.measured if seconds is None]


def declined_line(declined: Declined) -> str:
    """A fusion that was declined, and why."""
    where = f" at {declined.location.short}" if declined.location is not None else ""
    return f"{declined.rule}{where}: {declined.reason}"


def memory_lines(program: Program, owned: bool) -> list[str]:
    """What a call has at most at a time, where that is not little."""
    memory = memory_of(program, owned=owned)
    if memory is None or max(memory.peak, memory.results) < LARGE:
        return []
    given = ", which are let go once they have been read" if owned else ""
    peak, results = (n / 2**20 for n in (memory.peak, memory.results))
    return [f"{peak:.0f} MiB at most at a time beside its inputs{given}; {results:.0f} MiB are results"]


def section(title: str, lines: Sequence[str]) -> list[RenderableType]:
    """Lines below a title; nothing where there are none."""
    return [Text(title), *(Text(_wrapped("    ", line)) for line in lines)] if lines else []


def amount_text(n: float) -> str:
    """Such as ``12.3M``."""
    for unit in ("", "K", "M", "G", "T"):
        if n < 1000 or unit == "T":
            return f"{n:.0f}{unit}" if unit == "" else f"{n:.3g}{unit}"
        n /= 1000
    raise AssertionError


def time_text(seconds: float) -> str:
    """Such as ``12.3 µs``."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} µs"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
