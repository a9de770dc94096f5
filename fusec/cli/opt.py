# SPDX-License-Identifier: Apache-2.0
"""``fusec opt``: graph passes on IR text."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from fusec.errors import FusecError, ParseError
from fusec.ir.graph import Graph
from fusec.ir.parse import parse
from fusec.ir.verify import verify
from fusec.os_errors import told
from fusec.passes.pipeline import PASS_NAMES, graph_passes


def optimise_file(
    path: Path, passes: Sequence[str] | None, target: str, *, print_after_all: bool = False
) -> tuple[str, Graph]:
    """The IR of a file (``-``: of the standard input) after graph passes (all, where ``passes`` is None), each result
    verified: text, and the graph.

    With ``print_after_all`` the IR after each pass stands below a comment with its name, the text as read first.
    FusecError for a pass that is none, or a text that is no graph: its line and column are in the message.
    """
    chosen = PASS_NAMES if passes is None else tuple(passes)
    unknown = [name for name in chosen if name not in PASS_NAMES]
    if unknown:
        raise FusecError(f"there is no pass {', '.join(map(repr, unknown))}; passes: {', '.join(PASS_NAMES)}")
    try:
        graph = parse(sys.stdin.read() if str(path) == "-" else path.read_text())
    except OSError as error:
        raise FusecError(f"{path} can't be read: {told(error, path)}") from None
    except UnicodeDecodeError:
        raise FusecError(f"{path} can't be read: it is no text; see fusec inspect --ir") from None
    except ParseError as error:
        raise FusecError(f"{path}: {error}") from None
    verify(graph)
    table = graph_passes(target)
    shown = [f"// {path.name}\n{graph}"]
    for name in chosen:
        graph = table[name](graph)
        verify(graph, name)
        shown.append(f"// after {name}\n{graph}")
    return "\n".join(part.rstrip() + "\n" for part in (shown if print_after_all else [str(graph)])), graph
