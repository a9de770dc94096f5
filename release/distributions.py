"""Builds what a release publishes into ``dist/``: ``python release/distributions.py [FOLDER]``.

``fusec-runtime`` loads and runs compiled files, and needs NumPy alone. ``fusec`` is the compiler: it requires that
runtime, of the same version, and the packages that compile; it brings the command. Both hold parts of the package
``fusec``, and no file is in both, so that one can be installed or removed beside the other. The source distribution is
the repository, with tests and docs; what is built of it is the whole package in one.
See ``docs/decisions/0039-two-wheels.md``.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

RUNTIME = ["numpy>=2.1"]
"""What running a compiled file needs."""

RUNTIME_EXTRAS = {"half": ["ml_dtypes>=0.5"], "torch": ["torch>=2.9"], "cupy": ["cupy-cuda13x>=13.6"]}
"""Arrays of bfloat16 and float8 in NumPy; functions of PyTorch and CuPy."""

LOADING = (
    "fusec",
    "fusec.loading",
    "fusec.notices",
    "fusec.codegen.gpu",
    "fusec.codegen.tvm.module",
)
"""The modules that a program with compiled files imports. The runtime is these and what they import."""

RUNTIME_DATA = ("py.typed", "runtime/launch.c", "runtime/driver.h")
"""Files of the package that the runtime reads, and that are no modules."""

_SHARED = ("license", "license-files", "requires-python", "authors", "keywords", "classifiers")
_NOT_RELEASED = ("dev", "docs", "bench", "campaigns", "notebooks")


def main(folder: Path) -> list[Path]:
    """Builds both wheels and the source distribution, and gives their paths. FUSEC_REPOSITORY is the address that their
    metadata name."""
    stage = ROOT / "build" / "release"
    shutil.rmtree(stage, ignore_errors=True)
    made = [stage_runtime(stage / "runtime"), stage_compiler(stage / "fusec")]
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    return [*(_wheel(source, folder) for source in made), _sdist(stage_source(stage / "source"), folder)]


def stage_source(folder: Path) -> Path:
    """The repository's files, as MANIFEST.in lists them; its metadata name the address, too."""
    with tarfile.open(_sdist(ROOT, folder)) as archive:
        archive.extractall(folder, filter="data")
    made = folder / f"fusec-{version()}"
    lines = ["", "[project.urls]", *(f"{json.dumps(name)} = {json.dumps(url)}" for name, url in _urls().items()), ""]
    with (made / "pyproject.toml").open("a") as file:
        file.write("\n".join(lines))
    (made / "README.md").write_text(_readme())
    return made


def _sdist(source: Path, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    program = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", program, str(folder)], cwd=source, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return folder / f"fusec-{version()}.tar.gz"


def stage_runtime(folder: Path) -> Path:
    """The sources of ``fusec-runtime``."""
    _copy(folder)
    _keep(folder / "fusec", runtime_files(folder / "fusec"))
    summary = "Loads and runs functions that fusec compiled, with NumPy alone"
    project = {"name": "fusec-runtime", "description": summary, "dependencies": RUNTIME}
    return _write(folder, project, {"project.optional-dependencies": RUNTIME_EXTRAS})


def stage_compiler(folder: Path) -> Path:
    """The sources of ``fusec``: the rest of the package, what it requires, and its commands."""
    _copy(folder)
    every = {path for path in (folder / "fusec").rglob("*") if path.is_file()}
    _keep(folder / "fusec", every - runtime_files(folder / "fusec"))
    given = _root()["project"]
    extras = {k: v for k, v in given["optional-dependencies"].items() if k not in _NOT_RELEASED}
    needed = [f"fusec-runtime=={version()}", *(d for d in given["dependencies"] if d not in RUNTIME)]
    project = {"name": "fusec", "description": given["description"], "dependencies": needed}
    tables = {
        "project.optional-dependencies": extras,
        "project.scripts": given["scripts"],
        **{f"project.entry-points.{group}": points for group, points in given["entry-points"].items()},
    }
    return _write(folder, project, tables)


def runtime_files(package: Path) -> set[Path]:
    """The runtime's part of a package: what ``LOADING`` imports, however late, but where the compiler is needed."""
    found: dict[str, Path] = {}
    ahead = list(LOADING)
    while ahead:
        name = ahead.pop()
        path = _source_of(package, name)
        if name not in found and path is not None:
            found[name] = path
            ahead += [name.rpartition(".")[0], *_imports(ast.parse(path.read_text()))]
    return {*found.values(), *(package / name for name in RUNTIME_DATA)}


def _source_of(package: Path, name: str) -> Path | None:
    """The file of a module; None for what is none of the package."""
    stem = package.parent.joinpath(*name.split("."))
    found = (path for path in (stem / "__init__.py", stem.with_suffix(".py")) if path.is_file())
    return next(found, None) if name.partition(".")[0] == "fusec" else None


def _imports(node: ast.AST) -> Iterator[str]:
    """Names that may be modules, without those imported for types alone or inside ``with needing_compiler(...)``."""
    match node:
        case ast.If(test=ast.Name("TYPE_CHECKING")):
            return
        case ast.With(items=[ast.withitem(context_expr=ast.Call(func=ast.Name("needing_compiler")))]):
            return
        case ast.Import(names):
            yield from (alias.name for alias in names)
        case ast.ImportFrom(module=str(module), names=names):
            yield from (module, *(f"{module}.{alias.name}" for alias in names))
    for inner in ast.iter_child_nodes(node):
        yield from _imports(inner)


def _keep(package: Path, kept: set[Path]) -> None:
    for path in package.rglob("*"):
        if path.is_file() and path not in kept:
            path.unlink()


def _copy(folder: Path) -> None:
    """The package where it is imported: ``passes`` and ``codegen`` stand beside it in the repository."""
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(ROOT / "fusec", folder / "fusec", ignore=ignored)
    for name in ("passes", "codegen"):
        shutil.copytree(ROOT / name, folder / "fusec" / name, ignore=ignored)


def version() -> str:
    """``fusec.__version__``, read and not imported."""
    body = ast.parse((ROOT / "fusec" / "__init__.py").read_text()).body
    found = (n.value for n in body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__version__")
    return str(ast.literal_eval(next(found)))


def _root() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def _write(folder: Path, project: Mapping[str, Any], tables: Mapping[str, Mapping[str, Any]]) -> Path:
    given = _root()["project"]
    shared = {key: given[key] for key in _SHARED if key in given}
    head = {**project, "version": version(), "readme": "README.md", **shared}
    every = {
        "build-system": _root()["build-system"],
        "project": head,
        "project.urls": _urls(),
        **tables,
        "tool.setuptools.packages.find": {"include": ["fusec*"]},
        "tool.setuptools.package-data": {"*": ["py.typed", "*.cuh", "*.css", "*.js", "*.c", "*.h"]},
    }
    lines = []
    for name, table in every.items():
        lines += [f"[{name}]", *(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in table.items()), ""]
    (folder / "pyproject.toml").write_text("\n".join(lines))
    shutil.copy(ROOT / "LICENSE", folder / "LICENSE")
    (folder / "README.md").write_text(_readme())
    return folder


def _readme() -> str:
    """The README as a package index shows it: links to files of the repository lead there."""
    text, home = (ROOT / "README.md").read_text(), os.environ.get("FUSEC_REPOSITORY", "")
    if not home:
        return text
    text = re.sub(r"(!\[[^\]]*\]\()(?!https?:|#)", rf"\g<1>{home}/raw/main/", text)
    return re.sub(r"((?<!!)\[[^\]]*\]\()(?!https?:|#)", rf"\g<1>{home}/blob/main/", text)


def _urls() -> dict[str, str]:
    """The project's addresses. A fork that releases under its own name names itself."""
    home = os.environ.get("FUSEC_REPOSITORY", "")
    if not home:
        return {}
    owner, name = home.split("/")[-2:]
    return {
        "Documentation": f"https://{owner.lower()}.github.io/{name}/",
        "Source": home,
        "Changelog": f"{home}/blob/main/CHANGELOG.md",
        "Issues": f"{home}/issues",
    }


def _wheel(source: Path, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    before = set(folder.glob("*.whl"))
    subprocess.run([*command, "--wheel-dir", str(folder), str(source)], check=True)
    stem = "fusec_runtime" if source.name == "runtime" else "fusec"
    made = folder / f"{stem}-{version()}-py3-none-any.whl"
    assert made in {*before, *folder.glob("*.whl")}, made
    return made


if __name__ == "__main__":
    for built in main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist"):
        print(built)
