"""The commands ``fusec compile`` and ``fusec run``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fusec.cli.main import app

SOURCE = """
import numpy as np

W = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)
NUMBER = 3


def encode(rows, bias):
    return np.tanh(rows @ W + bias)
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "encoders.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_compile_and_run(source: Path) -> None:
    runner = CliRunner()
    specs = ["--spec", "bias=f32[6]", "--spec", "rows=f32[B:1..9, 4]"]
    made = runner.invoke(app, ["compile", "encoders:encode", *specs, "-o", "e.fusec", "--c", "c"])
    assert made.exit_code == 0, made.output
    assert "encode(f32[B, 4], f32[6])" in made.output
    assert "B from 1 to 9" in made.output
    assert (source / "c" / "encode.h").exists()
    x, b = np.ones((5, 4), np.float32), np.arange(6, dtype=np.float32)
    np.save("x.npy", x)
    np.save("b.npy", b)
    ran = runner.invoke(app, ["run", "e.fusec", "--inputs", "x.npy", "--inputs", "b.npy", "-o", "y.npz"])
    assert (ran.exit_code, ran.output) == (0, "result0: float32[5, 6]\n")
    w = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)
    np.testing.assert_allclose(np.load("y.npz")["result0"], np.tanh(x @ w + b), rtol=1e-6)
    np.save("x.npy", np.ones((10, 4), np.float32))
    ran = runner.invoke(app, ["run", "e.fusec", "--inputs", "x.npy", "--inputs", "b.npy"])
    assert ran.exit_code == 1
    assert "B is 10, compiled was B from 1 to 9" in ran.output


FACTORY = """
import torch


class Net(torch.nn.Module):
    def __init__(self, width, layers=1):
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))

    def forward(self, x):
        return self.layers(x)


class Nets:
    small = Net


def plain(x):
    return x * 2
"""


def test_factories_and_libraries(source: Path) -> None:
    (source / "nets.py").write_text(FACTORY)
    runner = CliRunner()
    made = runner.invoke(app, ["compile", "nets:Nets.small(4, layers=2)", "--spec", "x=f32[3, 4]", "-o", "n.fusec"])
    assert (made.exit_code, made.output.partition(":")[0]) == (0, "n.fusec"), made.output
    plain = ["compile", "nets:plain", "--spec", "x=f32[3]", "-o", "p.fusec"]
    refused = runner.invoke(app, plain)
    assert "can't tell whether torch or NumPy is meant" in refused.output
    for library in ("torch", "numpy"):
        assert runner.invoke(app, [*plain, "--library", library]).exit_code == 0
        assert f"a {library} function" in runner.invoke(app, ["inspect", "p.fusec"]).output
    np.save("x.npy", np.ones(3, np.float32))
    ran = runner.invoke(app, ["run", "p.fusec", "--inputs", "x.npy", "-o", "absent/y.npz"])
    assert ran.exit_code == 1
    assert ran.output.count("\n") == 1
    assert "can't write absent/y.npz" in ran.output


@pytest.mark.parametrize(
    ("name", "spec", "message"),
    [
        ("encoders:encode(open('x'))", "rows=f32[2, 4]", "is no call with literals"),
        ("encoders:encode(**{'rows': 1})", "rows=f32[2, 4]", "is no call with literals"),
        ("encoders:encode(1)(2)", "rows=f32[2, 4]", "is no call with literals"),
        ("encoders:encode(1, 2)", "rows=f32[2, 4]", "can't be made"),
        ("encoders:NUMBER(1)", "rows=f32[2, 4]", "can't be called"),
        ("encoders", "rows=f32[2, 4]", "write it as module:function"),
        ("absent:encode", "rows=f32[2, 4]", "No module named 'absent'"),
        ("encoders:decode", "rows=f32[2, 4]", "has no attribute 'decode'"),
        ("encoders:NUMBER", "rows=f32[2, 4]", "can't be called"),
        ("encoders:encode", "rows=f32[2, 4]", "missing a required argument: 'bias'"),
        ("encoders:encode", "row=f32[2, 4]", "unexpected keyword argument 'row'|missing a required argument"),
        ("encoders:encode", "rows=f32", "is not a spec"),
    ],
)
def test_mistakes(source: Path, name: str, spec: str, message: str) -> None:
    done = CliRunner().invoke(app, ["compile", name, "--spec", spec, "-o", "e.fusec"])
    assert done.exit_code == 1
    assert any(part in done.output for part in message.split("|"))
    assert not (source / "e.fusec").exists()
