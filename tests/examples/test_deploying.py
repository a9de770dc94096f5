"""A deployer's day, by the commands of the guide: an encoder is compiled for ranges and for another CPU, looked at, and
served, in Python where neither TVM nor PyTorch is installed, and from C++, on a CPU and on a driver of GPUs that writes
down what it is asked (``tests/gpu/test_c_export.py`` serves it on a card)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "guide" / "deployment.md"
SMALL = {"encoder()": "encoder(width=32, layers=1, heads=2, words=50)", "B:1..8, S:2..512": "B:2..4, S:2..16"}
IDS = np.array([[1, 2, 3, 4, 5], [9, 8, 7, 6, 5], [0, 49, 0, 49, 0]])

pytestmark = [pytest.mark.nightly, pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")]


def commands(block: int = 0) -> dict[str, str]:
    """The commands of one of the guide's blocks, for CPUs or for GPUs, by what they begin with."""
    (section,) = re.findall(r"## From a model to a service\n.*?(?=\n## )", GUIDE.read_text(), re.S)
    lines = re.findall(r"```\n(.*?)```", section, re.S)[block].replace("\\\n", "").strip().splitlines()
    return {line.split()[0] + " " + line.split()[1]: line for line in lines}


def small(command: str) -> str:
    """The command for an encoder that is soon compiled."""
    for usual, few in SMALL.items():
        assert usual in command
        command = command.replace(usual, few)
    return command


def run(command: str, folder: Path, **more: Any) -> str:
    done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, check=False, **more)
    assert done.returncode == 0, f"{command}\n{done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder after the first command, on the machine that compiles."""
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("deploying")
    for name in ("bert.py", "serve.cpp", "serve_gpu.cpp", "serve.py"):
        shutil.copy(ROOT / "examples" / "c" / name, folder / name)
    (folder / "fusec").write_text(
        f"#!{sys.executable} -W ignore\nimport sys\nsys.path[:0] = {[str(p) for p in sys.path]!r}\n"
        "from fusec.cli.main import app\napp()\n"
    )
    (folder / "fusec").chmod(0o755)
    told = run(f"PATH=.:$PATH; {small(commands()['fusec compile'])}", folder)
    assert "B from 2 to 4" in told
    np.savetxt(folder / "ids.txt", IDS, "%d")
    return folder


@pytest.fixture(scope="module")
def wanted(day: Path) -> Any:
    program = f"""
import sys
import numpy, torch, bert
model = bert.{SMALL["encoder()"]}
ids = torch.from_numpy(numpy.loadtxt("ids.txt", int))
numpy.save("wanted.npy", model(ids, torch.ones_like(ids)).numpy())
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], cwd=day, check=True, capture_output=True)
    return np.load(day / "wanted.npy")


def test_the_file_says_what_it_needs(day: Path) -> None:
    told = run(f"PATH=.:$PATH; {commands()['fusec inspect']}", day)
    assert "target cpu:x86-64-v3; runs here" in told
    assert "needs fusec-runtime" in told


def test_it_is_served_from_cpp(day: Path, wanted: Any) -> None:
    run(commands()["c++ -O2"], day)
    served = run(commands()["build/serve build"].replace("768", "32"), day)
    found = np.array([line.split() for line in served.splitlines()], np.float32)
    np.testing.assert_allclose(found, wanted[:, :, 0], rtol=1e-4, atol=1e-4)


def test_it_is_served_where_numpy_alone_is_installed(day: Path, wanted: Any, clean: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    command = commands()["python serve.py"].replace("python", str(clean), 1)
    told = run(command, day, env=environment)
    assert "['numpy']" in told
    np.testing.assert_allclose(np.load(day / "states.npy"), wanted, rtol=1e-4, atol=1e-4)


def test_it_is_served_on_a_gpu_from_cpp(day: Path) -> None:
    """Compiled without a GPU; the program sends what it is given, launches kernels, and lets go of all it took."""
    pytest.importorskip("triton")
    told = run(f"PATH=.:$PATH; {small(commands(1)['fusec compile'])}", day)
    assert "S from 2 to 16" in told
    run(commands(1)["c++ -O2"].replace("c++ ", "c++ -Wall -Wextra -Werror -Wno-unused-function ", 1), day)
    serve = commands(1)["build-gpu/serve build-gpu"].replace("768", "32")
    done = subprocess.run(["bash", "-c", serve], cwd=day, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "there is no GPU that can be used" in done.stderr
    driver = ["cc", "-shared", "-fPIC", "-o", str(day / "libcuda.so.1"), str(ROOT / "tests" / "fake_gpu.c")]
    subprocess.run(driver, check=True)
    (day / "parameters").write_text("")
    said = {"FAKE_GPU_LOG": str(day / "log"), "FAKE_GPU_PARAMETERS": str(day / "parameters")}
    served = run(serve, day, env={**os.environ, "LD_LIBRARY_PATH": str(day), **said})
    assert [len(line.split()) for line in served.splitlines()] == [5, 5, 5]
    log = (day / "log").read_text().splitlines()
    assert sum(line.startswith("launch ") for line in log) > 5
    assert "no context" not in log
    assert [line for line in log if line.startswith("free ")][-1] == "free 0"
    assert log[-1] == "release 0"
