"""The commands ``fusec cache why``, ``export`` and ``import``."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import fusec
from fusec import build
from fusec.cli.main import app
from fusec.runtime.cache import TuningStore, default_cache


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["cache", *map(str, arguments)])
    return result.exit_code, result.output


@pytest.fixture
def filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with one function compiled twice, with and without a pass, and another function."""
    monkeypatch.setenv("FUSEC_CACHE_DIR", str(tmp_path / "cache"))
    x = np.ones((3, 5), np.float32)

    def wave(x: np.ndarray) -> np.ndarray:
        return np.sin(x) * 2.625

    def other(x: np.ndarray) -> np.ndarray:
        return np.cos(x)

    fusec.compile(wave, x)
    fusec.compile(other, x)
    monkeypatch.setenv("FUSEC_DISABLE_PASS", "cse")
    fusec.compile(wave, x)
    monkeypatch.delenv("FUSEC_DISABLE_PASS")
    assert len(default_cache().entries()) == 3
    return tmp_path


def test_why(filled: Path) -> None:
    texts = [run("why", key[:12]) for key, _, _ in default_cache().entries()]
    assert all(code == 0 for code, _ in texts)
    waves = [text for _, text in texts if ": wave\n" in text]
    assert len(waves) == 2
    for text in waves:
        assert text.count("is of the same graph; other passes left out:") == 1
        assert "versions: " in text
    assert sum("passes left out: cse" in text.split("is of the same")[0] for text in waves) == 1
    (single,) = (text for _, text in texts if ": other\n" in text)
    assert "same graph" not in single


def test_no_such_key(filled: Path) -> None:
    code, text = run("why", "zz")
    assert code == 1
    assert "no keys start with 'zz'" in text


def test_export_and_import(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = filled / "programs.zip"
    assert run("export", file) == (0, f"3 programs in {file}\n")
    keys = {key for key, _, _ in default_cache().entries()}
    monkeypatch.setenv("FUSEC_CACHE_DIR", str(filled / "elsewhere"))
    assert run("import", file) == (0, "3 programs added, 0 were there\n")
    assert run("import", file) == (0, "0 programs added, 3 were there\n")
    assert {key for key, _, _ in default_cache().entries()} == keys
    build._built.clear()
    monkeypatch.setattr(build, "_compile", lambda *rest: pytest.fail("compiled again"))

    def wave(x: np.ndarray) -> np.ndarray:
        return np.sin(x) * 2.625

    x = np.ones((3, 5), np.float32)
    np.testing.assert_allclose(fusec.compile(wave, x)(x), wave(x), rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [("../" + "a" * 64, b"", "is not a cached program"), ("a" * 64, b"fusec-cache-1\nnonsense", "is damaged")],
)
def test_what_is_not_imported(filled: Path, name: str, data: bytes, message: str) -> None:
    file = filled / "evil.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, data)
    before = default_cache().entries()
    code, text = run("import", file)
    assert code == 1
    assert message in text
    assert default_cache().entries() == before
    (filled / "text").write_text("no zip")
    assert run("import", filled / "text")[0] == 1


def test_ls_names_functions_and_why_is_no_use(filled: Path) -> None:
    code, text = run("ls")
    assert code == 0, text
    assert text.count(" wave on cpu") == 2
    assert text.count(" other on cpu") == 1
    assert "3 programs" in text
    cache = default_cache()
    before = cache.entries()
    for key, _, _ in before:
        assert run("why", key)[0] == 0
    assert cache.entries() == before


def test_measured_choices_and_profiles_are_listed_and_cleared(filled: Path) -> None:
    TuningStore(default_cache().folder)["0" * 64] = "{}"
    profile = default_cache().folder / "machines" / "one"
    profile.parent.mkdir()
    profile.write_text("{}")
    assert "1 measured choice of schedules" in run("ls")[1]
    assert run("clear") == (0, "5 entries removed\n")
    assert not profile.exists()
    assert "measured choices" not in run("ls")[1]
