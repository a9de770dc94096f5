"""Random NumPy programs, as written and jitted: ``python -m tests.campaigns.numpy_statements --count N --seed S``."""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from numpy_parity import DifferenceError, agree  # found beside this folder

from tests.campaigns.numpy_programs import Program, make_program


def difference(program: Program) -> str:
    """What is otherwise than NumPy's, or nothing."""
    function, args = program.load()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            agree(function, *args)
    except DifferenceError as error:
        return f"{error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def minimal(program: Program) -> Program:
    """The program with lines and results left out that its difference does not need."""
    lines, results = list(program.lines), list(program.results)

    def fails(lines: list[str], results: list[str]) -> bool:
        return bool(results) and bool(difference(Program(program.make, program.names, lines, results)))

    for result in list(results):
        fewer = [other for other in results if other != result]
        if fails(lines, fewer):
            results = fewer
    for k in reversed(range(len(lines))):
        fewer = lines[:k] + lines[k + 1 :]
        if fails(fewer, results):
            lines = fewer
    return Program(program.make, program.names, lines, results)


def run(count: int, seed: int, seconds: float = float("inf")) -> int:
    """Runs programs and prints those that differ; how many there are."""
    failed, tried = 0, 0
    started = time.monotonic()
    for number in range(seed, seed + count):
        if time.monotonic() - started > seconds:
            break
        tried += 1
        program = make_program(number)
        if difference(program):
            failed += 1
            smallest = minimal(program)
            print(f"# seed {number}\n{smallest.source}", flush=True)
            print("\n".join(f"# {line}" for line in difference(smallest).splitlines()), flush=True)
            print(flush=True)
    print(f"{tried} programs, {failed} that differ, {time.monotonic() - started:.0f} s")
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    given = parser.parse_args()
    return int(run(given.count, given.seed, given.seconds) > 0)


if __name__ == "__main__":
    sys.exit(main())
