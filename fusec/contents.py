# SPDX-License-Identifier: Apache-2.0
"""What a compiled program is made from, for the keys of caches: a graph without lines of source, and versions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path

from fusec.ir.graph import Graph
from fusec.location import Location
from fusec.packages import installed

_FORMAT = 1


def without_locations(graph: Graph) -> tuple[Graph, list[Location]]:
    """The graph with each line of source replaced by its number, and the lines. A moved function stays the same."""
    numbers: dict[Location, int] = {}
    ops = []
    for op in graph.ops:
        if op.location is None:
            ops.append(op)
        else:
            number = numbers.setdefault(op.location, len(numbers))
            ops.append(replace(op, location=Location("source", number)))
    return graph.with_ops(ops), list(numbers)


@cache
def versions() -> tuple[str, ...]:
    """What else a compiled program depends on: the compiler's own source, TVM, Triton and NVRTC."""
    return str(_FORMAT), *map(installed, ("apache-tvm", "triton", "nvidia-cuda-nvrtc")), _source_digest()


def _source_digest() -> str:
    """A hash of fusec's own files, so that a changed compiler never takes an old entry."""
    digest = hashlib.sha256()
    for path in _source_files():
        digest.update(path.name.encode() + b"\0")
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _source_files() -> Iterable[Path]:
    names = ("fusec.passes", "fusec.codegen")
    roots = {Path(__file__).parent, *(Path(p) for name in names for p in import_module(name).__path__)}
    return sorted({path for root in roots for kind in ("*.py", "*.cuh") for path in root.rglob(kind)})
