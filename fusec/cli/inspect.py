"""Text about a compiled file, from its manifest and texts alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fusec.errors import ArtifactError
from fusec.report import explain_program
from fusec.runtime import artifact
from fusec.runtime.serial import program_from_json, type_from_json


def describe_file(path: Path, *, graph: bool = False, kernels: bool = False) -> str:
    """What a file holds. ArtifactError for one that is damaged; its machine code is never loaded."""
    contents = artifact.read(path)
    try:
        lines = _head(contents)
        program = program_from_json(json.loads(contents.read(artifact.PROGRAM)))
        lines += ["", explain_program(program, [str(note) for note in contents.manifest.get("notes", ())])]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ArtifactError(f"{path}: the manifest is damaged: {error}") from None
    if graph:
        lines += [contents.text(artifact.GRAPH)]
    if kernels:
        lines += [contents.text(name) for name in contents.sizes if name.endswith(".tile")]
    return _printable("\n".join(lines).rstrip() + "\n")


def _head(contents: artifact.Contents) -> list[str]:
    manifest = contents.manifest
    needs = contents.requirements
    missing = needs.missing()
    here = f"does not run here: {missing}" if missing else "runs here"
    lines = [
        f"{manifest['name']}: a {manifest['library']} function, compiled by fusec {manifest['fusec']}",
        f"format {manifest['format']}, target {manifest['target']}; {here}",
        f"needs {needs.text}",
    ]
    lines += [f"input {k}: {_array(entry)}" for k, entry in enumerate(manifest["inputs"])]
    lines += [f"output {k}: {_array(entry)}{_aliasing(entry)}" for k, entry in enumerate(manifest["outputs"])]
    lines.append(f"sha256 of {len(contents.sizes) - 1} members checked:")
    lines += [f"    {size:>12,}  {name}" for name, size in contents.sizes.items() if "/" not in name]
    return lines


def _array(entry: Any) -> str:
    strides = ", ".join(str(int(s)) for s in entry["strides"])
    return f"{type_from_json(entry['type'])} strides ({strides})"


def _aliasing(entry: Any) -> str:
    if entry["changes"] is not None:
        return f", written into input {int(entry['changes'])}"
    return f", in the memory of input {int(entry['aliases'])}" if entry["aliases"] is not None else ""


def _printable(text: str) -> str:
    """No control characters: a file can't drive the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)
