# SPDX-License-Identifier: Apache-2.0
"""Times of a file's kernels on this machine."""

from __future__ import annotations

from pathlib import Path

from fusec.loading import load
from fusec.measuring import Times, measure_calls, measure_steps
from fusec.runtime import artifact


def measure_file(path: Path) -> Times:
    """Runs the file's code on random arguments. ArtifactError for a file that is damaged."""
    missing = artifact.read(path).verify().requirements.missing()
    if missing:
        return Times(reason=f"not measured: {missing}")
    try:
        loaded = load(path)
        return Times(measure_steps(loaded), wholes=measure_calls(loaded))
    except (
        Exception
    ) as error:  # weights may be missing, random arguments none that the function takes, devices may fail
        return Times(reason=f"not measured: {type(error).__name__}: {error}")
