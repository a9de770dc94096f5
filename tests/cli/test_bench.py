"""The command ``fusec bench``."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fusec.cli import bench
from fusec.cli.main import app

SOURCE = """
import numpy as np
import torch


def waves(x, b):
    return np.sort(np.sin(x) * 2 + b)


def branch(x):
    return torch.tanh(x) if x.sum() > 1e9 else torch.relu(x)


def clear(x):
    y = torch.mul(x, 2)
    x.zero_()
    return y
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "benched.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["bench", *arguments, "--seconds", "0.01"])
    return result.exit_code, result.output


@pytest.mark.usefixtures("source")
def test_table_and_json() -> None:
    specs = ["--spec", "x=f32[B:1..64, 8]", "--spec", "b=f32[8]"]
    code, text = run("benched:waves", *specs)
    assert code == 0, text
    for expected in ("as written", "fusec", "latency", "calls/s", "peak memory", "difference"):
        assert expected in text
    code, text = run("benched:waves", *specs, "--json")
    assert code == 0, text
    written, compiled = json.loads(text)["results"]
    assert (written["name"], compiled["name"]) == ("as written", "fusec")
    assert 0 < compiled["low"] <= compiled["median"] <= compiled["high"] < compiled["first"]
    assert written["error"] is None
    assert compiled["error"] < 1e-6


@pytest.mark.usefixtures("source")
def test_what_fails_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(function: object) -> object:
        raise RuntimeError("no compiler\nand more")

    monkeypatch.setattr(bench, "_torch_compiled", broken)
    code, text = run("benched:branch", "--spec", "x=f32[4]")
    assert code == 0, text
    assert "fusec failed: FusecError: its calls ran as written" in text
    assert "torch.compile failed: RuntimeError: no compiler" in text
    assert "and more" not in text


@pytest.mark.usefixtures("source")
def test_a_function_that_changes_its_argument_gets_a_fresh_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_torch_compiled", lambda function: function)
    code, text = run("benched:clear", "--spec", "x=f32[4]", "--json")
    assert code == 0, text
    assert [r["error"] for r in json.loads(text)["results"]] == [None, 0.0, 0.0]


@pytest.mark.usefixtures("source")
@pytest.mark.parametrize(
    ("specs", "message"),
    [
        (["x=f32[4]"], "missing a required argument: 'b'"),
        (["x=f32[B, 4]", "b=f32[4]"], "give B an extent"),
        (["x=f32", "b=f32[4]"], "is not a spec"),
    ],
)
def test_mistakes(specs: list[str], message: str) -> None:
    code, text = run("benched:waves", *(part for spec in specs for part in ("--spec", spec)))
    assert code == 1
    assert message in text


def test_difference() -> None:
    a = np.array([1.0, -4.0, np.inf, np.nan])
    assert bench.difference(a, a) == 0
    assert bench.difference(np.array([1.0, -3.0, np.inf, np.nan]), a) == 0.25
    assert math.isinf(bench.difference(np.array([1.0, -4.0, np.nan, np.inf]), a))
    assert math.isinf(bench.difference(np.array([np.nan, -4.0, np.inf, np.nan]), a))


def test_peak_memory() -> None:
    found = bench.peak_memory(lambda: np.ones(8 << 20).sum(), {})
    assert found is None or 48 << 20 < found < 200 << 20


@pytest.mark.usefixtures("source")
@pytest.mark.parametrize(("turns", "told"), [(8, "fusec"), (0, "as written failed: stopped by Ctrl-C")])
def test_ctrl_c_tells_what_was_measured(monkeypatch: pytest.MonkeyPatch, turns: int, told: str) -> None:
    run_once, count = bench.Way.run, iter(range(1000))

    def interrupted(way: bench.Way, seconds: float) -> None:
        if next(count) == turns:
            raise KeyboardInterrupt
        run_once(way, seconds)

    monkeypatch.setattr(bench.Way, "run", interrupted)
    code, text = run("benched:waves", "--spec", "x=f32[64, 8]", "--spec", "b=f32[8]")
    assert code == 0, text
    assert told in text
    assert ("stopped" in text) == (turns == 0)


@pytest.mark.usefixtures("source")
def test_ways_are_measured_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = []
    run_once = bench.Way.run
    monkeypatch.setattr(bench.Way, "run", lambda way, seconds: (turns.append(way.name), run_once(way, seconds)))
    assert run("benched:waves", "--spec", "x=f32[64, 8]", "--spec", "b=f32[8]")[0] == 0
    assert turns == ["as written", "fusec"] * 5
