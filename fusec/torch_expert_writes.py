# SPDX-License-Identifier: Apache-2.0
"""Where loops over experts add the rows that they made, in a recording."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import fx
from torch._ops import OpOverload

Node = Any
"""An ``fx.Node``, of whose arguments the types tell nothing."""

_WRITES = ("index_add_", "index_put_")


class Differs(Exception):  # noqa: N818 - not an error: the call runs as written
    """Experts are not computed alike, or something else looks at their rows."""


@dataclass(frozen=True)
class Write:
    """Rows of a set added to a tensor, at positions along an axis of the set's condition."""

    node: Node
    target: Node
    number: int
    coordinate: int
    rows: Node


def name_of(node: Node) -> str:
    return node.target.overloadpacket.__name__ if isinstance(node.target, OpOverload) else ""


def rows_of(node: Any) -> tuple[int, int, int | None] | None:
    return node.meta.get("rows") if isinstance(node, fx.Node) else None


def mutates(node: Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def chains_of_writes(graph: fx.Graph) -> list[list[Write]]:
    """The writes of rows of each loop, first to last."""
    chains: list[list[Write]] = []
    last: dict[Node, list[Write]] = {}
    for node in graph.nodes:
        write = _write(node) if name_of(node) in _WRITES else None
        if write is None:
            continue
        chain = last.pop(write.target, None)
        if chain is None or chain[0].coordinate != write.coordinate:
            chains.append(chain := [])
        chain.append(write)
        last[node] = chain
    return chains


def _write(node: Node) -> Write | None:
    """A write of rows; None for others."""
    target, *given = node.args
    if name_of(node) == "index_add_":
        _, index, rows = given[:3]
    else:
        listed, rows = given[:2]
        index = listed[0] if len(listed) == 1 else None
    found = rows_of(rows)
    if found is None:
        return None
    where = rows_of(index)
    coordinate = where[2] if where is not None else 0
    if coordinate is None or not isinstance(target, fx.Node) or found[1]:
        raise Differs(f"{node.name} writes rows")
    if name_of(node) == "index_put_" and not [*given, False][2] and not node.kwargs.get("accumulate", False):
        rows = _added(rows, target)
    return Write(node, target, found[0], coordinate, rows)


def _added(rows: Node, target: Node) -> Node:
    """What is added to the rows that a target has: ``target[i] + rows`` is put there."""
    if name_of(rows) in ("add", "add_"):
        for read, other in (rows.args[:2], rows.args[1::-1]):
            is_read = (
                isinstance(read, fx.Node) and name_of(read) in ("index", "index_select") and read.args[0] is target
            )
            if is_read and isinstance(other, fx.Node):
                return other
    raise Differs(f"{rows.name} is put in place of rows")
