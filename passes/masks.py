# SPDX-License-Identifier: Apache-2.0
"""Masks and biases made of small values (document ids, slopes, lengths), for each score space that reads them its own.

What several kernels read is stored, rows × columns of it, and a kernel that reads it so can't tell which blocks it
empties. The maps that make it are a few instructions a point, which each kernel computes where it needs them.
"""

from __future__ import annotations

from dataclasses import replace

from fusec.ir.graph import Graph
from fusec.ir.nodes import Op, Value
from fusec.passes.families.scores.match import products_above
from fusec.passes.groups.grow import is_cheap
from fusec.passes.groups.partition import Partition

LEAST = 1 << 16
"""Elements of a result below which it is left where it is: a cache holds it."""
SMALLER = 8
"""How many times fewer elements each value has that it is made of."""
MOST = 16
"""Maps that make it."""


def masks_apart(graph: Graph) -> Graph:
    """The graph where each map on scores has its own copy of a mask or bias that is made of small values."""
    partition = Partition(graph)
    names = {v.name for v in graph.inputs} | {v.name for op in graph.ops for v in op.results}
    taken: set[Value] = set()
    before: dict[Op, list[Op]] = {}
    changed: dict[Op, Op] = {}
    for op in graph.ops:
        if op.definition.kind != "elementwise" or op in partition.free:
            continue
        chains = {v: _chain(partition, v) for v in op.operands}
        if not any(chains.values()) or all(chains.values()) or not products_above(partition, op.result):
            continue
        for value, chain in chains.items():
            if not chain or value not in taken:
                taken.add(value)
                continue
            copies: dict[Value, Value] = {}
            for made in (o for o in graph.ops if o in chain):
                results = tuple(replace(v, name=_unique(names, v.name)) for v in made.results)
                operands = tuple(copies.get(v, v) for v in made.operands)
                before.setdefault(op, []).append(replace(made, operands=operands, results=results))
                copies.update(zip(made.results, results, strict=True))
            own = changed.get(op, op)
            changed[op] = replace(own, operands=tuple(copies.get(v, v) for v in own.operands))
    if not changed:
        return graph
    return graph.with_ops(o for op in graph.ops for o in (*before.get(op, ()), changed.get(op, op)))


def _chain(partition: Partition, value: Value) -> set[Op]:
    """The cheap maps, with the views between, that make a large value of small ones; empty where it is not so made."""
    source = partition.source(value)
    if not (value.type.is_static and source.type.is_static) or source.type.size < LEAST:
        return set()
    found: set[Op] = set()
    maps = 0
    ahead = [value]
    while ahead:
        at = ahead.pop()
        op = partition.producers.get(at)
        if op in found or at.type.size * SMALLER <= source.type.size:
            continue
        if op is None:
            return set()
        if op.definition.kind != "view":
            if op in partition.free:
                continue
            maps += 1
            if op.definition.kind != "elementwise" or not is_cheap(op) or maps > MOST or partition.escapes(op):
                return set()
        found.add(op)
        ahead += op.operands
    return found if maps else set()


def _unique(names: set[str], base: str) -> str:
    found, count = f"{base}_own", 1
    while found in names:
        count += 1
        found = f"{base}_own{count}"
    names.add(found)
    return found
