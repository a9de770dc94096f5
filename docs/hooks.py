"""The site's pages from outside docs/: the README, CONTRIBUTING, the benchmark tables; and the links between all.

A hook of MkDocs (https://www.mkdocs.org/user-guide/configuration/#hooks), named in mkdocs.yml.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
RESULTS = "benchmarks/results"
OUTSIDE = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changes.md"}
"""Files of the repository, and the pages that they are."""

_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\((?!https?:)([^)#\s]*)(#[^)\s]*)?\)")
_FENCE = re.compile(r"^(```.*?^```|~~~.*?^~~~)", re.DOTALL | re.MULTILINE)
_ROLE = re.compile(r":(?:func|class|mod|data|meth):<code>~?([^<]*)</code>")


def tables() -> list[Path]:
    """The benchmark tables, by name."""
    return sorted((ROOT / RESULTS).glob("*.md"))


def title(page: Path) -> str:
    """The first heading, without the word that all tables share."""
    return page.read_text().splitlines()[0].lstrip("# ").replace("`", "")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Adds decisions and tables to the navigation."""
    assert config.nav is not None
    for entry in config.nav:
        if "Decisions" in entry:
            pages = sorted((ROOT / "docs/decisions").glob("0*.md"))
            entry["Decisions"] += [{f"{int(p.name[:4])}. {title(p)}": f"decisions/{p.name}"} for p in pages]
        if "Benchmarks" in entry:
            entry["Benchmarks"] += [{title(p): f"benchmarks/{p.name}"} for p in tables()]
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Adds the pages from outside docs/."""
    for path, page in OUTSIDE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / path)))
    for table in tables():
        files.append(File.generated(config, f"benchmarks/{table.name}", abs_src_path=str(table)))
    listed = "\n".join(f"- [{title(table)}]({table.name})" for table in tables())
    text = f"# Benchmarks\n\nTables of what was measured, against what, and when.\n\n{listed}\n"
    files.append(File.generated(config, "benchmarks/index.md", content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Turns the repository's relative links into the site's; of files that are no page only the text stays."""
    here = _in_repository(page.file.src_uri)

    def linked(match: re.Match[str]) -> str:
        mark, text, target, anchor = match[1], match[2], match[3], match[4] or ""
        if not target:
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
        found = _in_site(path)
        if files.get_file_from_path(found) is None:
            return text if (ROOT / path).exists() else match[0]
        return f"{mark}[{text}]({posixpath.relpath(found, posixpath.dirname(page.file.src_uri) or '.')}{anchor})"

    parts = _FENCE.split(markdown)
    return "".join(part if i % 2 else _LINK.sub(linked, part) for i, part in enumerate(parts))


def on_page_content(html: str, **_: object) -> str:
    """Docstrings name functions by Sphinx's roles: on the site they are code."""
    return _ROLE.sub(r"<code>\1</code>", html)


def _in_repository(page: str) -> str:
    """Where a page of the site is in the repository."""
    for path, outside in OUTSIDE.items():
        if page == outside:
            return path
    return page.replace("benchmarks/", f"{RESULTS}/", 1) if page.startswith("benchmarks/") else f"docs/{page}"


def _in_site(path: str) -> str:
    """Where a file of the repository is in the site, if it is there."""
    if path.startswith(f"{RESULTS}/"):
        return path.replace(f"{RESULTS}/", "benchmarks/", 1)
    return OUTSIDE.get(path, path.removeprefix("docs/"))
