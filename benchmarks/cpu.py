"""The CPU's table: fusec against what its user has today, and against the machine's limits.

    python -m benchmarks.cpu                 # all, writes benchmarks/results/cpu.md and cpu.json
    python -m benchmarks.cpu --only attention --quick
    python -m benchmarks.cpu --only low-precision --save DIR --target cpu:sapphirerapids   # here
    python -m benchmarks.cpu --only low-precision --load DIR --out FILE.md                 # where there is no compiler

All peers of a line run in one process in turn, on two threads, on the same random inputs; medians of rounds in
which no other process used the machine.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from benchmarks import noise
from benchmarks.harness import FULL, PAUSE, QUICK
from benchmarks.machine import Machine, measure_machine
from benchmarks.peers import THREADS, limit_threads
from benchmarks.report import Row, as_json, show, write
from benchmarks.saved import Loading, Saving
from benchmarks.session import Session
from benchmarks.workloads import (
    attention,
    bert,
    calls,
    compile_time,
    convnets,
    elementwise,
    gpt2,
    graphs,
    linear,
    load_time,
    low_precision,
    memory,
    minilm,
    routed,
    rowwise,
    scans,
    scores,
    windows,
)
from fusec.probing import measure_machine as measure_rates
from fusec.target.cpu import cpu_target
from fusec.tuning.machines import known_rates

WORKLOADS: dict[str, Callable[[Session], Iterator[Row]]] = {
    "linear": linear.rows,
    "attention": attention.rows,
    "scores": scores.rows,
    "low-precision": low_precision.rows,
    "memory": memory.rows,
    "elementwise": elementwise.rows,
    "rowwise": rowwise.rows,
    "scans": scans.rows,
    "graphs": graphs.rows,
    "routed": routed.rows,
    "windows": windows.rows,
    "minilm": minilm.rows,
    "bert": bert.rows,
    "gpt2": gpt2.rows,
    "convnets": convnets.rows,
    "calls": calls.rows,
    "compile_time": compile_time.rows,
    "load_time": load_time.rows,
}
_NOWHERE = Machine("", "", "", 0, 0, "", 0, "", "", {}, 0.0, "", 0.0)
RESULTS = Path(__file__).parent / "results"

HOW = f"""\
{THREADS} threads. Peers in turn in one process, each once a round, the order rotated, {PAUSE * 1e3:.0f} ms between
turns (calls shorter than a turn are repeated in it); medians of rounds in which other processes took less than
{noise.TOLERATED:.0%} of the machine. A call ends when its result is dropped, so allocating and freeing outputs
counts for all. fusec keeps the memory of dropped results for the next ones, and so pays no page faults from its second
call on. `compile` is torch.compile with its defaults; fusec is not tuned, and keeps no weights packed (`freeze=True`
would).

Target: how many times faster than the fastest of the named peers. Of limit: the least time for the work's matmuls at
the measured rate of the fastest unit for their type, or for its bytes at the measured bandwidth, over fusec's time.
Model: the cost model's time of a call, counted with this machine's rates (what `fusec doctor --measure` measures) as
they are before and after the line's rounds, halfway; a turn's first call after the other peers' turns. Error: fusec's
greatest absolute error against float64, and how many times that of the code as written it is."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", choices=WORKLOADS, help="this workload (again for more)")
    parser.add_argument("--rows", action="append", default=[], help="of convnets: rows with this in their name (again)")
    parser.add_argument("--quick", action="store_true", help="few rounds, no waiting for a quiet machine, no files")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--save", type=Path, metavar="DIR", help="compile the cases into this folder, measure nothing")
    parser.add_argument("--target", default="cpu", help="what --save compiles for")
    parser.add_argument("--load", type=Path, metavar="DIR", help="measure what --save wrote")
    parser.add_argument("--out", type=Path, help="the table's file (default: cpu.md among the results, if all is run)")
    parser.add_argument("--seconds", type=float, default=FULL.seconds, help="of rounds for each line")
    parser.add_argument("--wait", type=float, default=30.0, help="seconds to wait for a quiet machine, each time")
    arguments = parser.parse_args()
    limit_threads()
    warnings.filterwarnings("ignore", module="torch")
    console = Console(width=None if sys.stdout.isatty() else 150)
    budget = QUICK if arguments.quick else replace(FULL, wait=arguments.wait, seconds=arguments.seconds)
    log = partial(console.print, highlight=False, markup=False)
    names = arguments.only or list(WORKLOADS)
    if arguments.save:
        arguments.save.mkdir(parents=True, exist_ok=True)
        saving = Saving(_NOWHERE, QUICK, True, log, folder=arguments.save, target=arguments.target)
        run(saving, names, quiet=False)
        raise SystemExit("\n".join(saving.failures) or 0)
    if not noise.wait_for_quiet(budget.wait):
        console.print("[yellow]other processes use this machine; the figures will be worse than they are[/]")
    known = known_rates(cpu_target()) if arguments.quick or arguments.load else None
    machine = measure_machine(THREADS, budget.wait, known or measure_rates(THREADS))
    session = Session(machine, budget, arguments.quick, log, only=tuple(arguments.rows))
    if arguments.load:
        session = Loading(machine, budget, arguments.quick, log, folder=arguments.load)
    out: Path | None = arguments.out or (RESULTS / "cpu.md" if not arguments.quick and not arguments.only else None)
    command = " ".join(["python -m benchmarks.cpu", *map(shlex.quote, sys.argv[1:])])
    keep = partial(write, arguments.out, machine=machine, how=HOW, command=command) if arguments.out else _forget
    rows = run(session, names, quiet=arguments.json, keep=keep)
    if arguments.json:
        print(as_json(rows, session.machine), end="")
    else:
        show(console, rows)
    for failure in session.failures:
        console.print(failure, style="red", markup=False)
    if out is not None:
        write(out, rows, machine, HOW, command)
    if session.failures:
        raise SystemExit(1)


def _forget(rows: Sequence[Row]) -> None:
    """Keeps nothing before the end."""


@torch.no_grad()
def run(
    session: Session, names: list[str], *, quiet: bool, keep: Callable[[Sequence[Row]], None] = _forget
) -> list[Row]:
    """The rows of these workloads. One that fails is noted in the session, and the others go on.

    A workload with a row that other processes spoiled is run once more at the end, unless this is a quick run.
    keep: given all rows so far after each, so that a run that is stopped leaves what it found.
    """
    found: dict[str, list[Row]] = {name: [] for name in names}
    for name, rows in found.items():
        for row in _rows(session, name, quiet=quiet):
            rows.append(row)
            keep(_flat(found))
    spoiled = [] if session.quick else [name for name, rows in found.items() if any(row.noisy for row in rows)]
    for name in spoiled:
        again = _rows(session, name, quiet=quiet)
        better = {row.work: row for row in again if not row.noisy}
        found[name] = [better.get(row.work, row) if row.noisy else row for row in found[name]]
    return _flat(found)


def _flat(found: Mapping[str, Sequence[Row]]) -> list[Row]:
    return [row for rows in found.values() for row in rows]


def _rows(session: Session, name: str, *, quiet: bool) -> Iterator[Row]:
    start = time.perf_counter()
    try:
        for row in WORKLOADS[name](session):
            if not quiet:
                session.log(f"{row.work}: {_summary(row)}")
            yield row
    except Exception:
        session.failures.append(f"{name} failed:\n{traceback.format_exc()}")
    if not quiet:
        session.log(f"{name} took {time.perf_counter() - start:.0f} s")


def _summary(row: Row) -> str:
    values = ", ".join(f"{name} {value:.3g}" for name, value in row.values.items())
    verdicts = ", ".join(f"{c.text}: {c.value:.2f} {'met' if c.met else 'MISSED'}" for c in row.checks)
    return f"[{row.unit}] {values} | {verdicts}{' (noisy)' if row.noisy else ''}"


if __name__ == "__main__":
    main()
