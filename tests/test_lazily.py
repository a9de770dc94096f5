"""Modules that are loaded when something of them is first used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fusec.lazily import lazily


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = "fusec_lazily_here"
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").write_text("from . import large, small\n")
    for part in ("large", "small"):
        (folder / f"{part}.py").write_text(f"import sys\nsys.fusec_loaded.append({part!r})\nvalue = {part!r}\n")
    (folder / "large.py").write_text((folder / "large.py").read_text() + "__path__ = []\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "fusec_loaded", [], raising=False)
    yield name
    for known in [m for m in sys.modules if m.partition(".")[0] == name]:
        del sys.modules[known]


def loaded() -> list[str]:
    return list(sys.fusec_loaded)  # type: ignore[attr-defined]


def test_a_module_is_loaded_at_its_first_use(package: str) -> None:
    before = list(sys.meta_path)
    with lazily([f"{package}.large"]):
        module = importlib.import_module(package)
    assert sys.meta_path == before
    assert loaded() == ["small"]
    assert module.large.value == "large"
    assert loaded() == ["small", "large"]


def test_one_that_is_there_stays(package: str) -> None:
    importlib.import_module(package)
    with lazily([f"{package}.large"]):
        importlib.import_module(f"{package}.large")
    assert loaded() == ["large", "small"]


def test_one_that_is_not_there_is_missing(package: str) -> None:
    with lazily([f"{package}.none"]), pytest.raises(ModuleNotFoundError):
        importlib.import_module(f"{package}.none")
