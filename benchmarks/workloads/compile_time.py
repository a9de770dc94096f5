"""Seconds until MiniLM's first result in a fresh process: with an empty cache, and with what that left."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator

from benchmarks import noise
from benchmarks.probes.run import run
from benchmarks.report import FUSEC, Row
from benchmarks.session import Session, Within

COLD_WITHIN, CACHED_WITHIN = 30.0, 2.0


def rows(session: Session) -> Iterator[Row]:
    runs = 1 if session.quick else 3
    noise.wait_for_quiet(session.budget.wait)
    cold, cached = _fresh(FUSEC, 1, runs)
    torch_cold, torch_cached = ([], []) if session.quick else _fresh("compile", 1, 1)
    for what, ours, theirs, most in (
        ("empty cache", cold, torch_cold, COLD_WITHIN),
        ("from cache", cached, torch_cached, CACHED_WITHIN),
    ):
        seconds = _median(ours, "first")
        values = {"compile": _median(theirs, "first")} if theirs else {}
        yield Row(
            work=f"compile time of MiniLM, {what}",
            unit="s",
            values={**values, FUSEC: seconds},
            checks=[Within(most, "s").check(seconds)],
            rounds=len(ours),
            notes=(
                "import of the compiler, capture, compiling and the first call, in a fresh process; before that, "
                f"`import torch` took {_median(ours, 'torch'):.1f} s",
            ),
        )


def _median(found: list[dict[str, float]], what: str) -> float:
    return statistics.median(f[what] for f in found)


def _fresh(name: str, cold_runs: int, cached_runs: int) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    cold: list[dict[str, float]] = []
    cached: list[dict[str, float]] = []
    for _ in range(cold_runs):
        with tempfile.TemporaryDirectory() as folder:
            caches = {"FUSEC_CACHE_DIR": folder, "TORCHINDUCTOR_CACHE_DIR": folder}
            cold.append(run("compile_time", name, environment=caches))
            if not cached:
                cached = [run("compile_time", name, environment=caches) for _ in range(cached_runs)]
    return cold, cached
