# SPDX-License-Identifier: Apache-2.0
"""What a page shows, from a compiled function or from its file."""

from __future__ import annotations

import json
import linecache
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fusec.calibrated import QuantizationReport
from fusec.compiled import CompiledFunction
from fusec.errors import ArtifactError
from fusec.location import Location
from fusec.measuring import Spread, Times, measure_calls, measure_steps
from fusec.runtime import artifact
from fusec.runtime.program import Program
from fusec.runtime.serial import program_from_json


@dataclass(frozen=True)
class KernelText:
    """A kernel's name, its tile IR, and its source with the ending that names the language; empty where not kept."""

    name: str
    tile: str
    language: str
    source: str


@dataclass(frozen=True)
class Part:
    """A program: the range that it serves, IR by stage in order, its kernels' texts, and notes.

    measured: seconds of each step where it was run, else None. whole: of calls.
    """

    ranges: str
    program: Program
    stages: Mapping[str, str]
    kernels: Sequence[KernelText]
    notes: Sequence[str]
    measured: Sequence[float] | None = None
    whole: Spread | None = None


@dataclass(frozen=True)
class Gathered:
    """A compiled function's name, what is said of it as a whole, and its programs.

    local: whether the paths of its source lines are this machine's. folder: where the source lies if they are not.
    quantization: the noise by layer of a model that was calibrated.
    """

    name: str
    facts: Sequence[str]
    parts: Sequence[Part]
    local: bool
    folder: Path | None = None
    quantization: QuantizationReport | None = None

    def line(self, location: Location) -> str:
        """The user's line, or nothing where its file is not here."""
        if self.folder is None and not self.local:
            return ""
        file = location.file if self.folder is None else str(self.folder / Path(location.file).name)
        return linecache.getline(file, location.line).rstrip()


def gather_file(path: Path, source: Path | None = None, times: Times | None = None) -> Gathered:
    """From a file that ``Compiled.save`` wrote; nothing in it is run. ``source`` is a folder of the user's files.

    times: what running it here took, or why it could not be.

    ArtifactError for a damaged file.
    """
    contents = artifact.read(path).verify()
    if source is not None and not source.is_dir():
        raise ArtifactError(f"there is no folder {source} to read the source lines from")
    try:
        manifest = contents.manifest
        facts = [
            f"{manifest['library']} function, compiled by fusec {manifest['fusec']} for {manifest['target']}",
            f"needs {contents.requirements.text}",
            f"{path.name}, {path.stat().st_size:,} bytes",
        ]
        if times is not None:
            facts.append(times.reason or "measured here, on random arguments")
        parts = []
        for number, piece in enumerate(manifest["pieces"]):
            folder = artifact.piece_folder(number)
            program = program_from_json(json.loads(contents.read(folder + artifact.PROGRAM)))
            members = [n for n in contents.sizes if n.startswith((f"{folder}stages/", f"{folder}kernels/"))]
            texts = {name.removeprefix(folder): contents.text(name) for name in members}
            part = _part(program, texts, piece["ranges"], piece["notes"])
            if times is not None and times.pieces:
                part = replace(part, measured=times.pieces[number], whole=times.wholes[number])
            parts.append(part)
        noise = QuantizationReport.from_json(manifest.get("quantization"))
        return Gathered(str(manifest["name"]), facts, parts, False, source, noise)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise ArtifactError(f"{path}: the manifest is damaged: {error}") from None


def gather_compiled(compiled: CompiledFunction, measure: bool = False) -> Gathered:
    """From a compiled function, which is run if ``measure``. ArtifactError where a named dimension has no range."""
    from fusec.saving import texts_of  # needs the passes, which reading a file does not

    parts = []
    measured = measure_steps(compiled) if measure else [None] * len(compiled.complete)
    wholes = measure_calls(compiled) if measure else [None] * len(compiled.complete)
    for variant, seconds, whole in zip(compiled.complete, measured, wholes, strict=True):
        program = variant.executable.program
        texts = {name: data.decode() for name, data in texts_of(variant, program, variant.executable.digests).items()}
        parts.append(replace(_part(program, texts, variant.ranges, variant.notes), measured=seconds, whole=whole))
    specs = ", ".join(map(str, compiled.specs))
    facts = [f"{compiled.library} function of ({specs}), compiled for {parts[0].program.target}"]
    return Gathered(compiled.name, facts, parts, True, quantization=compiled.quantization)


def _part(
    program: Program, texts: Mapping[str, str], ranges: Mapping[str, tuple[int, int]], notes: Sequence[object]
) -> Part:
    stages, tiles, sources = {}, dict[str, str](), dict[str, tuple[str, str]]()
    for name in sorted(texts):
        kind, _, rest = name.partition("/")
        stem, _, ending = rest.partition(".")
        if kind == "stages":
            stages[stem.partition("_")[2]] = texts[name]
        elif ending == "tile":
            tiles[stem] = texts[name]
        else:
            sources[stem] = (ending, texts[name])
    kernels = [KernelText(n, tiles.get(n, ""), *sources.get(n, ("", ""))) for n in dict.fromkeys([*tiles, *sources])]
    served = ", ".join(f"{name} from {int(low)} to {int(high)}" for name, (low, high) in ranges.items())
    return Part(served, program, stages, kernels, [str(note) for note in notes])
