"""What is installed: the wheels hold every package, and the runtime's is enough to run a compiled file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import numpy as np
import pytest
import yaml

import fusec
from fusec.codegen.cuda.module import CudaModule
from fusec.codegen.cuda.source import ModuleSource as CudaSource
from fusec.codegen.gpu import GpuModule
from fusec.codegen.triton.module import TritonModule
from fusec.codegen.triton.source import ModuleSource as TritonSource
from fusec.target.gpu import gpu_target

HOPPER = gpu_target("cuda:sm_90")
ROOT = Path(__file__).resolve().parents[1]


def test_every_package_is_listed() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {
        ".".join(("fusec", *folder.parts) if top != "fusec" else folder.parts)
        for top in ("fusec", "passes", "codegen")
        for folder in (path.parent.relative_to(ROOT) for path in (ROOT / top).rglob("__init__.py"))
    }
    assert set(listed) == found


def test_constraints_pin_every_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["examples"], *extras["dev"]]
    names = {name.split(">")[0].split("=")[0].split("[")[0].lower().replace("_", "-") for name in wanted} - {"fusec"}
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in lines if "==" in line}
    assert names <= pinned


def test_each_source_begins_with_its_licence() -> None:
    comments = {".py": "#", ".cuh": "//", ".c": "//", ".h": "//"}
    sources = [p for top in ("fusec", "passes", "codegen") for p in (ROOT / top).rglob("*.*") if p.suffix in comments]
    line = "SPDX-License-Identifier: Apache-2.0\n"
    assert not [p for p in sources if not p.read_text().startswith(f"{comments[p.suffix]} {line}")]


def test_the_changelog_has_the_version() -> None:
    assert f"\n## {fusec.__version__} " in (ROOT / "CHANGELOG.md").read_text()


def test_workflows_run_what_is_there() -> None:
    """Their commands name targets of the Makefile and campaigns that exist."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for name in ("nightly", "release"):
        jobs = yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text())["jobs"]
        steps = [step.get("run", "") for job in jobs.values() for step in job["steps"]]
        made = {word for step in steps for line in re.findall(r"^make (.*)$", step, re.M) for word in line.split()}
        assert {word for word in made if "=" not in word and not word.startswith('"')} <= targets | {'cpu.md"'}
        assert made
    nightly = yaml.safe_load((ROOT / ".github" / "workflows" / "nightly.yml").read_text())["jobs"]
    listed = {entry.split()[0] for entry in nightly["campaigns"]["strategy"]["matrix"]["campaign"]}
    modules = {path.stem for path in (ROOT / "tests" / "campaigns").glob("*.py") if "__main__" in path.read_text()}
    assert listed == modules - {"array_api"}  # which needs a checkout of the standard's tests


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The runtime's wheel, the compiler's, and the source distribution."""
    folder = tmp_path_factory.mktemp("published")
    command = [sys.executable, str(ROOT / "release" / "distributions.py"), str(folder)]
    environment = {**os.environ, "FUSEC_REPOSITORY": "https://code.example/Owner/fusec"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return [Path(line) for line in done.stdout.split()]


def test_the_source_distribution_has_docs_and_tests(published: list[Path]) -> None:
    with tarfile.open(published[2]) as held:
        names = {name.partition("/")[2] for name in held.getnames()}
        metadata = held.extractfile(f"fusec-{fusec.__version__}/PKG-INFO")
        assert metadata is not None
        text = metadata.read().decode()
    assert "Project-URL: Source, https://code.example/Owner/fusec\n" in text
    _assert_links_lead_to_the_repository(text)
    wanted = (
        "tests/conftest.py",
        "docs/design.md",
        "CHANGELOG.md",
        "Makefile",
        "constraints.txt",
        "release/distributions.py",
    )
    assert names >= {
        *wanted,
        "passes/fuse.py",
        "codegen/cuda/include/scalar.cuh",
        "fusec/runtime/launch.c",
        "mkdocs.yml",
    }


def _assert_links_lead_to_the_repository(readme: str) -> None:
    """In a package index nothing lies beside the README."""
    home = "https://code.example/Owner/fusec"
    links = re.findall(r"\]\(([^)\s]+)", readme)
    assert f"{home}/raw/main/docs/fusion.svg" in links
    assert f"{home}/blob/main/benchmarks/results/cpu.md" in links
    assert all(link.startswith(("https://", "#")) for link in links)
    inside = {link.removeprefix(f"{home}/blob/main/").partition("#")[0] for link in links if f"{home}/blob/" in link}
    assert all((ROOT / path).exists() for path in inside)


def _files(wheel: Path) -> dict[str, int]:
    return {i.filename: i.file_size for i in zipfile.ZipFile(wheel).infolist() if ".dist-info/" not in i.filename}


def _sources() -> set[str]:
    tops = {"fusec": "fusec", "passes": "fusec/passes", "codegen": "fusec/codegen"}
    files = ((top, path) for top in tops for path in (ROOT / top).rglob("*.*"))
    return {f"{tops[top]}/{path.relative_to(ROOT / top)}" for top, path in files if "__pycache__" not in path.parts}


def test_each_file_is_in_one_wheel(published: list[Path]) -> None:
    wheels = published[:2]
    runtime, compiler = map(_files, wheels)
    assert not runtime.keys() & compiler.keys()
    assert {*runtime, *compiler} == _sources()
    text = zipfile.ZipFile(wheels[1]).read(f"fusec-{fusec.__version__}.dist-info/METADATA").decode()
    assert f"Requires-Dist: fusec-runtime=={fusec.__version__}\n" in text
    text = zipfile.ZipFile(wheels[0]).read(f"fusec_runtime-{fusec.__version__}.dist-info/METADATA").decode()
    _assert_links_lead_to_the_repository(text)
    assert [x for x in text.splitlines() if x.startswith("Requires-Dist") and "extra" not in x] == [
        "Requires-Dist: numpy>=2.1"
    ]
    assert sum(runtime.values()) < 1e6


def test_a_file_runs_where_numpy_alone_is_installed(clean: Path, tmp_path: Path) -> None:
    def dense(x, w):  # type: ignore[no-untyped-def]
        y = np.maximum(x @ w, 0)
        return {"y": y / (1 + y.sum(axis=-1, keepdims=True)), "most": y.max()}

    random = np.random.default_rng(0)
    x, w = (random.standard_normal(shape).astype(np.float32) for shape in ((8, 16), (16, 32)))
    fusec.compile(dense, x, w).save(tmp_path / "dense.fusec")
    spec = fusec.TensorSpec(("B", 16), "f32")
    fusec.compile(dense, spec, w, dims={"B": (1, 64)}).save(tmp_path / "ranges.fusec")
    np.savez(tmp_path / "arrays.npz", x=x, w=w, **dense(x, w))
    cubins = (CudaModule(HOPPER, CudaSource((), "sm_90a"), {}), TritonModule(HOPPER, TritonSource((), ""), {}, str))
    (tmp_path / "gpu").write_bytes(GpuModule(HOPPER, cubins).to_bytes())
    program = """
import sys
import numpy as np, fusec
from fusec.errors import FusecError
arrays = np.load("arrays.npz")
for name in ("dense", "ranges"):
    found = fusec.load(f"{name}.fusec")(arrays["x"], arrays["w"])
    np.testing.assert_allclose(found["y"], arrays["y"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["most"], arrays["most"], rtol=1e-5)
brought = {name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)
print(sorted(name for name in brought if name in ("tvm", "tvm_ffi", "torch", "rich", "ml_dtypes")))
from fusec.modules import load_module
with open("gpu", "rb") as file:
    module = load_module(file.read())
print(type(module).__name__, len(module.parts))
loaded = fusec.load("dense.fusec")
for what in (lambda: fusec.jit, loaded.explain, lambda: loaded.save("x.fusec"), lambda: loaded.write_report("x.html")):
    try:
        what()
    except FusecError as error:
        print(type(error).__name__, error)
"""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(
        [str(clean), "-c", program], cwd=tmp_path, capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    first, module, *refused = done.stdout.splitlines()
    assert first == "[]"
    assert module == "GpuModule 2"
    assert len(refused) == 4
    assert all(line.startswith("TargetError") and line.endswith("pip install fusec") for line in refused)
