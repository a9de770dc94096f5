"""Each misuse of the command gives one line that begins with ``error:`` and says what is wrong, and exit status 1."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import fusec
from fusec.cli.main import app

run = CliRunner().invoke

MODULE = """
import numpy as np


def waves(x):
    return np.sin(x) * 2


def sorts(x):
    return np.sort(np.sin(x))


number = 3
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("misuse")
    (folder / "wrongly_called.py").write_text(MODULE)
    (folder / "unreadable.py").write_text("def broken(:\n")
    (folder / "junk").write_text("not a file")
    (folder / "empty").write_text("")
    np.save(folder / "right.npy", np.ones((4, 4), np.float32))
    np.save(folder / "wide.npy", np.ones((4, 4)))
    np.save(folder / "short.npy", np.ones((3, 4), np.float32))
    np.save(folder / "text.npy", np.array(["a"]))
    np.savez(folder / "several.npz", a=np.ones(2), b=np.ones(2))
    (folder / "cut.npy").write_bytes((folder / "right.npy").read_bytes()[:-8])

    def waves(x: np.ndarray) -> np.ndarray:
        return np.sin(x) * 2

    fusec.compile(waves, np.ones((4, 4), np.float32)).save(folder / "f.fusec")
    (folder / "cut.fusec").write_bytes((folder / "f.fusec").read_bytes()[:3000])
    return folder


COMPILE = "compile wrongly_called:waves --spec x=f32[4] -o out.fusec"
CASES = {
    "inspect cut.fusec": "not a whole fusec file",
    "inspect empty": "not a whole fusec file",
    "inspect none.fusec": "there is no file none.fusec",
    "inspect .": "it is a folder",
    "inspect f.fusec --html none/x.html": "there is no folder {folder}/none",
    "inspect f.fusec --source .": "--source is where a page finds your lines; write one with --html FILE",
    "inspect f.fusec --onnx none/x.onnx": "there is no folder {folder}/none",
    "inspect f.fusec --onnx x.onnx --piece 9": "f.fusec has 1 piece, the first is 0; there is no 9",
    "inspect f.fusec --onnx x.onnx --stage none": "has no stage 'none'; stages: capture",
    "inspect f.fusec --model-explorer none/x.json": "there is no folder {folder}/none",
    "run f.fusec --inputs wide.npy": "array 0 is f64[4, 4], compiled was f32[4, 4]",
    "run f.fusec --inputs short.npy": "array 0 is f32[3, 4], compiled was f32[4, 4]",
    "run f.fusec --inputs text.npy": "no dtype",
    "run f.fusec --inputs cut.npy": "cut.npy can't be read as an array",
    "run f.fusec --inputs f.fusec": "f.fusec holds several arrays; give a .npy file for each argument",
    "run f.fusec --inputs empty": "empty can't be read as an array",
    "run f.fusec --inputs several.npz": "several.npz holds several arrays",
    "run f.fusec --inputs none.npy": "none.npy can't be read as an array: no such file",
    "run f.fusec --inputs right.npy --inputs right.npy": "waves takes 1 array, 2 were given",
    "run f.fusec --inputs right.npy -o none/x.npz": "there is no folder {folder}/none",
    "run f.fusec --inputs right.npy --weights junk": "its weights are inside",
    "run cut.fusec --inputs right.npy": "not a whole fusec file",
    "compile wrongly_called:waves --spec x=f32[4] -o none/f.fusec": "there is no folder {folder}/none",
    "compile wrongly_called:waves --spec x=f32[4] -o .": "it is a folder",
    f"{COMPILE} --target cpu:z80": "no CPU named 'z80'; known: x86-64",
    f"{COMPILE} --target gpu": "no target 'gpu'",
    f"{COMPILE} --target cuda:sm_90": "write it with PyTorch",
    f"{COMPILE} --tune hard": "it is 'quick' or 'full'",
    f"{COMPILE} --library jax": "it is 'torch' or 'numpy'",
    f"{COMPILE} --c f.fusec": "can't write into f.fusec: file exists",
    "compile wrongly_called:sorts --spec x=f32[4] -o out.fusec --c c": "the library's numpy.sort",
    "compile wrongly_called:waves --spec x=f99[4] -o out.fusec": "no dtype 'f99'; known: f16",
    "compile wrongly_called:waves --spec x=f32[4, -o out.fusec": "write one as f32[B:1..64, 512, 768]",
    "compile wrongly_called:waves --spec y=f32[4] -o out.fusec": "missing a required argument: 'x'",
    "compile wrongly_called:waves --spec x=f32[B:9..1] -o out.fusec": "the range of B is 9 to 1",
    "compile wrongly_called:waves --spec x=f32[B] -o out.fusec": "or 'B:1..64', or give integers",
    "compile wrongly_called:none --spec x=f32[4] -o out.fusec": "has no attribute 'none'",
    "compile none:waves --spec x=f32[4] -o out.fusec": "No module named 'none'",
    "compile unreadable:waves --spec x=f32[4] -o out.fusec": "unreadable.py:1: SyntaxError: invalid syntax",
    "compile wrongly_called.waves --spec x=f32[4] -o out.fusec": "write it as module:function",
    "compile wrongly_called:number --spec x=f32[4] -o out.fusec": "can't be called: it is of type int",
    "compile math:hypot --spec x=f32[4] -o out.fusec": "math:hypot is built in and does not tell its parameters",
    "bench math:hypot --spec x=f32[4]": "math:hypot is built in and does not tell its parameters",
    "explain math:hypot --spec x=f32[4]": "math:hypot is built in and does not tell its parameters",
    "opt none.ir": "no such file",
    "opt junk": "junk: line 1, column 1",
    "opt f.fusec": "fusec inspect --ir",
    "bench wrongly_called:waves --spec x=f32[B]": "give B an extent",
    "bisect none": "none is not a reproducer: there is no folder",
    "cache export none/x.zip": "there is no folder {folder}/none",
    "cache import junk": "junk can't be read",
    "cache why zzzz": "see fusec cache ls",
}


@pytest.mark.parametrize("command", CASES)
def test_a_misuse_is_told_in_one_line(command: str, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made)
    monkeypatch.syspath_prepend(made)
    if "--onnx" in command:
        pytest.importorskip("onnx")
    result = run(app, command.replace("x=f32[4, -o", "x=f32[4,\t-o").replace("\t", " ").split())
    assert result.exit_code == 1, result.output
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) == 1
    assert CASES[command].format(folder=made) in result.stderr
    assert "Errno" not in result.stderr


def test_what_a_file_without_weights_needs(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(4, 4).requires_grad_(False)
    fusec.compile(layer, torch.ones(4, 4)).save(tmp_path / "m.fusec", weights=False)
    np.save(tmp_path / "x.npy", np.ones((4, 4), np.float32))
    (tmp_path / "junk").write_text("junk")
    given = ["run", str(tmp_path / "m.fusec"), "--inputs", str(tmp_path / "x.npy")]
    for more, said in (
        ([], "or fusec run --weights"),
        (["--weights", str(tmp_path / "junk")], "can't be read as safetensors"),
        (["--weights", str(tmp_path / "none")], "can't be read as safetensors: no such file"),
    ):
        result = run(app, [*given, *more])
        assert result.exit_code == 1
        assert said in result.stderr
        assert len(result.stderr.splitlines()) == 1
