# SPDX-License-Identifier: Apache-2.0
"""Text about a compiled file, from its manifest and texts alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fusec.calibrated import QuantizationReport
from fusec.cli.words import counted, printable
from fusec.digest import tell_program
from fusec.errors import ArtifactError
from fusec.measuring import Times
from fusec.runtime import artifact
from fusec.runtime.serial import Symbols, dims_from_json, program_from_json, symbols_from_json, type_from_json
from fusec.target.gpu import is_gpu


def describe_file(
    path: Path, *, graph: bool = False, kernels: bool = False, times: Times | None = None, detail: bool = False
) -> str:
    """What a file holds. ArtifactError for one that is damaged; its machine code is never loaded."""
    contents = artifact.read(path).verify()
    known = times.pieces if times is not None else ()
    try:
        lines = _head(contents)
        if times is not None:
            lines.append(times.reason or "measured here, on random arguments")
        for number, piece in enumerate(contents.manifest["pieces"]):
            folder = f"pieces/{number}/" if number else ""
            program = program_from_json(json.loads(contents.read(folder + artifact.PROGRAM)))
            ranges = ", ".join(f"{name} from {low} to {high}" for name, (low, high) in piece["ranges"].items())
            lines += ["", *([f"for {ranges}"] if ranges else [])]
            measured = known[number] if known else None
            lines.append(tell_program(program, [str(note) for note in piece["notes"]], None, measured, detail=detail))
        noise = QuantizationReport.from_json(contents.manifest.get("quantization"))
        lines += ["", str(noise)] if noise is not None else []
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise ArtifactError(f"{path}: the manifest is damaged: {error}") from None
    if graph:
        lines += [contents.text(artifact.GRAPH)]
    if kernels:
        lines += [contents.text(name) for name in contents.sizes if name.endswith(".tile")]
    return printable("\n".join(lines).rstrip() + "\n")


def _head(contents: artifact.Contents) -> list[str]:
    manifest = contents.manifest
    needs = contents.requirements
    missing = needs.missing()
    packages = {"torch": "PyTorch", "numpy": "NumPy", "cupy": "CuPy"}[str(manifest["library"])]
    here = f"does not run here: {missing}" if missing else "runs here"
    drives = "the GPU's driver" if is_gpu(str(manifest["target"])) else "OpenMP (libgomp) for more than one thread"
    lines = [
        f"{manifest['name']}: a {manifest['library']} function, compiled by fusec {manifest['fusec']}",
        f"format {manifest['format']}, target {manifest['target']}; {here}",
        f"needs {needs.text}",
        f"needs fusec-runtime and {packages}; {drives}",
    ]
    symbols = symbols_from_json(manifest["dims"])
    lines += [f"{name} from {low} to {high}" for name, (low, high) in manifest["dims"].items()]
    lines += [f"input {k}: {_array(entry, symbols)}" for k, entry in enumerate(manifest["inputs"])]
    lines += [f"output {k}: {_array(entry, symbols)}{_aliasing(entry)}" for k, entry in enumerate(manifest["outputs"])]
    lines += [
        f"weight {name}: {type_from_json(entry['type'])}, given at load" for name, entry in manifest["weights"].items()
    ]
    lines.append(f"sha256 of {counted(len(contents.sizes) - 1, 'member')} checked:")
    lines += [f"    {size:>12,}  {name}" for name, size in contents.sizes.items() if "/" not in name]
    return lines


def _array(entry: Any, symbols: Symbols) -> str:
    strides = ", ".join(map(str, dims_from_json(entry["strides"], symbols)))
    return f"{type_from_json(entry['type'], symbols)} strides ({strides})"


def _aliasing(entry: Any) -> str:
    if entry["changes"] is not None:
        return f", written into input {int(entry['changes'])}"
    return f", in the memory of input {int(entry['aliases'])}" if entry["aliases"] is not None else ""
