# SPDX-License-Identifier: Apache-2.0
"""A score space in pieces: a kernel for each product, its values in memory between."""

from __future__ import annotations

from fusec.passes.families.gemm.match import match_gemms
from fusec.passes.families.map.match import match_maps
from fusec.passes.families.row.match import match_rows
from fusec.passes.groups.fused import build_fused_graph
from fusec.passes.groups.partition import Partition
from fusec.passes.lower.context import LoweringContext
from fusec.passes.lower.pieces import Alternative, Pieces

TEXT = "products apart"


def products_apart(context: LoweringContext) -> list[Alternative]:
    """The group as kernels of products, for spaces that are small beside what they are made of."""
    return [Alternative(TEXT, _pieces)]


def _pieces(context: LoweringContext) -> Pieces:
    partition = Partition(context.body)
    for match in (match_gemms, match_rows, match_maps):
        match(partition, lambda declined: None, True)
    return Pieces(tuple(op for op in build_fused_graph(partition).ops if op.name == "fused"))
