"""The file of hashes, and what differs: from it, or from the texts of another checkout."""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from .texts import folder_of

HASHES = Path(__file__).parent / "hashes.txt"
Hashes = Mapping[tuple[str, str], str]
_SEPARATOR = " | "


def write_hashes(path: Path, hashes: Hashes) -> None:
    """One line a case: its name, and for each target ``TARGET=PLAN-SOURCES``."""
    lines: dict[str, list[str]] = {}
    for (case, target), text in sorted(hashes.items()):
        lines.setdefault(case, []).append(f"{target}={text}")
    path.write_text("".join(f"{case}{_SEPARATOR}{' '.join(parts)}\n" for case, parts in lines.items()))


def read_hashes(path: Path) -> dict[tuple[str, str], str]:
    """By case and target; none where there is no such file."""
    found: dict[tuple[str, str], str] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        case, _, parts = line.rpartition(_SEPARATOR)
        for part in parts.split():
            target, _, text = part.partition("=")
            found[case, target] = text
    return found


def compared(known: Hashes, found: Hashes) -> list[str]:
    """A line for each case and target whose hashes differ, or that is in one of both alone."""
    lines = []
    for key in sorted(known.keys() | found.keys()):
        if key not in found:
            lines.append(f"gone: {' for '.join(key)}")
        elif key not in known:
            lines.append(f"new: {' for '.join(key)}")
        elif known[key] != found[key]:
            old, new = known[key].partition("-"), found[key].partition("-")
            what = [name for name, place in (("plan", 0), ("sources", 2)) if old[place] != new[place]]
            lines.append(f"{' and '.join(what)} changed: {' for '.join(key)}")
    return lines


_CHILD = """
import importlib.util, pathlib, sys
here, out, only, *targets = sys.argv[1:]
spec = importlib.util.spec_from_file_location("golden", here + "/__init__.py", submodule_search_locations=[here])
sys.modules["golden"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
from golden.texts import generated, write_texts
for case, target, texts in generated(only, tuple(targets)):
    write_texts(pathlib.Path(out), case.name, target, texts)
"""


def against(
    checkout: Path, texts: Path, keys: Iterable[tuple[str, str]], only: str, targets: Sequence[str], diff: bool
) -> list[str]:
    """What differs from the texts that another checkout's fusec generates for its own workloads, with this code."""
    root = checkout.resolve()
    out = texts.parent / f"{texts.name}-against"
    path = os.pathsep.join([str(root), str(root / "tests")])
    command = [sys.executable, "-c", _CHILD, str(Path(__file__).parent), str(out), only, *targets]
    subprocess.run(command, check=True, cwd=root, env={**os.environ, "PYTHONPATH": path})
    return [
        line for key in sorted(keys) for line in _differing(folder_of(out, *key), folder_of(texts, *key), key, diff)
    ]


def _differing(old: Path, new: Path, key: tuple[str, str], diff: bool) -> Iterator[str]:
    names = sorted({path.name for folder in (old, new) if folder.is_dir() for path in folder.iterdir()})
    for name in names:
        before, after = (_lines(folder / name) for folder in (old, new))
        if before == after:
            continue
        yield f"{' for '.join(key)}: {name.removesuffix('.txt')} changed"
        if diff:
            yield from difflib.unified_diff(before, after, str(old / name), str(new / name), lineterm="")


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
