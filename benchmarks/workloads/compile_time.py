"""Seconds until MiniLM's first result in a fresh process: with an empty cache, and with what that left."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks import noise
from benchmarks.probes.run import run
from benchmarks.report import FUSEC, Row
from benchmarks.session import Session, Within

COLD_WITHIN, CACHED_WITHIN = 30.0, 2.0


def rows(session: Session) -> Iterator[Row]:
    runs = 1 if session.quick else 3
    noise.wait_for_quiet(session.budget.wait)
    start = noise.now()
    cold, cached = _fresh(FUSEC, runs, runs)
    noisy = noise.taken_by_others(start, noise.now()) > noise.TOLERATED
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
            noisy=noisy,
            notes=(
                "import of the compiler, capture, compiling and the first call, in a fresh process; before that, "
                f"`import torch` took {_median(ours, 'torch'):.1f} s",
            ),
        )


def _median(found: list[dict[str, float]], what: str) -> float:
    return statistics.median(f[what] for f in found)


def _fresh(name: str, cold_runs: int, cached_runs: int) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    """Probes with an empty cache, then with the cache that the last of those left."""
    cold: list[dict[str, float]] = []
    for _ in range(cold_runs):
        with tempfile.TemporaryDirectory() as folder:
            caches = {"FUSEC_CACHE_DIR": folder, "TORCHINDUCTOR_CACHE_DIR": folder}
            cold.append(run("compile_time", name, environment=caches))
            kept = _programs(folder)
            if len(cold) == cold_runs:
                cached = [run("compile_time", name, environment=caches) for _ in range(cached_runs)]
                if _programs(folder) != kept or (name == FUSEC and not kept):
                    raise RuntimeError("the cache was not used: did fusec's own source change meanwhile?")
    return cold, cached


def _programs(folder: str) -> frozenset[str]:
    """fusec's entries in a cache."""
    return frozenset(str(path) for path in (Path(folder) / "programs").rglob("*") if path.is_file())
