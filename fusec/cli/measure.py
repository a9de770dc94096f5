"""Times of a file's kernels on this machine."""

from __future__ import annotations

from pathlib import Path

from fusec.loading import load
from fusec.measuring import Times, measure_steps
from fusec.runtime import artifact


def measure_file(path: Path) -> Times:
    """Runs the file's code on random arguments. ArtifactError for a file that is damaged."""
    missing = artifact.read(path).verify().requirements.missing()
    if missing:
        return Times(reason=f"not measured: {missing}")
    try:
        return Times(measure_steps(load(path)))
    except (
        Exception
    ) as error:  # weights may be missing, random arguments none that the function takes, devices may fail
        return Times(reason=f"not measured: {type(error).__name__}: {error}")
