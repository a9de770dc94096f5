"""Memory that attention needs beyond its inputs and its output, each peer in a fresh process."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from benchmarks.probes.run import run
from benchmarks.report import FUSEC, Row
from benchmarks.session import Session, Within

HEADS, N, DEPTH = 8, 1024, 32


def rows(session: Session) -> Iterator[Row]:
    peers = ["eager", *(["compile"] if shutil.which("g++") else []), "SDPA", FUSEC]
    found = {name: run("memory", name, HEADS, N, DEPTH) for name in peers}
    total = {name: (f["grown"] + f["stacks"]) / 1e6 for name, f in found.items()}
    own = found[FUSEC]
    scores = HEADS * N * N * 4 / 1e6
    yield Row(
        work=f"peak extra memory of attention f32, {HEADS} heads N{N} D{DEPTH}",
        unit="MB",
        values=total,
        checks=[Within(0.5, "MB").check(total[FUSEC])],
        notes=(
            f"growth of the process in a call, beyond the output, as the kernel counts it (VmHWM), plus all stacks; "
            f"fusec: {own['grown'] / 1e3:.0f} KB + {own['stacks'] / 1e3:.0f} KB of stacks; "
            f"the scores alone would be {scores:.1f} MB",
        ),
    )
