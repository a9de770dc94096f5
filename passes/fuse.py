# SPDX-License-Identifier: Apache-2.0
"""The fusion pass: a partition of the graph into kernels, largest structures first."""

from __future__ import annotations

from fusec.ir.graph import Graph
from fusec.passes.families.all import FAMILIES
from fusec.passes.groups.fused import build_fused_graph
from fusec.passes.groups.grow import Log
from fusec.passes.groups.partition import Partition
from fusec.passes.groups.recompute import recompute_maps
from fusec.passes.groups.windows import copied_after


def fuse(graph: Graph, log: Log | None = None, *, blocked: bool = False) -> Graph:
    """Groups ops into ``fused`` ops: each family, in order, takes those that its kernels can have.

    ``log`` receives every fusion that was considered and declined. ``blocked``: see
    :class:`~fusec.passes.families.family.Family`.
    """
    note: Log = log or (lambda declined: None)
    partition = Partition(graph)
    if not blocked:
        partition.stored |= copied_after(graph)
    for family in FAMILIES:
        family.match(partition, note, blocked)
    if blocked:
        recompute_maps(partition)
    return build_fused_graph(partition)
