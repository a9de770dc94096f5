"""Runs mutants, each in a process of its own, and says which of them no test noticed."""

from __future__ import annotations

import argparse
import ast
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from itertools import accumulate
from pathlib import Path
from types import CodeType
from typing import Any

from mutants.catalogue import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
_FAILED = 1
"""pytest's exit code for tests that failed; others say that the run itself went wrong."""
_CRASHES = (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV)
"""What ends a test whose kernel writes past its memory: that, too, is noticed."""


class _Loader(SourceFileLoader):
    """Loads a module from changed source, and leaves no byte code."""

    def __init__(self, name: str, path: str, source: str) -> None:
        super().__init__(name, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        code = compile(self._source, self.path, "exec", dont_inherit=True)
        assert isinstance(code, CodeType)
        return code


class _Finder:
    """Stands before Python's finders for one module."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != self._mutant.module:
            return None
        spec = PathFinder.find_spec(name, path)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = _Loader(name, spec.origin, mutated(self._mutant, Path(spec.origin).read_text()))
        return spec


def source_of(mutant: Mutant) -> Path:
    """The file of the mutant's module."""
    _, top, *rest = mutant.module.split(".")
    folder = ROOT / top if top in ("passes", "codegen") else ROOT / "fusec" / top
    return folder.joinpath(*rest).with_suffix(".py")


def mutated(mutant: Mutant, source: str) -> str:
    """The source with the change. ValueError where its place is not there once: the mutant is out of date."""
    start, end = _place_of(mutant, source)
    found = source.count(mutant.old, start, end)
    if found != 1:
        where = f"{mutant.module}:{mutant.function}"
        raise ValueError(f"mutant {mutant.name}: its text stands {found} times in {where}; bring it up to date")
    return source[:start] + source[start:end].replace(mutant.old, mutant.new) + source[end:]


def _place_of(mutant: Mutant, source: str) -> tuple[int, int]:
    """Where the mutant's function begins and ends in the source, its decorators with it."""
    node: ast.AST = ast.parse(source)
    if not mutant.function:
        return 0, len(source)
    for name in mutant.function.split("."):
        found = [n for n in ast.walk(node) if isinstance(n, _DEFINITIONS) and n.name == name]
        if len(found) != 1:
            where = f"{len(found)} functions {mutant.function}"
            raise ValueError(f"mutant {mutant.name}: {where} in {mutant.module}; bring it up to date")
        (node,) = found
    assert isinstance(node, _DEFINITIONS)
    starts = list(accumulate(map(len, source.splitlines(keepends=True)), initial=0))
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    return starts[first - 1], starts[node.end_lineno or node.lineno]


_DEFINITIONS = (ast.FunctionDef, ast.ClassDef)


def run_inside(mutant: Mutant) -> int:
    """Runs the mutant's tests in this process, which has not imported fusec yet."""
    import pytest

    assert not any(name.startswith("fusec") for name in sys.modules), "fusec was imported before it was changed"
    sys.meta_path.insert(0, _Finder(mutant))  # type: ignore[arg-type]
    return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *mutant.tests]))


def survives(mutant: Mutant) -> str:
    """Why the mutant counts as not noticed; empty where a test failed or crashed."""
    with tempfile.TemporaryDirectory(prefix="fusec-mutant-") as cache:  # a mutant's kernels are for nobody else
        environment = {**os.environ, "FUSEC_CACHE_DIR": cache}
        command = [sys.executable, "-m", "tests.mutants", "--inside", mutant.name]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if (done.returncode == _FAILED and "\nFAILED " in done.stdout) or -done.returncode in _CRASHES:
        return ""
    if done.returncode == 0:
        return "all tests passed"
    return f"the run ended with {done.returncode}: {(done.stdout + done.stderr).strip()[-400:]}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="mutants to run; all by default")
    parser.add_argument("--inside", choices=[m.name for m in MUTANTS], help="run this one here")
    options = parser.parse_args(arguments)
    by_name = {mutant.name: mutant for mutant in MUTANTS}
    if options.inside:
        return run_inside(by_name[options.inside])
    unknown = set(options.names) - set(by_name)
    if unknown:
        parser.error(f"no mutant {', '.join(sorted(unknown))}")
    left = 0
    for name in options.names or by_name:
        start = time.perf_counter()
        why = survives(by_name[name])
        print(f"{name:<40} {why or 'caught'} ({time.perf_counter() - start:.0f} s)", flush=True)
        left += bool(why)
    print(f"{left} of {len(options.names or by_name)} were not noticed" if left else "all were noticed")
    return 1 if left else 0
