"""The whole sweep: each op, dtype and check, with the known failures, and the tables of results."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, fields
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from opdb.check import (
    Outcome,
    case_of,
    check_forward,
    check_gradients,
    plain_reason,
    run_directly,
    run_through_dynamo,
    with_specials,
)
from opdb.families import NAMES, chosen_ops, name_of
from opdb.known import KNOWN

CHECKS = ("forward", "specials", "dynamo", "gradients")
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
LIMITS = {"forward": 10_000, "specials": 4, "dynamo": 1, "gradients": 1}
"""Samples of one op and dtype in each check."""

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "opdb.md"


@dataclass
class Row:
    """What became of the samples of one op, dtype and check."""

    family: str
    op: str
    dtype: str
    check: str
    states: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def key(self) -> str:
        return f"{self.op} {self.dtype} {self.check}"


def run_row(family: str, op: Any, dtype: str, check: str, limit: int | None = None) -> Row:
    """Runs one op's samples of one dtype through one check."""
    row = Row(family, name_of(op), dtype, check)
    start = time.perf_counter()
    for number, outcome in enumerate(_outcomes(family, op, dtype, check, limit or LIMITS[check])):
        row.states[outcome.state] += 1
        if outcome.reason and outcome.state != "compiled":
            row.reasons[f"{outcome.state}: {plain_reason(outcome.reason)}"] += 1
        if outcome.state == "wrong" and row.states["wrong"] == 1:
            row.reasons[f"first wrong sample: {number}"] += 1
    row.seconds = time.perf_counter() - start
    return row


def _outcomes(family: str, op: Any, dtype: str, check: str, limit: int) -> Iterator[Outcome]:
    torch.manual_seed(0)
    samples = op.sample_inputs("cpu", DTYPES[dtype], requires_grad=False)
    for number, sample in enumerate(islice(samples, limit)):
        case = case_of(op, sample)
        if check == "gradients":
            outcome = check_gradients(case)
        elif check == "dynamo":
            outcome = check_forward(case, run_through_dynamo)
        else:
            if check == "specials":
                case = with_specials(case, number, 0.7 if family == "elementwise" else 0.05)
            outcome = check_forward(case, run_directly)
            if outcome is not None and outcome.state == "refused":  # Dynamo may compile the rest of it
                outcome = check_forward(case, run_through_dynamo)
        if outcome is not None:
            yield outcome


def jobs(checks: Sequence[str], dtypes: Sequence[str], families: Sequence[str], pattern: str) -> list[tuple[Any, ...]]:
    """Family, place in op_db, dtype and check of each row that is asked for."""
    found = []
    for place, (family, op) in enumerate(chosen_ops()):
        if family not in families or not re.search(pattern, name_of(op)):
            continue
        for dtype in dtypes:
            if not op.supports_dtype(DTYPES[dtype], "cpu"):
                continue
            for check in checks:
                if check in ("dynamo", "gradients") and dtype != "f32":
                    continue
                if check == "gradients" and not op.supports_autograd:
                    continue
                if check == "specials" and family in ("view", "attention", "others"):
                    continue
                found.append((family, place, dtype, check))
    return found


_OPS: list[Any] = []


def _job(family: str, place: int, dtype: str, check: str, limit: int | None) -> Row:
    if not _OPS:
        _OPS.extend(op for _, op in chosen_ops())
        torch.set_num_threads(1)
    return run_row(family, _OPS[place], dtype, check, limit)


def run_jobs(wanted: list[tuple[Any, ...]], workers: int, limit: int | None) -> Iterator[Row]:
    """Runs rows in processes of their own, so that a crash costs one row."""
    left = list(wanted)
    while left:
        with ProcessPoolExecutor(workers, multiprocessing.get_context("fork")) as pool:
            running = {pool.submit(_job, *job, limit): job for job in left}
            try:
                for future in as_completed(running):
                    job = running[future]
                    try:
                        row = future.result()
                    except BrokenProcessPool:
                        break
                    except Exception as error:  # of the check itself: it costs one row, and fails the run
                        row = _lost(job, f"{type(error).__name__}: {error}")
                    left.remove(job)
                    yield row
                else:
                    return
            except BaseException:  # Ctrl-C: the rows that have not begun are not waited for
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        job = left.pop(0)  # the oldest unfinished one is the one that crashed, or was beside it
        yield _lost(job, "the process crashed")


def _lost(job: tuple[Any, ...], reason: str) -> Row:
    family, place, dtype, check = job
    name = name_of([op for _, op in chosen_ops()][place])
    return Row(family, name, dtype, check, Counter(wrong=1), Counter({f"wrong: {reason}": 1}))


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Writes the rows for :func:`read_rows`."""
    path.write_text(json.dumps([{f.name: getattr(row, f.name) for f in fields(row)} for row in rows], indent=1))


def read_rows(path: Path) -> list[Row]:
    """The rows that an earlier run wrote."""
    rows = [Row(**row) for row in json.loads(path.read_text())]
    for row in rows:
        row.states, row.reasons = Counter(row.states), Counter(row.reasons)
    return rows


def verdict(rows: Sequence[Row]) -> list[str]:
    """What fails the run: wrong rows that are not known, and known ones that are right now."""
    problems = []
    for row in rows:
        wrong = row.states["wrong"] > 0
        if wrong and row.key not in KNOWN:
            problems.append(f"{row.key}: {'; '.join(r for r in row.reasons if r.startswith('wrong'))}")
        if not wrong and row.key in KNOWN:
            problems.append(f"{row.key} is right now; take it out of tests/opdb/known.py")
    return problems


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.opdb", description=__doc__)
    parser.add_argument("--checks", nargs="+", choices=CHECKS, default=list(CHECKS))
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=list(DTYPES))
    parser.add_argument("--families", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--ops", default="", help="a regular expression that an op's name has to match")
    parser.add_argument("--limit", type=int, help="samples of each op, dtype and check")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path, help="write all rows there")
    parser.add_argument("--merge", type=Path, help="take rows that are not run now from this file of --json")
    parser.add_argument("--write", action="store_true", help=f"write the tables to {RESULTS.name}")
    options = parser.parse_args(arguments)
    wanted = jobs(options.checks, options.dtypes, options.families, options.ops)
    rows: list[Row] = []
    start = time.monotonic()
    stopped = False
    try:
        for row in run_jobs(wanted, options.workers, options.limit):
            rows.append(row)
            left = (time.monotonic() - start) / len(rows) * (len(wanted) - len(rows))
            counts = ", ".join(f"{n} {state}" for state, n in row.states.items())
            print(f"[{len(rows)}/{len(wanted)}, about {left:.0f} s left] {row.key}: {counts}", flush=True)
            for reason, n in row.reasons.items():
                print(f"      {n} × {reason}", flush=True)
    except KeyboardInterrupt:
        stopped = True
        print(f"stopped by Ctrl-C after {len(rows)} of {len(wanted)} rows", flush=True)
    if options.merge:
        ran = {row.key for row in rows}
        rows += [row for row in read_rows(options.merge) if row.key not in ran]
    rows.sort(key=lambda row: (CHECKS.index(row.check), NAMES.index(row.family), row.op, row.dtype))
    problems = verdict(rows)
    if options.json:
        write_rows(options.json, rows)
    from opdb.tables import as_markdown

    text = as_markdown(rows)
    print(text)
    if options.write and not stopped:
        RESULTS.write_text(text)
    for problem in problems:
        print(f"FAILED {problem}")
    return 1 if problems or stopped else 0
