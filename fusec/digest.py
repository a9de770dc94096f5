# SPDX-License-Identifier: Apache-2.0
"""A report that fits a screen: of a program with many kernels, like ones are told once and the longest first."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fusec.report import (
    WIDTH,
    amount_text,
    call_line,
    declined_line,
    explain_program,
    kernel_seconds,
    launched,
    memory_lines,
    precision_lines,
    render,
    section,
    summary,
    time_text,
)
from fusec.runtime.program import Call, KernelReport, Program

SCREEN = 60
"""Lines of a report; one that is longer is told shortly."""

_ROWS = 16
_DONE = 12
_FEW = 5

MORE = "every kernel, with its tiles and lines: detail=True, or fusec inspect --detail"


def tell_program(
    program: Program,
    notes: Sequence[str] = (),
    eager: Mapping[str, int] | None = None,
    measured: Sequence[float] | None = None,
    *,
    owned: bool = False,
    detail: bool = False,
) -> str:
    """:func:`~fusec.report.explain_program`, where that fits a screen or with ``detail``; else a digest that does."""
    whole = explain_program(program, notes, eager, measured, owned=owned)
    if detail or whole.count("\n") <= SCREEN:
        return whole
    return _digest(program, notes, eager, measured, owned)


@dataclass
class Alike:
    """Kernels that do the same with arrays of the same sizes, such as those of a model's layers."""

    reports: list[KernelReport]
    seconds: float

    @property
    def name(self) -> str:
        times = f" × {len(self.reports)}" if len(self.reports) > 1 else ""
        return f"{self.reports[0].kernel}{times}"


def folded(program: Program, measured: Sequence[float] | None = None) -> list[Alike]:
    """The kernels, like ones together, those that take longest in all first."""
    times = kernel_seconds(program, measured)
    found: dict[Hashable, Alike] = {}
    for report in launched(program):
        what = tuple((o.op, o.location) for o in report.fused)
        key = (report.kind, report.schedule, report.flops, report.bytes, what)
        alike = found.setdefault(key, Alike([], 0.0))
        alike.reports.append(report)
        alike.seconds += times.get(report.kernel, report.predicted)
    return sorted(found.values(), key=lambda alike: -alike.seconds)


def _digest(
    program: Program,
    notes: Sequence[str],
    eager: Mapping[str, int] | None,
    measured: Sequence[float] | None,
    owned: bool,
) -> str:
    groups = folded(program, measured)
    calls = [call_line(s) for s in program.steps if isinstance(s, Call) and s.results]
    parts: list[RenderableType] = [Text(summary(program), style="bold")]
    parts += [Text(line) for line in precision_lines(program)]
    if groups:
        parts += [_table(groups, "measured" if kernel_seconds(program, measured) else "predicted"), *_done(groups)]
    parts += section("library calls", _few(calls))
    parts += section("memory", memory_lines(program, owned))
    parts += section("not fused", _few([declined_line(d) for d in program.declined]))
    parts += section("notes", _few(notes))
    parts += section("calls that ran as written", _few([f"{n} × {why}" for why, n in (eager or {}).items()]))
    return render(Group(*parts, Text(MORE)))


def _table(groups: Sequence[Alike], what: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("kernel", "kind", "flops", what, "in all", "share", "running", "of the limit"):
        table.add_column(column, justify="left" if column in ("kernel", "kind") else "right", no_wrap=True)
    whole, running = sum(g.seconds for g in groups) or 1.0, 0.0
    for group in groups[:_ROWS]:
        running += group.seconds
        report, count = group.reports[0], len(group.reports)
        limit = count * report.limit / group.seconds if group.seconds > 0 else 0.0
        table.add_row(
            group.name,
            report.kind,
            amount_text(report.flops),
            time_text(group.seconds / count),
            time_text(group.seconds),
            f"{100 * group.seconds / whole:.0f} %",
            f"{100 * running / whole:.0f} %",
            f"{100 * limit:.0f} %",
        )
    if len(groups) > _ROWS:
        rest = sum(g.seconds for g in groups[_ROWS:])
        name = f"and {sum(len(g.reports) for g in groups[_ROWS:])} more"
        table.add_row(name, "", "", "", time_text(rest), f"{100 * rest / whole:.0f} %", "100 %", "")
    return table


def _done(groups: Sequence[Alike]) -> list[Text]:
    """A line for each of the first groups: where its ops stand in the user's code, and what they are."""
    lines = []
    for group in groups[:_DONE]:
        by_line: dict[str, dict[str, None]] = {}
        for op in group.reports[0].fused:
            by_line.setdefault("-" if op.location is None else op.location.short, {})[op.op] = None
        told = "; ".join(f"{where} {', '.join(ops)}" for where, ops in by_line.items())
        line = f"{group.name:<26} {told}"
        lines.append(Text(line if len(line) <= WIDTH else f"{line[: WIDTH - 4]} ..."))
    return lines


def _few(lines: Sequence[str]) -> list[str]:
    """Each line once, with how often it is there, on one line; the first ones."""
    counts: dict[str, int] = {}
    for line in lines:
        counts[line] = counts.get(line, 0) + 1
    told = [f"{n} × {line}" if n > 1 else line for line, n in counts.items()]
    cut = [line if len(line) < WIDTH - 8 else f"{line[: WIDTH - 12]} ..." for line in told[:_FEW]]
    return cut + ([f"and {len(told) - _FEW} more"] if len(told) > _FEW else [])
