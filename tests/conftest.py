"""Makes the helpers beside this file importable from every test, and skips what this machine can't run."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)

# NumPy reads it when it is imported. Its threads spin while they wait, and a test's matrices are small.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from amx import amx_target  # noqa: E402  (found beside this file)
from clean import environment_of_runtime  # noqa: E402
from sweeps import left_out  # noqa: E402

from fusec.target.cpu import CpuTarget  # noqa: E402

_cache: list[str] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-cases", action="store_true", help="all combinations of sweeps, not only a covering set")


def pytest_configure() -> None:
    """Tests share a fresh on-disk cache, so that none leans on an earlier run. Workers inherit the main process's.

    OpenMP's threads sleep while they wait: beside other workers those that spin take most of the processor.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if "FUSEC_CACHE_DIR" not in os.environ:
        _cache.append(tempfile.mkdtemp(prefix="fusec-tests-"))
        os.environ["FUSEC_CACHE_DIR"] = _cache[0]


def pytest_unconfigure() -> None:
    for folder in _cache:
        os.environ.pop("FUSEC_CACHE_DIR", None)
        shutil.rmtree(folder, ignore_errors=True)
    _cache.clear()


@pytest.fixture(scope="session")
def all_cases(pytestconfig: pytest.Config) -> bool:
    """Whether a test that chooses among its cases is to take them all."""
    return bool(pytestconfig.getoption("--all-cases"))


@pytest.fixture(scope="session")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with fusec's runtime and NumPy alone."""
    return environment_of_runtime(tmp_path_factory.mktemp("clean"))


@pytest.fixture
def amx() -> CpuTarget:
    """This machine with AMX, emulated where it has none."""
    return amx_target()


@pytest.fixture
def amx_everywhere(amx: CpuTarget, monkeypatch: pytest.MonkeyPatch) -> CpuTarget:
    """What ``cpu`` means for the time of the test: this machine with AMX."""
    monkeypatch.setattr("fusec.target.cpu.host_cpu", lambda: amx)
    return amx


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out most cases of sweeps, and skips tests marked ``gpu`` where torch sees no GPU."""
    if not config.getoption("--all-cases"):
        out = left_out(items)
        if out:
            config.hook.pytest_deselected(items=out)
            omitted = set(out)
            items[:] = [item for item in items if item not in omitted]
    marked = [item for item in items if item.get_closest_marker("gpu")]
    reason = _no_gpu() if marked else None
    if reason is not None:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))


def _no_gpu() -> str | None:
    """Why GPU tests can't run here, or None where they can."""
    try:
        import torch
    except ImportError:
        return "gpu: torch is not installed"
    return None if torch.cuda.is_available() else "gpu: no CUDA or ROCm device on this machine"
