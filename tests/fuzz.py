"""Differential tests on random graphs: ``python tests/fuzz.py FIRST LAST [--tile]`` tries the seeds in between.

Each batch runs in a process of its own, so that a kernel that crashes is one finding among others. ``--tile`` runs
the kernels in the tile IR's interpreter, which is stricter about memory. ``python tests/fuzz.py SEED`` shows one
graph, its kernels and what is wrong with them.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from programs import Run, check
from random_graphs import random_graph

from fusec.passes.pipeline import lower

BATCH = 100
SECONDS = 60

SLACK = 16.0
"""Times the error of the graph's own dtypes that a fused kernel's may have: random graphs are ill-conditioned."""

FLOOR = 1e-5
"""Absolute error allowed where the interpreter happens to be exact."""


def trial(seed: int, *, compiled: bool = True) -> Run:
    """Runs one random graph; AssertionError, or what the compiler raises, where it is wrong."""
    graph, data = random_graph(seed)
    return check(graph, data, slack=SLACK, atol=FLOOR, compiled=compiled)


def show(seed: int) -> None:
    graph, _ = random_graph(seed)
    print(graph)
    lowered = lower(graph, "cpu", threads=2, check=True)
    print(lowered.stages["fuse"])
    print(lowered.stages["tile"])
    for compiled in (False, True):
        try:
            trial(seed, compiled=compiled)
        except Exception as error:
            print("compiled:" if compiled else "interpreted:", type(error).__name__, error)


def batch(first: int, last: int, compiled: bool, pipe: int) -> None:
    """Tries some seeds and writes what failed, a line each, into a pipe."""
    for seed in range(first, last):
        os.write(pipe, f"start {seed}\n".encode())
        signal.alarm(SECONDS)
        try:
            trial(seed, compiled=compiled)
        except Exception as error:
            frames = [f for f in traceback.extract_tb(error.__traceback__) if "tests" not in f.filename]
            where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
            text = " ".join(str(error).split())[:200]
            os.write(pipe, f"seed {seed}: {type(error).__name__} {where} {text}\n".encode())
        signal.alarm(0)


def run(first: int, last: int, compiled: bool) -> int:
    """The number of seeds that failed, each reported as it is found."""
    failures = 0
    while first < last:
        receive, send = os.pipe()
        child = os.fork()
        if child == 0:
            batch(first, min(last, first + BATCH), compiled, send)
            os._exit(0)
        os.close(send)
        reached = first
        with os.fdopen(receive) as lines:
            for line in lines:
                if line.startswith("start"):
                    reached = int(line.split()[1])
                    continue
                failures += 1
                print(line, end="", flush=True)
        _, status = os.waitpid(child, 0)
        if status:
            failures += 1
            print(f"seed {reached}: the process ended with status {status}", flush=True)
        first = reached + 1
    return failures


def main(arguments: list[str]) -> int:
    warnings.filterwarnings("ignore", category=RuntimeWarning)
    numbers = [int(a) for a in arguments if not a.startswith("-")]
    if len(numbers) == 1:
        show(numbers[0])
        return 0
    failures = run(numbers[0], numbers[1], "--tile" not in arguments)
    print(f"{failures} of {numbers[1] - numbers[0]} seeds failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
