"""From a graph to the texts that are compared: its plan, and each kernel's source."""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import fusec
from fusec.runtime.serial import program_to_json

from .cases import Golden, cases

PLAN = "plan"
"""The name of a text that is no source: the graph of kernels, the program's steps, tile IR and schedules."""

_DIGITS = 6
"""Of a figure in a plan, so that another C library's last bit makes no difference."""


def texts_of(text: str, target: str) -> dict[str, str]:
    """The texts of a graph for a target, by name. What can't be compiled for it has the error as its plan."""
    try:
        low = fusec.lower(fusec.parse(text), target)
        kernels = {f"{number:02d}_{kernel.name}": kernel for number, kernel in enumerate(low.kernels)}
        program = json.dumps(_rounded(program_to_json(low.program)), indent=1, sort_keys=True)
        plan = [low.stages["fuse"], program, *(kernel.ir for kernel in kernels.values())]
        return {PLAN: "\n".join(plan), **{name: kernel.source for name, kernel in kernels.items()}}
    except fusec.errors.FusecError as error:
        return {PLAN: f"{type(error).__name__}: {error}"}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    return [_rounded(part) for part in value] if isinstance(value, list | tuple) else value


def hashes_of(texts: Mapping[str, str]) -> str:
    """``PLAN-SOURCES``, eight digits each; one without sources has none."""
    sources = "".join(f"{name}\n{text}\n" for name, text in texts.items() if name != PLAN)
    return f"{_short(texts[PLAN])}-{_short(sources)}" if sources else _short(texts[PLAN])


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def generated(only: str, targets: tuple[str, ...] = ()) -> Iterator[tuple[Golden, str, dict[str, str]]]:
    """Each case whose name the pattern is found in, a target, and the texts. Bugs are raised after the rest."""
    failed = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in cases():
            if re.search(only, case.name):
                text = case.text()
                for target in case.targets:
                    if targets and target not in targets:
                        continue
                    try:
                        texts = texts_of(text, target)
                    except Exception as error:
                        error.add_note(f"{case.name} for {target}")
                        failed.append(error)
                    else:
                        yield case, target, texts
    if failed:
        raise ExceptionGroup("the compiler failed", failed)


def folder_of(root: Path, case: str, target: str) -> Path:
    """Where the texts of a case lie."""
    return root / _path(case) / _path(target)


def _path(name: str) -> str:
    return re.sub(r"[^\w.+-]+", "_", name.replace("×", "x")).strip("_")


def write_texts(root: Path, case: str, target: str, texts: Mapping[str, str]) -> None:
    """One file a text."""
    folder = folder_of(root, case, target)
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text + "\n")
