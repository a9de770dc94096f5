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
from fusec.passes.own_copies import OwnCopies

LEAST, LEAST_IN_BLOCKS = 1 << 16, 1 << 10
"""Elements of a result below which it is left where it is: a cache holds it. On a GPU lengths and positions alone say
which keys of a cache a block visits: what is stored of them has to be looked through."""
SMALLER = 8
"""How many times fewer elements each value has that it is made of."""
MOST = 16
"""Maps that make it."""


def masks_apart(graph: Graph, *, blocked: bool = False) -> Graph:
    """The graph where each map on scores has its own copy of a mask or bias that is made of small values."""
    least = LEAST_IN_BLOCKS if blocked else LEAST
    partition = Partition(graph)
    copies = OwnCopies(graph)
    taken: set[Value] = set()
    changed: dict[Op, Op] = {}
    for op in graph.ops:
        if op.definition.kind != "elementwise" or op in partition.free:
            continue
        chains = {v: _chain(partition, v, least) for v in op.operands}
        if not any(chains.values()) or all(chains.values()) or not products_above(partition, op.result):
            continue
        for value, chain in chains.items():
            if not chain or value not in taken:
                taken.add(value)
                continue
            made = copies.make(chain, op)
            own = changed.get(op, op)
            changed[op] = replace(own, operands=tuple(made.get(v, v) for v in own.operands))
    return copies.with_readers(changed)


def _chain(partition: Partition, value: Value, least: int) -> set[Op]:
    """The cheap maps, with the views between, that make a large value of small ones; empty where it is not so made."""
    source = partition.source(value)
    if not (value.type.is_static and source.type.is_static) or source.type.size < least:
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
