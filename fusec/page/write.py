# SPDX-License-Identifier: Apache-2.0
"""The page itself. Every text that comes from a file or a user is escaped, and the page may load nothing."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from importlib.resources import files
from os import PathLike
from pathlib import Path

from fusec.digest import folded
from fusec.errors import ArtifactError, ParseError, TypeRuleError
from fusec.ir.parse import parse
from fusec.location import Location
from fusec.os_errors import told
from fusec.page.boxes import Seconds
from fusec.page.gather import Gathered, KernelText, Part
from fusec.page.kernels import anchor, kernel_table
from fusec.page.noise import noise_table
from fusec.page.picture import height_of, picture
from fusec.page.roofline import roofline
from fusec.page.text import escaped, plain
from fusec.report import explain_program, kernel_seconds, launched, summary
from fusec.runtime.program import KernelReport, Launch, Pack

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def write_page(gathered: Gathered, path: str | PathLike[str]) -> None:
    """Writes the page. ArtifactError where it can't be written."""
    try:
        Path(path).write_text(page(gathered), encoding="utf-8")
    except OSError as error:
        raise ArtifactError(f"can't write {path}: {told(error, path)}") from None


def page(gathered: Gathered) -> str:
    """The HTML text."""
    title = escaped(gathered.name)
    body = [f"<h1>{title}</h1>", "<p>" + "<br>".join(map(escaped, gathered.facts)) + "</p>"]
    body.append('<input type="search" id="search" placeholder="search kernels, lines, ops" aria-label="search">')
    if gathered.quantization is not None:
        body += noise_table(gathered.quantization)
    for number, part in enumerate(gathered.parts):
        body += _part(gathered, part, number)
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            f"<title>{title}</title>\n<style>\n{_resource('page.css')}</style>\n</head>\n<body>",
            *body,
            f"<script>\n{_resource('page.js')}</script>\n</body>\n</html>\n",
        ]
    )


def _part(gathered: Gathered, part: Part, number: int) -> list[str]:
    lines = [f"<h2>for {escaped(part.ranges)}</h2>"] if part.ranges else []
    lines += [f"<p>{escaped(summary(part.program))}</p>", *kernel_table(part, number)]
    report = escaped(explain_program(part.program, part.notes, None, part.measured))
    lines.append(f'<details><summary>The whole report</summary><pre class="report">{report}</pre></details>')
    seconds = kernel_seconds(part.program, part.measured)
    times = {report.kernel: seconds.get(report.kernel, report.predicted) for report in launched(part.program)}
    for heading, stage in (("Before fusion", "capture"), ("After fusion", "fuse")):
        lines.append(f"<h2>{heading}</h2>")
        lines.append(_graph(part.stages.get(stage, ""), number, times))
    plot = roofline(part.program.target, folded(part.program, part.measured), seconds)
    if plot:
        lines += ["<h2>Roofline</h2>", f'<div class="frame plot" data-part="{number}">{plot}</div>']
        rates = "measured, or predicted by the cost model" if seconds else "predicted by the cost model"
        lines.append(f"<p>Dots: rates, {rates}. Rings: its limit for the kernel.</p>")
    lines += ["<h2>Kernels</h2>", *_kernels(gathered, part, number)]
    lines += ["<h2>Not fused, and why</h2>", *_declined(part)]
    return [*lines, "<h2>Passes</h2>", *_passes(part)]


def _graph(text: str, number: int, times: Seconds) -> str:
    try:
        drawn = picture(parse(text), times)
    except (ParseError, TypeRuleError) as error:
        return f"<p>No picture: {escaped(str(error))}</p>"
    hint = "drag to move, wheel to zoom, double-click for the whole"
    buttons = ""
    if 'class="layer"' in drawn:
        hint = f"press a layer to unfold it, {hint}"
        buttons = '<p><button class="unfold">unfold all layers</button> <button class="fold">fold all</button></p>'
    height = f"min(70vh, {round(height_of(drawn))}px)"  # so that small graphs are not blown up
    frame = f'<div class="frame zoom" data-part="{number}" tabindex="0" style="height: {height}">'
    return f'{buttons}{frame}<span class="hint">{hint}</span>{plain(drawn)}</div>'


def _kernels(gathered: Gathered, part: Part, number: int) -> list[str]:
    """What like kernels do, once, beside the user's lines; each has an anchor there."""
    texts = {kernel.name: kernel for kernel in part.kernels}
    lines = []
    for group in folded(part.program, part.measured):
        first, *others = group.reports
        anchors = "".join(f'<span id="{escaped(anchor(number, report.kernel))}"></span>' for report in others)
        place = f'id="{escaped(anchor(number, first.kernel))}" data-part="{number}"'
        head = f'{escaped(group.name)} ({escaped(first.kind)}) <button class="show">in the graph</button>'
        lines.append(f'<details class="kernel-text" {place}><summary>{anchors}{head}</summary>')
        lines.append(f'<div class="beside"><div>{_users_lines(gathered, first)}</div><div>')
        named = dict.fromkeys(name for report in group.reports for name in _kernels_of(part, report.kernel))
        own = [texts[name] for name in named if name in texts]
        lines += [_kernel_text(kernel) for kernel in own]
        lines.append("</div></div></details>" if own else "<p>Its text was not kept.</p></div></div></details>")
    return lines


def _kernels_of(part: Part, group: str) -> list[str]:
    """The kernels of a report's launches, and those that pack weights for them."""
    packs = re.compile(rf"{re.escape(group)}_pack\d+")
    named = [
        step.kernel
        for step in part.program.steps
        if (isinstance(step, Pack) and packs.fullmatch(step.kernel))
        or (isinstance(step, Launch) and (step.group or step.kernel) == group)
    ]
    return list(dict.fromkeys(named))


def _users_lines(gathered: Gathered, report: KernelReport) -> str:
    by_line: dict[Location | None, list[str]] = {}
    for op in report.fused:
        by_line.setdefault(op.location, []).append(str(op))
    rows = []
    for location, names in by_line.items():
        where = location.short if location is not None else "-"
        code = gathered.line(location) if location is not None else ""
        shown = f"<pre>{escaped(code)}</pre>" if code else ""
        rows.append(f"<tr><th>{escaped(where)}</th><td>{shown}{escaped(', '.join(names))}</td></tr>")
    return f"<table>{''.join(rows)}</table>"


def _kernel_text(kernel: KernelText) -> str:
    name = escaped(kernel.name)
    tile = f"<details open><summary>{name}: tile IR</summary><pre>{escaped(kernel.tile)}</pre></details>"
    if not kernel.source:
        return tile
    head = f"{name}.{escaped(kernel.language)}"
    return f"{tile}<details><summary>{head}</summary><pre>{escaped(kernel.source)}</pre></details>"


def _declined(part: Part) -> list[str]:
    rows = []
    for declined in dict.fromkeys(part.program.declined):
        where = declined.location.short if declined.location is not None else "-"
        rows.append(
            f"<tr><th>{escaped(where)}</th><td>{escaped(declined.rule)}</td><td>{escaped(declined.reason)}</td></tr>"
        )
    return [f"<table>{''.join(rows)}</table>"] if rows else ["<p>Nothing was declined.</p>"]


def _passes(part: Part) -> list[str]:
    """What each pass changed, as a difference of IR texts; the first and the last stages whole."""
    lines = []
    stages = list(part.stages.items())
    for (_, before), (name, after) in zip([("", ""), *stages], stages):
        if name in ("capture", "schedule", "tile"):
            lines.append(f"<details><summary>{escaped(name)}</summary><pre>{escaped(after)}</pre></details>")
        elif before.rstrip() == after.rstrip():
            lines.append(f'<p class="same">{escaped(name)}: no change</p>')
        else:
            changes = list(difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=2))[2:]
            added, removed = (sum(line.startswith(sign) for line in changes) for sign in "+-")
            head = f"{escaped(name)}: {added} lines added, {removed} removed"
            lines.append(f'<details class="diff"><summary>{head}</summary><pre>{_diff(changes)}</pre></details>')
    return lines


def _diff(changes: Sequence[str]) -> str:
    styles = {"+": "ins", "-": "del", "@": "b"}
    return "\n".join(
        f"<{style}>{escaped(line)}</{style}>" if (style := styles.get(line[:1])) else escaped(line) for line in changes
    )


def _resource(name: str) -> str:
    return files("fusec.page").joinpath(name).read_text(encoding="utf-8")
