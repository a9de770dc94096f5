"""Tests lie where their sources do, under their names, and import no private name of fusec's."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
BESIDE = ("passes", "codegen", "docs", "examples", "benchmarks")
"""Folders of sources that stand beside fusec/."""

WITHOUT_SOURCE = {
    "codegen/test_spellings.py": "each backend's table, against the table of ops",
    "docs/test_contributing.py": "CONTRIBUTING.md",
    "docs/test_site.py": "mkdocs.yml and the pages",
    "examples/test_deploying.py": "the commands of docs/guide/deployment.md",
    "examples/test_readme.py": "README.md and the guide",
    "ir/ops/test_reference.py": "the references of every file of fusec/ir/ops, against PyTorch",
    "ir/ops/test_rules.py": "the type rules of every file of fusec/ir/ops",
    "test_import.py": "fusec/__init__.py",
    "test_layout.py": "the tests",
    "test_packaging.py": "pyproject.toml and release/distributions.py",
    "test_workflows.py": ".github/workflows",
}
"""Tests of what is no one source, and what that is."""

ON_A_CARD = "gpu"
"""The folder of tests that need a GPU, by subject."""


def sources(folder: Path) -> Iterator[Path]:
    """Where the sources of a folder of tests may lie; tests of what helps tests lie with it."""
    yield ROOT / folder if folder.parts and folder.parts[0] in BESIDE else ROOT / "fusec" / folder
    yield TESTS / folder


def has_source(test: Path) -> bool:
    """Whether there is what a test of this path tests: ``a/test_b.py`` tests ``a/b.py``, or all of ``a/b`` or of a
    folder ``b``; ``a/test_b_subject.py`` is another file of tests of ``a/b.py``."""
    words = test.stem.removeprefix("test_").split("_")
    names = ["_".join(words[:n]) for n in range(1, len(words) + 1)]
    for folder in sources(test.parent):
        if any((folder / f"{name}.py").exists() for name in names):
            return True
        if (folder / names[-1]).is_dir() or (folder.name == names[-1] and folder.is_dir()):
            return True
    return False


def _test_files() -> list[Path]:
    return sorted(path.relative_to(TESTS) for path in TESTS.rglob("test_*.py"))


def test_each_has_a_source_or_a_reason() -> None:
    lonely = {str(test) for test in _test_files() if test.parts[0] != ON_A_CARD and not has_source(test)}
    assert lonely == set(WITHOUT_SOURCE)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("passes/test_cse.py", True),
        ("passes/test_csf.py", False),
        ("passes/cse/test_cse.py", False),
        ("test_api_numpy.py", True),
        ("test_numpy_api.py", False),
        ("test_cse.py", False),
        ("test_oracle.py", True),
        ("golden/test_golden.py", True),
    ],
)
def test_what_has_a_source(path: str, found: bool) -> None:
    assert has_source(Path(path)) == found


def private_imports(source: str) -> Iterator[str]:
    """fusec's names with an underscore before them that a file imports."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "fusec":
            yield from (f"{node.module}.{a.name}" for a in node.names if _is_private(f"{node.module}.{a.name}"))
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.split(".")[0] == "fusec" and _is_private(a.name))


def _is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


def test_no_private_name_is_imported() -> None:
    found = {
        (str(path.relative_to(TESTS)), name)
        for path in TESTS.rglob("*.py")
        for name in private_imports(path.read_text())
    }
    assert not found


def test_what_is_private() -> None:
    text = "from fusec.a import _b, c, __version__\nimport fusec._d\nfrom torch._e import f\nimport fusec.g\n"
    assert list(private_imports(text)) == ["fusec.a._b", "fusec._d"]


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_one_librarys_capture_does_not_import_the_others(library: str) -> None:
    other = {"numpy": "torch", "torch": "numpy"}[library]
    for path in (ROOT / "fusec" / "frontend").glob(f"{library}*.py"):
        assert f"fusec.frontend.{other}" not in path.read_text(), path.name
