"""The wheel holds every package: setuptools is told each one, because passes/ and codegen/ are mapped."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_every_package_is_listed() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {
        ".".join(("fusec", *folder.parts) if top != "fusec" else folder.parts)
        for top in ("fusec", "passes", "codegen")
        for folder in (path.parent.relative_to(ROOT) for path in (ROOT / top).rglob("__init__.py"))
    }
    assert set(listed) == found


def test_constraints_pin_every_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["examples"], *extras["dev"]]
    names = {name.split(">")[0].split("=")[0].split("[")[0].lower().replace("_", "-") for name in wanted} - {"fusec"}
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in lines if "==" in line}
    assert names <= pinned
