# SPDX-License-Identifier: Apache-2.0
"""The op table: every operation that a graph may hold, one record each.

To add an op, add its record to the table of its subject, an attribute record to :mod:`fusec.ir.attributes`
if none fits, and a sample to ``tests/op_samples.py``.
"""

from __future__ import annotations

from fusec.ir.definition import OpDef, OpKind
from fusec.ir.ops.composite import COMPOSITE_OPS
from fusec.ir.ops.contract import CONTRACTION_COMPOSITES, DOT_OPS
from fusec.ir.ops.create import CREATE_OPS, NESTED_OPS
from fusec.ir.ops.elementwise import ELEMENTWISE_OPS
from fusec.ir.ops.reduce import REDUCE_OPS
from fusec.ir.ops.views import DATA_OPS, VIEW_OPS

_TABLES = (
    CREATE_OPS,
    ELEMENTWISE_OPS,
    REDUCE_OPS,
    DOT_OPS,
    VIEW_OPS,
    DATA_OPS,
    NESTED_OPS,
    COMPOSITE_OPS,
    CONTRACTION_COMPOSITES,
)

OPS: dict[str, OpDef] = {op.name: op for table in _TABLES for op in table}
"""Every op by the name it has in IR text."""

__all__ = ["OPS", "OpDef", "OpKind"]
