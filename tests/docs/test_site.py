"""The docs site builds without a warning, and has what it promises."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fusec

pytest.importorskip("material")
pytest.importorskip("mkdocstrings")

ROOT = Path(__file__).resolve().parents[2]


def test_the_site(tmp_path: Path) -> None:
    """One test, since it is built once for all of them."""
    site = built(tmp_path)
    check_every_public_name_is_in_the_reference(site)
    check_every_page_of_the_repository_is_there(site)
    check_every_benchmark_table_is_there(site)
    check_links_between_folders_of_the_repository_hold_on_the_site(site)
    check_lists_are_lists(site)
    check_nothing_is_fetched_from_elsewhere(site)


def built(folder: Path) -> Path:
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not done.stderr.strip(), done.stderr
    return folder


def check_every_public_name_is_in_the_reference(site: Path) -> None:
    page = (site / "reference/api/index.html").read_text()
    documented = set(re.findall(r'<h3 id="fusec\.(?:api\.)?(\w+)"', page))
    assert set(fusec.__all__) <= documented


def check_every_page_of_the_repository_is_there(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix("")
        folder = name.parent if name.name in ("index", "README") else name
        assert (site / folder / "index.html").exists(), page


def check_every_benchmark_table_is_there(site: Path) -> None:
    tables = list((ROOT / "benchmarks/results").glob("*.md"))
    assert tables
    for table in tables:
        assert "<table>" in (site / "benchmarks" / table.stem / "index.html").read_text()


def check_links_between_folders_of_the_repository_hold_on_the_site(site: Path) -> None:
    assert 'href="guide/tuning/#reading-explain"' in (site / "index.html").read_text()
    assert 'href="../../decisions/0026-weights-where-they-lie/"' in (site / "benchmarks/cpu/index.html").read_text()
    assert 'href="../../benchmarks/opdb/"' in (site / "guide/torch-compile/index.html").read_text()
    assert (site / "fusion.svg").exists()


def check_lists_are_lists(site: Path) -> None:
    """Python-Markdown, unlike GitHub, wants an empty line before a list."""
    for page in site.rglob("index.html"):
        assert not re.findall(r"^- .*", re.sub(r"<pre>.*?</pre>", "", page.read_text(), flags=re.DOTALL), re.M), page


def check_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    page = (site / "index.html").read_text()
    assert not re.findall(r'<(?:script|link)[^>]*(?:src|href)="https?://[^"]*"', page)
