# SPDX-License-Identifier: Apache-2.0
"""The table of a program's kernels: like ones in one row, the longest first, with shares and a running total."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from fusec.digest import Alike, folded
from fusec.measuring import Spread
from fusec.page.gather import Part
from fusec.report import amount_text, kernel_seconds, time_text
from fusec.runtime.program import Call, Program

_NUMBERS = ("flops", "bytes", "each", "in all", "share", "running", "of the limit")
_ABOVE = 1.1
"""Times of the whole that the parts may sum up to before a machine is said to be loaded."""


def anchor(part: int, kernel: str) -> str:
    """The id of a kernel's text in the page."""
    return f"kernel-{part}-{kernel}"


def kernel_table(part: Part, number: int) -> list[str]:
    """The table, and what a whole call takes where that was measured."""
    groups = folded(part.program, part.measured)
    whole = sum(group.seconds for group in groups)
    running, rows = 0.0, []
    for group in groups:
        running += group.seconds
        rows.append(_row(group, number, whole, running))
    told = "measured" if kernel_seconds(part.program, part.measured) else "predicted"
    heads = "".join(f"<th class=number>{name}</th>" for name in _NUMBERS)
    head = f"<tr><th>kernel</th><th>kind</th><th>lines</th>{heads}</tr>"
    lines = (
        [f'<table class="kernels"><caption>Times are {told}.</caption>{head}{"".join(rows)}</table>'] if rows else []
    )
    return [*_total(part.whole, part.measured), *lines, *_calls(part.program, part.measured)]


def _row(group: Alike, number: int, whole: float, running: float) -> str:
    first, count = group.reports[0], len(group.reports)
    name = f'<a href="#{escape(anchor(number, first.kernel))}">{escape(group.name)}</a>'
    where = dict.fromkeys(op.location.short for op in first.fused if op.location is not None)
    limit = count * first.limit / group.seconds if group.seconds > 0 else 0.0
    numbers = (
        amount_text(first.flops),
        amount_text(first.bytes),
        time_text(group.seconds / count),
        time_text(group.seconds),
        f"{100 * group.seconds / whole:.0f} %" if whole else "-",
        f"{100 * running / whole:.0f} %" if whole else "-",
        f"{100 * limit:.0f} %",
    )
    cells = "".join(f"<td class=number>{text}</td>" for text in numbers)
    shown = escape(", ".join(where))
    return f'<tr class="row"><td>{name}</td><td>{escape(first.kind)}</td><td class=lines>{shown}</td>{cells}</tr>'


def _total(whole: Spread | None, measured: Sequence[float] | None) -> list[str]:
    """A call's time, and a warning where its parts take longer than the whole: something else ran meanwhile."""
    if whole is None or measured is None:
        return []
    text = f"A call takes {time_text(whole.median)} ({time_text(whole.least)} to {time_text(whole.most)}), measured."
    lines = [f"<p>{text}</p>"]
    parts = sum(measured)
    if parts > _ABOVE * whole.most:
        lines.append(
            f'<p class="warning">Its parts took {time_text(parts)} in all, more than the whole: the machine was busy '
            "with something else when they were measured, or each is too short to be measured by itself.</p>"
        )
    return lines


def _calls(program: Program, measured: Sequence[float] | None) -> list[str]:
    """Library calls, with their times where they were measured."""
    times = measured if measured is not None else [None] * len(program.steps)
    table: dict[str, list[float | None]] = {}
    for step, seconds in zip(program.steps, times, strict=True):
        if isinstance(step, Call) and step.results:
            where = step.location.short if step.location is not None else "-"
            table.setdefault(f"{step.attributes.target}\0{where}", []).append(seconds)
    rows = []
    for key, each in table.items():
        target, where = key.split("\0")
        known = [s for s in each if s is not None]
        time = time_text(sum(known)) if known else "-"
        count = f" × {len(each)}" if len(each) > 1 else ""
        cells = f"<td>{escape(target)}{count}</td><td>{escape(where)}</td><td class=number>{time}</td>"
        rows.append(f'<tr class="row">{cells}</tr>')
    head = "<tr><th>library call</th><th>line</th><th class=number>in all</th></tr>"
    return [f'<table class="kernels">{head}{"".join(rows)}</table>'] if rows else []
