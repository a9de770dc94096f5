"""The notebooks' cells run, in order, and hold no output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "notebooks"


@pytest.mark.parametrize("name", ["first_steps", "reading_why"])
def test_cells_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = FOLDER / f"{name}.ipynb"
    notebook = json.loads(path.read_text())
    assert notebook["nbformat"] == 4
    space: dict[str, Any] = {"__name__": name}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in cells)
    for number, cell in enumerate(cells):
        file = tmp_path / f"{name}_{number}.py"  # captures read the source's lines
        file.write_text("".join(cell["source"]))
        exec(compile(file.read_text(), file, "exec"), space)


def test_every_notebook_is_run() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == ["first_steps", "reading_why"]
