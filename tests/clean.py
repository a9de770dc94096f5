"""An environment that holds what ``pip install fusec-runtime`` brings, made without a package index."""

from __future__ import annotations

import runpy
import shutil
import venv
from pathlib import Path

import numpy as np

DISTRIBUTIONS = Path(__file__).resolve().parents[1] / "release" / "distributions.py"


def environment_of_runtime(folder: Path) -> Path:
    """The environment's Python. NumPy is the one that runs the tests."""
    venv.create(folder / "environment", with_pip=False)
    site = next((folder / "environment" / "lib").glob("python*/site-packages"))
    made = runpy.run_path(str(DISTRIBUTIONS))["stage_runtime"](folder / "stage")
    shutil.copytree(made / "fusec", site / "fusec")
    installed = Path(np.__file__).parents[1]
    for name in ("numpy", "numpy.libs"):
        if (installed / name).exists():
            (site / name).symlink_to(installed / name)
    return folder / "environment" / "bin" / "python"
