"""Looking for what makes a wrong answer, in compilers that were made wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import fusec
from fusec import bisect as searching
from fusec.bisect import bisect
from fusec.cli.main import app
from fusec.errors import ArtifactError, FusecError
from fusec.ir.graph import FusedAttributes, Graph
from fusec.ir.ops import OPS
from fusec.reproducer import Reproducer, capture_reproducer, load_reproducer, save_reproducer

W = np.linspace(-1, 1, 48, dtype=np.float32).reshape(6, 8)


def head(x: np.ndarray) -> np.ndarray:
    h = np.tanh(x @ W)
    e = np.exp(h - h.max(axis=1, keepdims=True))
    return np.sort(e / e.sum(axis=1, keepdims=True), axis=1)


@pytest.fixture
def case() -> Reproducer:
    x = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32).T
    return capture_reproducer(head, {"x": x})


def spelled(graph: Graph, old: str, new: str) -> Graph:
    """The graph with one op in the place of another, in kernels too."""
    ops = []
    for op in graph.ops:
        if isinstance(op.attributes, FusedAttributes):
            op = replace(op, attributes=replace(op.attributes, body=spelled(op.attributes.body, old, new)))
        ops.append(replace(op, definition=OPS[new]) if op.name == old else op)
    return graph.with_ops(ops)


def test_nothing_wrong(case: Reproducer) -> None:
    text, right = bisect(case)
    assert right, text
    assert text.endswith("nothing is wrong for these inputs\n")
    assert "ok  after fuse\n" in text


def test_a_wrong_pass(case: Reproducer, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = searching.graph_passes

    def broken(*args: Any) -> dict[str, Callable[[Graph], Graph]]:
        return {**passes(*args), "cse": lambda g: spelled(g, "tanh", "sin")}

    monkeypatch.setattr(searching, "graph_passes", broken)
    text, right = bisect(case)
    assert not right
    assert "ok  after products\npass cse makes a wrong graph: result 0" in text
    assert text.endswith("\nright with FUSEC_DISABLE_PASS=cse\n")
    monkeypatch.setenv("FUSEC_DISABLE_PASS", "cse")
    assert bisect(case)[1]


def test_a_pass_that_fails(case: Reproducer, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = searching.graph_passes
    monkeypatch.setattr(searching, "graph_passes", lambda t: {**passes(t), "split": lambda g: 1 / 0})
    text, right = bisect(case)
    assert not right
    assert "pass split fails: ZeroDivisionError" in text
    assert text.endswith("\nright with FUSEC_DISABLE_PASS=split\n")


def test_a_wrong_kernel(case: Reproducer, monkeypatch: pytest.MonkeyPatch) -> None:
    assemble = searching.assemble
    monkeypatch.setattr(searching, "assemble", lambda g, *rest: assemble(spelled(g, "tanh", "sin"), *rest))
    text, right = bisect(case)
    assert not right
    assert "the compiled program is wrong: result 0" in text
    assert text.count("is wrong: result 0") == 2
    (line,) = (line for line in text.splitlines() if line.startswith("kernel "))
    assert "(gemm)" in line or "(row)" in line
    kernel = text[text.index("\nkernel ") :]
    assert "test_bisect.py" in kernel
    assert "tanh" in kernel
    assert text.endswith("leaving out any one pass does not help\n")


def test_a_pass_that_makes_right_graphs_and_wrong_programs(case: Reproducer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fused kernel is wrong, its ops alone are right: leaving fusion out is the cure."""
    run = searching._Search.run

    def broken(self: Any, graph: Graph, inputs: Any, expected: Any) -> str:
        fused = any(isinstance(op.attributes, FusedAttributes) and len(op.attributes.body.ops) > 2 for op in graph.ops)
        return "off" if fused else run(self, graph, inputs, expected)

    monkeypatch.setattr(searching._Search, "run", broken)
    text, right = bisect(case)
    assert not right
    assert "the compiled program is wrong: off" in text
    assert text.endswith("\nright with FUSEC_DISABLE_PASS=fuse\n")


def test_passes_left_out_stay_out(case: Reproducer, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = searching.graph_passes
    monkeypatch.setattr(searching, "graph_passes", lambda t: {**passes(t), "split": lambda g: 1 / 0})
    monkeypatch.setenv("FUSEC_DISABLE_PASS", "dce,cse")
    text, _ = bisect(case)
    assert "after cse" not in text
    assert text.endswith("\nright with FUSEC_DISABLE_PASS=cse,dce,split\n")
    monkeypatch.setenv("FUSEC_DISABLE_PASS", "indices")
    with pytest.raises(FusecError, match="can't leave out indices; it takes regions, loops, canonicalize, "):
        bisect(case)


def test_ctrl_c_tells_what_was_found(case: Reproducer, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(searching._Search, "run", interrupted)
    text, right = bisect(case)
    assert not right
    assert "ok  after fuse\n" in text
    assert text.endswith("stopped by Ctrl-C\n")


def test_kernels_that_are_right_alone(case: Reproducer, monkeypatch: pytest.MonkeyPatch) -> None:
    run = searching._Search.run

    def broken(self: Any, graph: Graph, inputs: Any, expected: Any) -> str:
        return "off" if len(graph.ops) > 1 else run(self, graph, inputs, expected)

    monkeypatch.setattr(searching._Search, "run", broken)
    text, right = bisect(case)
    assert not right
    assert "each kernel is right by itself" in text


def test_every_op_alone(case: Reproducer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_DISABLE_PASS", "fuse")
    text, right = bisect(case)
    assert right, text
    assert "ok  after fuse (one op each)" in text


def test_halves_and_a_tolerance() -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(4, 64, dtype=torch.bfloat16)
    case = capture_reproducer(lambda x: torch.softmax(x, -1), {"x": x})
    assert bisect(case)[1]
    text, right = bisect(case, tolerance=0.0)
    assert right or "0 is allowed" in text


def test_a_reproducer_on_disk(case: Reproducer, tmp_path: Path) -> None:
    save_reproducer(case, tmp_path / "case")
    again = load_reproducer(tmp_path / "case")
    assert str(again.graph) == str(case.graph)
    assert again.library == "numpy"
    for a, b in zip(again.inputs, case.inputs, strict=True):
        np.testing.assert_array_equal(a, b)
    result = CliRunner().invoke(app, ["bisect", str(tmp_path / "case")])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("member", "data", "message"),
    [
        ("graph.ir", b"graph @f(", "line 1"),
        ("inputs.safetensors", b"\0" * 8, "can't be read"),
        ("library.txt", b"pickle", "no 'pickle'"),
    ],
)
def test_a_damaged_reproducer(case: Reproducer, tmp_path: Path, member: str, data: bytes, message: str) -> None:
    save_reproducer(case, tmp_path)
    (tmp_path / member).write_bytes(data)
    with pytest.raises(ArtifactError, match=message):
        load_reproducer(tmp_path)


def test_inputs_that_do_not_fit(case: Reproducer, tmp_path: Path) -> None:
    save_reproducer(replace(case, inputs=[a.astype(np.float64) for a in case.inputs]), tmp_path)
    with pytest.raises(ArtifactError, match=r"the array is float64"):
        load_reproducer(tmp_path)


def test_the_command_on_a_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wavy.py").write_text("import numpy as np\ndef waves(x):\n    return np.sin(x) * 2\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    result = CliRunner().invoke(app, ["bisect", "wavy:waves", "--spec", "x=f32[5, 3]", "-o", "case"])
    assert result.exit_code == 0, result.output
    assert fusec.parse((tmp_path / "case" / "graph.ir").read_text()).name == "waves"
    result = CliRunner().invoke(app, ["bisect", "absent"])
    assert result.exit_code == 1
    assert "absent is not a reproducer" in result.output
