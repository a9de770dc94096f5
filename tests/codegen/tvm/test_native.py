"""Shared objects through ctypes, as where no part of TVM is installed: in a process that finds none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fusec

WITHOUT_TVM = """
import sys, warnings
import numpy as np

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("tvm", "tvm_ffi", "torch", "ml_dtypes"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
import fusec
from fusec.codegen.tvm import parallel
from fusec.codegen.tvm.native import SharedObject
from fusec.errors import ArtifactError, CodegenError
if sys.argv[1] == "no OpenMP":
    parallel._openmp = lambda: None
elif sys.argv[1] == "one thread":
    parallel.set_threads(1)
x = np.linspace(-1, 1, 640 * 96, dtype=np.float32).reshape(640, 96)
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    loaded = fusec.load("rows.fusec")
    for _ in range(3):
        found = loaded(x)
np.testing.assert_allclose(found, np.load("wanted.npy"), rtol=1e-5, atol=1e-6)
print(*(w.message for w in told))
try:
    SharedObject("nothing.so")
except OSError as error:
    assert "nothing.so" in str(error)
module = loaded._variants[()].executable.module
try:
    module.function("nothing")
except CodegenError as error:
    assert "no kernel 'nothing'" in str(error)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of two kernels that run in parallel, and its result."""

    def rows(x):  # type: ignore[no-untyped-def]
        y = np.exp(x - x.max(axis=1, keepdims=True))
        y = y / y.sum(axis=1, keepdims=True)
        return y - y.mean(axis=0)

    made = tmp_path_factory.mktemp("native")
    x = np.linspace(-1, 1, 640 * 96, dtype=np.float32).reshape(640, 96)
    fusec.compile(rows, x).save(made / "rows.fusec")
    np.save(made / "wanted.npy", rows(x.astype(np.float64)).astype(np.float32))
    return made


@pytest.mark.parametrize(
    ("how", "said"), [("OpenMP", ""), ("one thread", ""), ("no OpenMP", "kernels run on one thread")]
)
def test_a_file_runs(folder: Path, how: str, said: str) -> None:
    command = [sys.executable, "-c", WITHOUT_TVM, how]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(said)
    assert bool(done.stdout.strip()) == bool(said)
