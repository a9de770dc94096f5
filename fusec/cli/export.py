# SPDX-License-Identifier: Apache-2.0
"""``--onnx`` and ``--model-explorer`` of ``fusec inspect`` and ``fusec opt``."""

from __future__ import annotations

from pathlib import Path

from fusec.cli.words import counted
from fusec.errors import ArtifactError, FusecError, ParseError, TypeRuleError
from fusec.export.explorer import write_explorer
from fusec.export.onnx import write_onnx
from fusec.ir.graph import Graph
from fusec.ir.parse import parse
from fusec.page.gather import Gathered, Part, gather_file
from fusec.runtime.program import Program

STAGE = "fuse"


def export_file(
    file: Path, onnx: Path | None, explorer: Path | None, stage: str = STAGE, piece: int = 0
) -> tuple[str, ...]:
    """Writes the graphs of a compiled file; what was written. Nothing in the file is run.

    onnx: gets the graph of one piece after the pass ``stage``. explorer: gets each piece's graph before and after
    fusion. ArtifactError for a damaged file or an unknown pass.
    """
    gathered = gather_file(file)
    said = []
    if onnx is not None:
        if not 0 <= piece < len(gathered.parts):
            count = counted(len(gathered.parts), "piece")
            raise ArtifactError(f"{file} has {count}, the first is 0; there is no {piece}")
        part = gathered.parts[piece]
        write_onnx(_graph(file, part, stage), onnx, part.program if stage == STAGE else None)
        of = f", piece {piece} of {len(gathered.parts)}: {part.ranges}" if len(gathered.parts) > 1 else ""
        said.append(_written(onnx, f"{gathered.name} after {stage}{of}"))
    if explorer is not None:
        write_explorer(gathered.name, _graphs(file, gathered), explorer)
        said.append(_written(explorer, f"{gathered.name} before and after fusion"))
    return tuple(said)


def export_graph(graph: Graph, onnx: Path | None, explorer: Path | None) -> None:
    """Writes one graph."""
    if onnx is not None:
        write_onnx(graph, onnx)
    if explorer is not None:
        write_explorer(graph.name, [(graph.name, graph, None)], explorer)


def _graphs(file: Path, gathered: Gathered) -> list[tuple[str, Graph, Program | None]]:
    found: list[tuple[str, Graph, Program | None]] = []
    for part in gathered.parts:
        served = f" for {part.ranges}" if part.ranges else ""
        found.append((f"before fusion{served}", _graph(file, part, "capture"), None))
        found.append((f"after fusion{served}", _graph(file, part, STAGE), part.program))
    return found


def _graph(file: Path, part: Part, stage: str) -> Graph:
    graphs = [name for name in part.stages if name not in ("schedule", "tile")]
    if stage not in graphs:
        raise FusecError(f"{file} has no stage {stage!r}; stages: {', '.join(graphs)}")
    try:
        return parse(part.stages[stage])
    except (ParseError, TypeRuleError) as error:
        raise ArtifactError(f"{file}: {stage}: {error}") from None


def _written(path: Path, what: str) -> str:
    return f"{path}: {what}, {path.stat().st_size:,} bytes"
