"""The rows of the table, and the table as text for a terminal, Markdown and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.machine import Machine

FUSEC = "fusec"
MOST_ERROR = 2.0
"""fusec's greatest error may be this many times that of the code as written."""

NEAR = 1.3
"""The cost model is right where neither its time nor the measured one is more than so many times the other."""


@dataclass(frozen=True)
class Check:
    """One target of a row: ``value`` (how many times faster, or an amount) against ``wanted``."""

    text: str
    value: float
    wanted: float
    at_most: bool = False

    @property
    def met(self) -> bool:
        return self.value <= self.wanted if self.at_most else self.value >= self.wanted


@dataclass(frozen=True)
class KernelTime:
    """One kernel of a program: its schedule, the cost model's seconds and the measured ones."""

    name: str
    schedule: str
    predicted: float
    measured: float | None
    limit: float
    bound: str
    count: int = 1


@dataclass(frozen=True)
class Row:
    """One line of the table. values: what each peer needs, in ``unit`` (fusec among them)."""

    work: str
    unit: str
    values: Mapping[str, float]
    checks: Sequence[Check]
    of_limit: float | None = None
    predicted: float | None = None
    errors: Mapping[str, float] = field(default_factory=dict)
    spread: float | None = None
    rounds: int = 0
    noisy: bool = False
    kernels: Sequence[KernelTime] = ()
    notes: Sequence[str] = ()
    first: Mapping[str, float] = field(default_factory=dict)

    @property
    def met(self) -> bool:
        return all(check.met for check in self.checks)

    @property
    def error_ratio(self) -> float | None:
        """fusec's greatest error over that of the code as written; at most MOST_ERROR is promised."""
        reference = next((e for name, e in self.errors.items() if name != FUSEC), None)
        if reference is None or FUSEC not in self.errors:
            return None
        return self.errors[FUSEC] / reference if reference else (1.0 if not self.errors[FUSEC] else float("inf"))


def number(value: float) -> str:
    """Two or three digits that say something."""
    if abs(value) >= 100:
        return f"{value:.0f}"
    if abs(value) >= 1:
        return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
    return f"{value:.2g}" if abs(value) < 0.1 else f"{value:.2f}"


HEADINGS = ("work", "unit", "peers", "fusec", "target", "reached", "met", "of limit", "model", "error, of eager's")


def cells(row: Row) -> tuple[str, ...]:
    """The row as text, one string a column; lines within a cell are separated by newlines."""
    peers = [f"{name} {number(v)}" for name, v in row.values.items() if name != FUSEC]
    error = ""
    if row.error_ratio is not None:
        error = f"{row.errors[FUSEC]:.1e}, {row.error_ratio:.2f}×"
        error += f" (over {MOST_ERROR:g}×)" if row.error_ratio > MOST_ERROR else ""
    return (
        row.work + (" (noisy)" if row.noisy else ""),
        row.unit,
        "\n".join(peers),
        number(row.values[FUSEC]) if FUSEC in row.values else "fails",
        "\n".join(check.text for check in row.checks),
        "\n".join(_reached(check, row.unit) for check in row.checks),
        "\n".join("met" if check.met else "missed" for check in row.checks),
        f"{row.of_limit:.0%}" if row.of_limit is not None else "",
        number(row.predicted) if row.predicted is not None else "",
        error,
    )


def modelled(rows: Sequence[Row]) -> str:
    """How many lines' and kernels' times the cost model says, of those that it has a time for."""
    lines = [row.predicted / row.values[FUSEC] for row in rows if row.predicted and row.values.get(FUSEC)]
    kernels = [k.predicted / k.measured for row in rows for k in row.kernels if k.measured]
    near, near_kernels = (sum(1 / NEAR <= ratio <= NEAR for ratio in ratios) for ratios in (lines, kernels))
    return f"Model within {NEAR - 1:.0%} on {near} of {len(lines)} lines and {near_kernels} of {len(kernels)} kernels."


def _reached(check: Check, unit: str) -> str:
    return f"{number(check.value)} {unit}" if check.at_most else f"{check.value:.2f}×"


def show(console: Console, rows: Iterable[Row]) -> None:
    table = Table(title="fusec on the CPU", title_justify="left", show_lines=True)
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading in ("work", "peers", "target") else "right")
    for row in rows:
        texts = list(cells(row))
        texts[6] = "\n".join("[green]met[/]" if check.met else "[red]missed[/]" for check in row.checks)
        table.add_row(*texts)
    console.print(table)


def markdown(rows: Sequence[Row], machine: Machine, how: str, command: str) -> str:
    """The table for the repository."""
    reached = sum(check.met for row in rows for check in row.checks)
    lines = [
        "# fusec on the CPU",
        "",
        f"{machine.date}, `{command}`. Targets met: {reached} of {sum(len(r.checks) for r in rows)}. {modelled(rows)}",
        "",
        *_machine_lines(machine),
        "",
        how,
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "|" + "---|" * len(HEADINGS),
        *("| " + " | ".join(c.replace("|", "\\|").replace("\n", "<br>") for c in cells(row)) + " |" for row in rows),
        "",
    ]
    notes = [f"- {row.work}: {note}" for row in rows for note in row.notes]
    if notes:
        lines += ["## Notes", "", *notes, ""]
    if any(row.kernels for row in rows):
        lines += _kernel_lines(rows)
    return "\n".join(lines)


def _machine_lines(machine: Machine) -> list[str]:
    packages = ", ".join(f"{name} {v}" for name, v in machine.versions.items())
    units = ", ".join(f"{name} {rate / 1e9:.0f} Gop/s" for name, rate in machine.units.items())
    return [
        f"- {machine.model} ({machine.family}; {machine.mcpu}), {machine.cores} cores, {machine.threads} threads used",
        f"- {machine.caches}; memory {machine.memory}",
        f"- limits, measured: {machine.flops / 1e9:.0f} GFLOP/s single precision ({machine.flops_from}), "
        f"{machine.bandwidth / 1e9:.1f} GB/s read and written (a copy), all {machine.threads} threads",
        *([f"- low-precision matmuls, measured with operands in L1: {units}"] if units else []),
        f"- {packages}",
    ]


def _kernel_lines(rows: Sequence[Row]) -> list[str]:
    lines = [
        "## Kernels",
        "",
        "The cost model's time beside the measured one. Equal kernels of a program are one line.",
        "",
        "| work | kernel | times | schedule | predicted ms | measured ms | roofline ms | bound |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        for k in row.kernels:
            measured = number(k.measured * 1e3) if k.measured is not None else ""
            cells = (row.work, k.name, k.count, k.schedule, number(k.predicted * 1e3), measured, number(k.limit * 1e3))
            lines.append("| " + " | ".join(map(str, (*cells, k.bound))) + " |")
    return [*lines, ""]


def as_json(rows: Sequence[Row], machine: Machine) -> str:
    return json.dumps({"machine": machine.as_dict(), "rows": [_record(row) for row in rows]}, indent=1) + "\n"


def _record(row: Row) -> dict[str, object]:
    return {
        "work": row.work,
        "unit": row.unit,
        "values": dict(row.values),
        "checks": [{"target": c.text, "value": c.value, "wanted": c.wanted, "met": c.met} for c in row.checks],
        "of_limit": row.of_limit,
        "predicted": row.predicted,
        "errors": dict(row.errors),
        "error_ratio": row.error_ratio,
        "spread": row.spread,
        "rounds": row.rounds,
        "noisy": row.noisy,
        "first_call_seconds": dict(row.first),
        "notes": list(row.notes),
        "kernels": [vars(k) for k in row.kernels],
    }


def write(path: Path, rows: Sequence[Row], machine: Machine, how: str, command: str) -> None:
    """The table at ``path``, and beside it the same as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(markdown(rows, machine, how, command))
    path.with_suffix(".json").write_text(as_json(rows, machine))
