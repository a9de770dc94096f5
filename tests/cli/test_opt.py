"""The command ``fusec opt``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import fusec
from fusec.cli.main import app
from fusec.passes.pipeline import PASS_NAMES, graph_passes


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "softmax.ir"
    path.write_text(str(fusec.trace(softmax, np.ones((4, 8), np.float32))))
    return path


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["opt", *map(str, arguments)])
    return result.exit_code, result.output


def test_the_table_holds_the_passes_in_their_order() -> None:
    assert tuple(graph_passes()) == PASS_NAMES


def test_two_passes(source: Path) -> None:
    code, text = run(source, "-p", "canonicalize, fuse")
    assert code == 0, text
    graph = fusec.parse(text)
    assert [op.name for op in graph.ops] == ["fused"]
    assert str(graph).rstrip() == text.rstrip()


def test_all_passes_give_what_lowering_gives(source: Path) -> None:
    code, text = run(source)
    assert code == 0, text
    assert text.rstrip() == fusec.lower(fusec.parse(source.read_text())).stages["fuse"].rstrip()


def test_print_after_all(source: Path) -> None:
    code, text = run(source, "-p", "canonicalize,cse,fuse", "--print-after-all")
    assert code == 0, text
    heads = [line for line in text.splitlines() if line.startswith("// ")]
    assert heads == ["// softmax.ir", "// after canonicalize", "// after cse", "// after fuse"]
    assert fusec.parse(text.split("// after canonicalize\n")[1].split("// after")[0])


def test_the_standard_input(source: Path) -> None:
    from_file, piped = (
        CliRunner().invoke(app, ["opt", name], input=text)
        for name, text in ((str(source), None), ("-", source.read_text()))
    )
    assert piped.exit_code == 0
    assert piped.output == from_file.output


def test_target_of_the_passes(tmp_path: Path) -> None:
    path = tmp_path / "sum.ir"
    path.write_text(
        str(fusec.trace(lambda x, y: x @ y, np.ones((3, 1, 8), np.float32), np.ones((3, 8, 4), np.float32)))
    )
    assert (
        run(path, "-p", "canonicalize,vectors")[1]
        != run(path, "-p", "canonicalize,vectors", "--target", "cuda:sm_90")[1]
    )


@pytest.mark.parametrize(
    ("text", "passes", "message"),
    [
        (None, "fuse", "can't be read"),
        ("graph @f(%x: f32[4]) {\n  %y = frobnicate(%x) : f32[4]\n  return %y\n}\n", "fuse", "line 2, column"),
        ("graph @f(%x: f32[4]) {\n  %y = neg(%x) : f32[4]\n  return %y\n}\n", "fuse,fuze", "there is no pass 'fuze'"),
    ],
)
def test_mistakes(tmp_path: Path, text: str | None, passes: str, message: str) -> None:
    path = tmp_path / "f.ir"
    if text is not None:
        path.write_text(text)
    code, output = run(path, "-p", passes)
    assert code == 1
    assert message in output
    assert output.startswith("error: ")
    assert "Traceback" not in output
