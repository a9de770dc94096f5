"""The command, run in this process."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import fusec
from fusec.cli.main import app
from fusec.cli.words import fitted

run = CliRunner().invoke


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "f.fusec"

    def waves(x: np.ndarray) -> np.ndarray:
        return np.sin(x) * 2

    fusec.compile(waves, np.ones((3, 4), np.float32)).save(path)
    return path


def test_inspect(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusec.build.load_module", lambda data: pytest.fail("inspect loaded machine code"))
    result = run(app, ["inspect", str(saved), "--ir", "--kernels"])
    assert result.exit_code == 0
    for expected in ("waves: a numpy function", "runs here", "input 0: f32[3, 4]", "graph @waves", "kernel", "sin %"):
        assert expected in result.stdout


def test_outputs_are_told_for_the_whole_range(tmp_path: Path) -> None:
    """Though the last piece is for one extent alone."""

    def bounded(x: np.ndarray) -> np.ndarray:
        return x * 2 if x.shape[0] < 16 else x + 1

    compiled = fusec.compile(bounded, fusec.TensorSpec(("N:1..16", 4), "f32"), library="numpy")
    compiled.save(tmp_path / "f.fusec")
    assert "output 0: f32[N, 4] strides (4, 1)" in run(app, ["inspect", str(tmp_path / "f.fusec")]).stdout
    header = compiled.export_c(tmp_path / "c").read_text()
    assert "output0: f32[N, 4], strides (4, 1) in elements" in header


def test_inspect_refuses_what_is_damaged(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(saved.read_bytes()[:-40])
    result = run(app, ["inspect", str(tmp_path / "x")])
    assert result.exit_code == 1
    assert "error: " in result.stderr
    with zipfile.ZipFile(tmp_path / "y", "w") as archive:
        archive.writestr("manifest.json", json.dumps({"format": 1, "members": {}}))
    result = run(app, ["inspect", str(tmp_path / "y")])
    assert result.exit_code == 1
    assert "Traceback" not in result.output


def test_a_file_does_not_drive_the_terminal(saved: Path, tmp_path: Path) -> None:
    from fusec.runtime import artifact

    contents = artifact.read(saved)
    members = {name: contents.read(name) for name in contents.sizes if name != "manifest.json"}
    manifest = {k: v for k, v in contents.manifest.items() if k not in ("members", "format")}
    artifact.write(tmp_path / "x", {**manifest, "name": "evil\x1b[2J"}, members)
    result = run(app, ["inspect", str(tmp_path / "x")])
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
    assert "evil?[2J" in result.stdout


def test_version() -> None:
    assert run(app, ["--version"]).stdout == f"fusec {fusec.__version__}\n"


def test_lines_fit_a_terminal() -> None:
    text = "short\n    " + "word " * 30 + "\n"
    lines = fitted(text, 60).splitlines()
    assert max(map(len, lines)) <= 60
    assert lines[0] == "short"
    assert lines[1].startswith("    word")
    assert lines[2].startswith("        word")
    assert fitted(text, 0) == text


def test_what_a_file_needs_is_told(saved: Path) -> None:
    told = run(app, ["inspect", str(saved)]).stdout
    assert "needs fusec-runtime and NumPy; OpenMP (libgomp) for more than one thread" in told


def test_doctor_on_a_machine_without_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusec.toolchain.is_there", lambda module: module not in ("onnx", "triton"))
    monkeypatch.setattr("fusec.runtime.isa.host_features", lambda: frozenset({"avx2", "fma"}))
    text = run(app, ["doctor"]).stdout
    (onnx,) = (line for line in text.splitlines() if " onnx " in line)
    assert onnx.startswith("--")
    assert "pip install 'onnx>=" in onnx
    (older,) = (line for line in text.splitlines() if line.startswith("cpu:znver5"))
    assert "it needs a CPU with" in older


def test_cache_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_CACHE_DIR", str(tmp_path))
    assert "0 programs" in run(app, ["cache", "ls"]).stdout
    fusec.jit(lambda x: x * 11.5)(np.ones(3))
    assert "1 program," in run(app, ["cache", "ls"]).stdout
    assert "1 entry removed" in run(app, ["cache", "clear"]).stdout
    assert "0 programs" in run(app, ["cache", "ls"]).stdout


def test_doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_CACHE_DIR", str(tmp_path))
    result = run(app, ["doctor"])
    assert result.exit_code == 0
    assert "compiled, run, right" in result.stdout
    targets = result.stdout.partition("runs here\n")[2].splitlines()
    assert targets[0].split() == ["cpu", "TVM", "yes"]
    (hip,) = (line for line in targets if line.startswith("hip:gfx942"))
    assert "CUDA C++" not in hip
    assert len([line for line in targets if line.startswith("cuda:sm_")]) >= 4
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FUSEC_CACHE_DIR", str(tmp_path / "file"))
    result = run(app, ["doctor"])
    assert result.exit_code == 1
    assert "no  cache" in result.stdout


def test_exports_for_viewers(saved: Path, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    model, explorer = tmp_path / "f.onnx", tmp_path / "f.json"
    result = run(app, ["inspect", str(saved), "--onnx", str(model), "--model-explorer", str(explorer)])
    assert result.exit_code == 0, result.output
    assert "f.onnx: waves after fuse" in result.stdout
    assert len(onnx.load(model).functions) == 1
    assert [graph["id"] for graph in json.loads(explorer.read_text())["graphs"]] == ["before fusion", "after fusion"]
    result = run(app, ["inspect", str(saved), "--onnx", str(model), "--stage", "capture"])
    assert result.exit_code == 0
    assert len(onnx.load(model).functions) == 0
    for wrong, said in ((["--stage", "tile"], "has no stage 'tile'"), (["--piece", "1"], "there is no 1")):
        result = run(app, ["inspect", str(saved), "--onnx", str(model), *wrong])
        assert result.exit_code == 1
        assert said in result.stderr


def test_opt_exports_its_result(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    text, model, explorer = tmp_path / "g.ir", tmp_path / "g.onnx", tmp_path / "g.json"
    text.write_text(str(fusec.trace(lambda x: np.sin(x) * 2, np.ones((3, 4), np.float32))))
    result = run(app, ["opt", str(text), "--onnx", str(model), "--model-explorer", str(explorer)])
    assert result.exit_code == 0, result.output
    assert [f.domain for f in onnx.load(model).functions] == ["fusec.kernels"]
    assert len(json.loads(explorer.read_text())["graphs"]) == 1
    result = run(app, ["opt", str(text), "--onnx", str(tmp_path / "none" / "g.onnx")])
    assert result.exit_code == 1
    assert "can't write" in result.stderr


def test_inspect_measures_where_the_file_runs(saved: Path, tmp_path: Path) -> None:
    result = run(app, ["inspect", str(saved), "--measure"])
    assert result.exit_code == 0, result.output
    assert "measured here, on random arguments" in result.stdout
    (head,) = (line for line in result.stdout.splitlines() if "predicted" in line)
    assert "measured" in head
    page = tmp_path / "f.html"
    result = run(app, ["inspect", str(saved), "--measure", "--html", str(page)])
    assert result.exit_code == 0, result.output
    assert "measured here, on random arguments" in page.read_text()
    assert ", measured " in page.read_text()  # what the roofline says of a kernel
    plain = run(app, ["inspect", str(saved)]).stdout
    assert "measured" not in plain


def test_inspect_says_why_nothing_is_measured(tmp_path: Path) -> None:
    def picked(table: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return table[rows] * 2

    path = tmp_path / "picked.fusec"
    fusec.compile(picked, np.ones((1, 4), np.float32), np.zeros(40, np.int64)).save(path)
    result = run(app, ["inspect", str(path), "--measure"])  # a random index of a table with one row
    assert result.exit_code == 0
    assert "not measured: IndexError" in result.stdout
    pytest.importorskip("triton")
    torch = pytest.importorskip("torch")
    fusec.compile(lambda x: torch.relu(x), fusec.TensorSpec((64,), "float32"), target="cuda:sm_90").save(path)
    result = run(app, ["inspect", str(path), "--measure"])
    assert result.exit_code == 0
    if not torch.cuda.is_available():
        assert "not measured: it needs sm_90" in result.stdout


def test_what_tuning_measured_is_told(tmp_path: Path) -> None:
    def product(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        return np.maximum(x @ w, 0)

    path = tmp_path / "product.fusec"
    x, w = np.ones((64, 64), np.float32), np.ones((64, 96), np.float32)
    fusec.compile(product, x, w, tune="quick", cache=False).save(path)
    text = run(app, ["inspect", str(path)]).stdout
    assert "(chosen)" in text
    (head,) = (line for line in text.splitlines() if "predicted" in line)
    assert "measured" in head
    page = tmp_path / "product.html"
    assert run(app, ["inspect", str(path), "--html", str(page)]).exit_code == 0
    assert ", measured " in page.read_text()


# Misuse


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run", "{file}", "--inputs", "{array}", "-o", "/nowhere/at.npz"], "can't write /nowhere/at.npz"),
        (["inspect", "{file}", "--html", "/nowhere/at.html"], "can't write /nowhere/at.html"),
        (["compile", "misused:tanh", "--spec", "x=f32[4]", "-o", "{folder}/g", "--target", "gpu"], "no target 'gpu'"),
        (["compile", "misused:tanh", "--spec", "x=f32[4]", "-o", "/nowhere/at"], "can't write /nowhere/at"),
        (["compile", "misused:raises", "--spec", "x=f32[4]", "-o", "{folder}/g"], "misused:raises: KeyError: 'own'"),
        (["compile", "misused:tanh", "--spec", "y=f32[4]", "-o", "{folder}/g"], "missing a required argument: 'x'"),
        (["compile", "broken:tanh", "--spec", "x=f32[4]", "-o", "{folder}/g"], "broken.py:1: ZeroDivisionError"),
        (["bench", "misused:tanh", "--spec", "x=f32[4]", "--target", "gpu"], "no target 'gpu'"),
        (["opt", "{array}"], "can't be read"),
        (["cache", "why", "zzz"], "no keys start with 'zzz'"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else None,
)
def test_a_mistake_is_one_line(
    arguments: list[str], told: str, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "misused.py").write_text(
        "import numpy\n\n\ndef tanh(x):\n    return numpy.tanh(x)\n\n\ndef raises(x):\n    numpy.tanh(x)\n"
        "    raise KeyError('own')\n"
    )
    (tmp_path / "broken.py").write_text("1 / 0\n")
    np.save(tmp_path / "x.npy", np.ones((3, 4), np.float32))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "misused", raising=False)
    given = {"file": saved, "folder": tmp_path, "array": tmp_path / "x.npy"}
    result = run(app, [argument.format(**given) for argument in arguments])
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    assert result.stderr.startswith("error: ")
    assert told in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_wrong_environment_is_told_by_every_command(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_VERIFY", "maybe")
    for arguments in (["inspect", str(saved)], ["cache", "ls"], ["opt", "x.ir"]):
        result = run(app, arguments)
        assert result.exit_code == 1
        assert result.stderr == "error: FUSEC_VERIFY=maybe; it is 0 or 1\n"
    result = run(app, ["doctor"])
    assert result.exit_code == 1
    assert "no  environment  FUSEC_VERIFY=maybe; it is 0 or 1" in result.stdout


def test_a_file_in_the_caches_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FUSEC_CACHE_DIR", str(tmp_path / "file"))
    for command in ("ls", "clear"):
        result = run(app, ["cache", command])
        assert result.exit_code == 1
        assert "is no folder; set FUSEC_CACHE_DIR" in result.stderr


SMALL = """
import torch


def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.Tanh()).requires_grad_(False)
"""


def test_explain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    (tmp_path / "small_model.py").write_text(SMALL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    given = ["explain", "small_model:make()", "--spec", "input=f32[4, 16]"]
    plain = run(app, given)
    assert plain.exit_code == 0, plain.output
    assert "gemm" in plain.stdout
    assert "float64" not in plain.stdout
    largest = {}
    for precision in ("ieee", "bf16"):
        told = run(app, [*given, "--errors", "--measure", "--precision", precision]).stdout
        assert "errors against float64" in told
        row = next(line for line in told.splitlines() if line.strip().startswith("%") and "f32[4, 8]" in line)
        fused, eager = (float(x) for x in (row.split()[-6], row.split()[-3]))
        assert 0 < eager < 1e-6
        largest[precision] = fused
    assert largest["ieee"] < 1e-6 < 1e-4 < largest["bf16"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--precision", "f8"], "precision='f8'"),
        (["--target", "cpu:z80"], "z80"),
        (["--spec", "other=f32[3]"], "other"),
    ],
)
def test_explain_refuses(more: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    (tmp_path / "small_model.py").write_text(SMALL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    result = run(app, ["explain", "small_model:make()", "--spec", "input=f32[4, 16]", *more])
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1
