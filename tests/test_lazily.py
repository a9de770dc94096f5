"""Modules that are loaded when something of them is first used."""

from __future__ import annotations

import importlib
import inspect
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


def test_looking_through_all_modules_loads_none(package: str) -> None:
    with lazily([f"{package}.large"]):
        module = importlib.import_module(package)
    assert inspect.getmodule(compile("0", "<nowhere>", "eval")) is None
    assert module.large.__file__.endswith("large.py")
    assert not hasattr(module.large, "__wrapped__")
    assert loaded() == ["small"]


def test_one_that_can_t_be_loaded_has_no_names(package: str, tmp_path: Path) -> None:
    (tmp_path / package / "large.py").write_text("raise ValueError('broken')\n")
    with lazily([f"{package}.large"]):
        module = importlib.import_module(package)
    assert not hasattr(module.large, "value")
    assert not hasattr(module.large, "value")


def test_a_module_in_a_lazy_package_loads_that_first(package: str, tmp_path: Path) -> None:
    inner = tmp_path / package / "large"
    inner.mkdir()
    (tmp_path / package / "large.py").unlink()
    (inner / "__init__.py").write_text("import sys\nsys.fusec_loaded.append('large')\n")
    (inner / "part.py").write_text("import sys\nsys.fusec_loaded.append('part')\n")
    with lazily([f"{package}.large"]):
        importlib.import_module(package)
    importlib.import_module(f"{package}.large.part")
    assert loaded() == ["small", "large", "part"]
