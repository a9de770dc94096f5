# SPDX-License-Identifier: Apache-2.0
"""Every family of kernels, in the order in which they take their ops: largest structures first."""

from __future__ import annotations

from fusec.errors import LoweringError
from fusec.ir.graph import FusedAttributes
from fusec.ir.nodes import Op
from fusec.passes.families.attention.family import ATTENTION
from fusec.passes.families.family import Family
from fusec.passes.families.gemm.family import GEMM
from fusec.passes.families.grouped.family import GROUPED
from fusec.passes.families.map.family import MAP
from fusec.passes.families.row.family import ROW
from fusec.passes.families.scan.family import SCAN
from fusec.passes.families.scatter.family import SCATTER
from fusec.passes.families.scores.family import SCORES

FAMILIES: tuple[Family, ...] = (ATTENTION, SCORES, GROUPED, GEMM, SCATTER, SCAN, ROW, MAP)


def family_of(op: Op) -> Family:
    """The family that a fused op is of."""
    attributes = op.expect(FusedAttributes)
    found = next((family for family in FAMILIES if family.kind == attributes.kind), None)
    if found is None:
        raise LoweringError(f"no family for {attributes.kind} groups")
    return found
