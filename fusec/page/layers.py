# SPDX-License-Identifier: Apache-2.0
"""Which layer of a model each op belongs to, told by the names of its weights."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from fusec.ir.graph import Graph
from fusec.ir.nodes import Op, Value

Path = tuple[str, ...]


def layers_of(graph: Graph) -> dict[Op, str]:
    """The layer of each op that computes with a layer's weights or follows one that does; other ops are absent.

    Along each edge from op to op layers stay or go on, in the order of the dict's values: a layer with all that its
    ops read of earlier ones can be drawn as one box.
    """
    ports = zip(graph.inputs, graph.input_ports, strict=True)
    paths = {value: _module_of(port.path) for value, port in ports if port.role not in ("argument", "integer")}
    names = _levels(set(paths.values()))
    own = {value: frozenset({names[path]} if names[path] else ()) for value, path in paths.items()}
    ranks = _ranked(graph, own)
    found: dict[Op, int] = {}
    made: dict[Value, int] = {value: max((ranks[name] for name in read), default=-1) for value, read in own.items()}
    for op in graph.ops:
        found[op] = max((made.get(value, -1) for value in op.operands), default=-1)
        made |= dict.fromkeys(op.results, found[op])
    by_rank = {rank: name for name, rank in ranks.items()}
    ordered = sorted(found.items(), key=lambda item: item[1])
    return {op: by_rank[rank] for op, rank in ordered if rank >= 0}


def _ranked(graph: Graph, own: dict[Value, frozenset[str]]) -> dict[str, int]:
    """Each layer's number: in the order in which data meets their weights, or what was made of these alone."""
    weights = dict(own)
    ranks: dict[str, int] = {}
    data = {value for value in graph.inputs if value not in own}
    for op in graph.ops:
        read = frozenset[str]().union(*(weights.get(value, frozenset()) for value in op.operands))
        if data.isdisjoint(op.operands):
            weights |= dict.fromkeys(op.results, read)
            continue
        data.update(op.results)
        for name in sorted(read - ranks.keys()):
            ranks[name] = len(ranks)
    for name in sorted(frozenset[str]().union(*own.values()) - ranks.keys()):
        ranks[name] = len(ranks)
    return ranks


def _module_of(path: str) -> Path:
    """The names down to what holds a weight: ``self.layers.0.norm.weight`` and ``layers[0]["norm"]["weight"]``."""
    return tuple(re.findall(r"[^.\[\]'\"]+", path.removeprefix("self.")))[:-1]


def _levels(paths: Iterable[Path]) -> dict[Path, str]:
    """The layer of each module: down to the first number in its path, or, without one, the shortest name that holds no
    numbered layer."""
    every = list(paths)
    numbered = {path[: k + 1] for path in every if (k := _first_number(path)) is not None}
    above = {path[:k] for path in numbered for k in range(len(path))} if numbered else _shared(every)
    return {path: ".".join(_level(path, above)) for path in every}


def _level(path: Path, above: set[Path]) -> Path:
    number = _first_number(path)
    if number is not None:
        return path[: number + 1]
    return next((path[:k] for k in range(1, len(path)) if path[:k] not in above), path)


def _first_number(path: Path) -> int | None:
    return next((k for k, name in enumerate(path) if name.isdigit()), None)


def _shared(paths: Sequence[Path]) -> set[Path]:
    """The prefixes that all have."""
    least = min(map(len, paths), default=0)
    return {paths[0][:k] for k in range(least + 1) if all(path[:k] == paths[0][:k] for path in paths)}
