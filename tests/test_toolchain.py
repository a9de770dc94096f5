"""What is imported of the compilers that fusec calls."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

IN_PART = """
import os, sys
import fusec.toolchain as toolchain
with toolchain.importing(toolchain.TVM):
    import tvm
assert "TVM_DEVICE_BACKEND_AUTOLOAD" not in os.environ
lazy = [name for name in ("tvm.relax", "tvm.runtime.disco") if type(sys.modules[name]).__name__ == "_LazyModule"]
assert len(lazy) == 2, lazy
import fusec, numpy as np
np.testing.assert_allclose(fusec.jit(lambda x: np.exp(x) + 1)(np.ones(5)), np.exp(np.ones(5)) + 1)
assert tvm.relax.Var("x") is not None
"""


def test_of_tvm_only_what_is_called_is_loaded(tmp_path: Path) -> None:
    pytest.importorskip("tvm")
    environment = {**os.environ, "FUSEC_CACHE_DIR": str(tmp_path)}
    environment.pop("TVM_DEVICE_BACKEND_AUTOLOAD", None)
    done = subprocess.run([sys.executable, "-c", IN_PART], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
