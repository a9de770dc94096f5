"""Random NumPy programs, as written and jitted: ``python -m tests.campaigns.numpy_statements --count N --seed S``."""

from __future__ import annotations

import re
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from numpy_parity import DifferenceError, agree  # found beside this folder

from tests.campaigns.batches import Campaign, Finding, command
from tests.campaigns.numpy_programs import Program, make_program

KNOWN: tuple[tuple[str, str], ...] = (
    (
        r"np\.(logical_\w+|less\w*|greater\w*|equal|not_equal)\(.*\bout=.*\bwhere=(?!True)",
        "where out= overlaps an operand that is broadcast, NumPy casts all of out to bool and back: elements at which "
        "where= is false become 0 and 1. fusec leaves them as they are, as NumPy's documentation has it",
    ),
)
"""Differences that stay: what a line of the least program is like, and why."""


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


def trial(seed: int) -> Finding | None:
    program = make_program(seed)
    if not difference(program):
        return None
    smallest = minimal(program)
    known = next((pattern for pattern, _ in KNOWN if any(re.search(pattern, line) for line in smallest.lines)), "")
    return Finding(difference(smallest), smallest.source, known)


CAMPAIGN = Campaign("numpy_statements", lambda seed: make_program(seed).source, trial, KNOWN)

if __name__ == "__main__":
    sys.exit(command(CAMPAIGN, sys.argv[1:]))
