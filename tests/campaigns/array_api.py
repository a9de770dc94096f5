"""The array API standard's tests, on NumPy and on NumPy's functions jitted.

``python -m tests.campaigns.array_api --suite DIR``: DIR is a checkout of data-apis/array-api-tests with its submodule.
A test that fails jitted and passes on NumPy fails the run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]


def outcomes(
    suite: Path,
    module: str,
    options: Sequence[str],
    calls: Path | None = None,
    tests: Sequence[str] = ("array_api_tests",),
) -> dict[str, str]:
    """Why each of the suite's tests fails on a module, by the test's name; nothing for those that pass."""
    environment = {**os.environ, "ARRAY_API_TESTS_MODULE": module}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    if calls is not None:
        environment["ARRAY_API_CALLS"] = str(calls)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", *tests, "-q", "--tb=short", "-p", "no:cacheprovider"]
        command += ["--disable-deadline", "--derandomize", "-W", "ignore", f"--junitxml={report}", *options]
        done = subprocess.run(command, cwd=suite, env=environment, capture_output=True, text=True, check=False)
        if not report.exists():
            raise RuntimeError(f"the suite did not run:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        cases = list(ElementTree.parse(report).iter("testcase"))
    return {f"{_file(case)}::{case.get('name')}": _failure(case) for case in cases}


def _file(case: ElementTree.Element) -> str:
    return str(case.get("classname")).replace(".", "/") + ".py"


def _failure(case: ElementTree.Element) -> str:
    texts = [part.text or part.get("message") or "?" for kind in ("failure", "error") for part in case.iter(kind)]
    return "\n".join(texts)


def worse(numpys: dict[str, str], jitted: dict[str, str]) -> dict[str, str]:
    """What fails jitted and not on NumPy itself."""
    return {name: why for name, why in jitted.items() if why and not numpys.get(name)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", nargs="*", default=["array_api_tests"], help="files of the suite")
    parser.add_argument("--suite", type=Path, required=True)
    parser.add_argument("--max-examples", type=int, default=5)
    parser.add_argument("--only", default="", help="pytest's -k")
    given = parser.parse_args()
    options = ["--max-examples", str(given.max_examples), *(["-k", given.only] if given.only else [])]
    numpys = outcomes(given.suite, "numpy", options, tests=given.tests)
    with tempfile.TemporaryDirectory() as folder:
        calls = Path(folder) / "calls"
        jitted = outcomes(given.suite, "tests.campaigns.jitted_numpy", options, calls, given.tests)
        counted = calls.read_text().strip() if calls.exists() else "not counted"
    found = worse(numpys, jitted)
    if found:  # the elements are drawn at random: NumPy may fail as well
        again = outcomes(given.suite, "numpy", ["--max-examples", "500"], tests=list(found))
        found = worse(again, found)
    for name, why in found.items():
        print(f"{name}\n{why}\n")
    failing = sum(map(bool, numpys.values()))
    print(f"{len(jitted)} tests, {len(found)} that fail jitted alone, {failing} that fail on NumPy; calls {counted}")
    return int(bool(found) or len(jitted) < len(numpys))


if __name__ == "__main__":
    sys.exit(main())
