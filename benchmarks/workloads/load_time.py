"""Milliseconds from MiniLM's file to its first result, in a process without its source and the compilers."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

import fusec
from benchmarks import noise
from benchmarks.probes.run import run
from benchmarks.report import FUSEC, Row
from benchmarks.session import Session, Within
from benchmarks.workloads.model import example

LOAD_WITHIN = 50.0


def rows(session: Session) -> Iterator[Row]:
    model, _ = example().load()
    spec = fusec.TensorSpec(("B:1..64", "S:2..512"), "int64")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "minilm.fusec"
        fusec.compile(model, spec, spec).save(path)
        noise.wait_for_quiet(session.budget.wait)
        start = noise.now()
        found = [run("load_time", str(path)) for _ in range(2 if session.quick else 5)]
        noisy = noise.taken_by_others(start, noise.now()) > noise.TOLERATED
    milliseconds = 1e3 * statistics.median(f["load"] + f["first"] - f["second"] for f in found)
    imports = 1e3 * statistics.median(f["import"] for f in found)
    yield Row(
        work="load of MiniLM's file for 1 to 64 texts of 2 to 512 tokens, and the first call, less one call",
        unit="ms",
        values={FUSEC: milliseconds},
        checks=[Within(LOAD_WITHIN, "ms").check(milliseconds)],
        rounds=len(found),
        noisy=noisy,
        notes=(f"in a fresh process; before that, `from fusec import load` took {imports:.0f} ms",),
    )
