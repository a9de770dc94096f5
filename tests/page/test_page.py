"""The HTML page: what is in it, that it is well formed and harmless, and that it works in a browser."""

from __future__ import annotations

import importlib.util
import re
import xml.etree.ElementTree as ElementTree
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from typer.testing import CliRunner

import fusec
from fusec.cli.main import app
from fusec.page.gather import gather_file
from fusec.page.write import page
from fusec.runtime import artifact

SOURCE = """
import numpy as np


def attend(q, k, v):
    scores = q @ k.swapaxes(-1, -2)
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.sort(e / e.sum(axis=-1, keepdims=True) @ v, axis=-1)
"""
VOID = {"input", "meta", "br"}


class _Nesting(HTMLParser):
    """Fails where a tag is closed that is not the last one opened; collects what elements there are."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_compiled_function_may_be_measured(tmp_path: Path) -> None:
    compiled = fusec.compile(lambda x: np.sin(x), np.ones((4, 8), np.float32))
    compiled.write_report(tmp_path / "f.html", measure=True)
    assert ", measured " in (tmp_path / "f.html").read_text()
    compiled.write_report(tmp_path / "f.html")
    assert ", measured " not in (tmp_path / "f.html").read_text()


def test_a_folder_of_source_that_is_none(tmp_path: Path) -> None:
    fusec.compile(lambda x: np.sin(x), np.ones(4, np.float32)).save(tmp_path / "f.fusec")
    result = CliRunner().invoke(
        app,
        ["inspect", str(tmp_path / "f.fusec"), "--html", str(tmp_path / "f.html"), "--source", str(tmp_path / "no")],
    )
    assert result.exit_code == 1
    assert "there is no folder" in result.stderr


def module_at(folder: Path) -> ModuleType:
    path = folder / "attending.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("attending", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    x = np.ones((2, 16, 32), np.float32)
    compiled = fusec.compile(module_at(folder).attend, x, x, x)
    compiled.write_report(folder / "python.html")
    compiled.save(folder / "f.fusec")
    result = CliRunner().invoke(
        app, ["inspect", str(folder / "f.fusec"), "--html", str(folder / "shell.html"), "--source", str(folder)]
    )
    assert result.exit_code == 0, result.output
    assert "bytes" in result.output
    return folder


@pytest.mark.parametrize("name", ["python.html", "shell.html"])
def test_contents(folder: Path, name: str) -> None:
    text = (folder / name).read_text()
    parser = _Nesting()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    pictures = re.findall(r"<svg.*?</svg>", text, re.S)
    assert len(pictures) == 3
    before, after, plot = (ElementTree.fromstring(picture) for picture in pictures)
    boxes = "{http://www.w3.org/2000/svg}g"
    assert len(before.findall(boxes)) > len(after.findall(boxes)) > 0
    assert any("attention kernel" in "".join(g.itertext()) for g in after.findall(boxes))
    assert plot.findall("{http://www.w3.org/2000/svg}polyline")
    shown = unescape(text)
    assert "scores = q @ k.swapaxes(-1, -2)" in shown  # the user's line
    assert "@T.prim_func" in shown  # the kernel's source
    assert "numpy.sort" in shown
    assert "<ins>+" in text
    assert ": no change</p>" in text


def test_nothing_is_loaded(folder: Path) -> None:
    text = (folder / "shell.html").read_text()
    parser = _Nesting()
    parser.feed(text)
    for _, attributes in parser.seen:
        assert not {"src", "action"} & attributes.keys()
        assert attributes.get("href", "#").startswith("#")
    assert "Content-Security-Policy" in text


def test_without_the_source_no_file_is_opened(folder: Path) -> None:
    assert "scores = q @ k.swapaxes" not in page(gather_file(folder / "f.fusec"))


def test_a_file_puts_no_elements_into_the_page(folder: Path, tmp_path: Path) -> None:
    contents = artifact.read(folder / "f.fusec")
    members = {name: contents.read(name) for name in contents.sizes if name != "manifest.json"}
    evil = "<script>alert(1)</script>\x1b"
    members["stages/00_capture.ir"] = evil.encode()
    members["program.json"] = members["program.json"].replace(b"attending.py", b"<b onclick=x>&")
    manifest = {k: v for k, v in contents.manifest.items() if k not in ("members", "format")}
    artifact.write(tmp_path / "x.fusec", {**manifest, "name": evil}, members)
    text = page(gather_file(tmp_path / "x.fusec"))
    assert text.count("<script>") == 1
    assert "<b onclick" not in text
    assert "\x1b" not in text
    assert "No picture: line 1" in text


def test_ranges_have_a_part_each(tmp_path: Path) -> None:
    def wave(x: np.ndarray) -> np.ndarray:
        return np.tanh(x)

    compiled = fusec.compile(wave, fusec.TensorSpec(("B", 8), "float32"), dims={"B": (1, 9)})
    compiled.write_report(tmp_path / "r.html")
    heads = re.findall(r"<h2>for B from (\d) to (\d)</h2>", (tmp_path / "r.html").read_text())
    assert [(int(a), int(b)) for a, b in heads] == [v.ranges["B"] for v in compiled.ranged]
    assert heads[0][0] == "1"
    assert heads[-1][1] == "9"


def test_an_unwritable_page(folder: Path) -> None:
    result = CliRunner().invoke(app, ["inspect", str(folder / "f.fusec"), "--html", str(folder / "no" / "x.html")])
    assert result.exit_code == 1
    assert "error: can't write" in result.output
