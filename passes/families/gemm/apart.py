# SPDX-License-Identifier: Apache-2.0
"""A matmul whose operands are computed by kernels of their own, not in its prologue."""

from __future__ import annotations

from fusec.ir.nodes import Op
from fusec.passes.families.gemm.matmul import prologue_ops
from fusec.passes.families.map.match import match_maps
from fusec.passes.families.row.match import match_rows
from fusec.passes.groups.fused import build_fused_graph
from fusec.passes.groups.partition import Group, Partition
from fusec.passes.lower.context import LoweringContext
from fusec.passes.lower.pieces import Alternative, Pieces

TEXT = "operands first"


def operands_first(context: LoweringContext) -> list[Alternative]:
    """The group in pieces: what makes its matmuls' operands, then the matmuls; none where operands are in memory."""
    return [Alternative(TEXT, _pieces)] if _makers(context) else []


def _makers(context: LoweringContext) -> set[Op]:
    """The ops that make the matmuls' operands and are more than views of memory."""
    return prologue_ops(context)[0] - Partition(context.body).free


def _pieces(context: LoweringContext) -> Pieces:
    partition = Partition(context.body)
    makers = _makers(context)
    dots = context.anchors("dot")
    group = Group("gemm", dots[0].result.type.shape)
    partition.add(group, [op for op in context.body.ops if op not in makers and op not in partition.free])
    match_rows(partition, lambda declined: None)
    match_maps(partition, lambda declined: None)
    return Pieces(tuple(op for op in build_fused_graph(partition).ops if op.name == "fused"))
