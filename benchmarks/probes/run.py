"""Runs a probe in a fresh process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(module: str, *arguments: object, environment: Mapping[str, str] | None = None) -> dict[str, float]:
    """The JSON that ``python -m benchmarks.probes.MODULE ARGUMENTS`` prints. RuntimeError where it fails.

    The process keeps byte code of what it imports, as Python does unless told otherwise.
    """
    command = [sys.executable, "-m", f"benchmarks.probes.{module}", *map(str, arguments)]
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    variables = {**inherited, **(environment or {})}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=variables, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[1:])} failed:\n{done.stderr[-2000:]}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result
