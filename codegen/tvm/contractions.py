# SPDX-License-Identifier: Apache-2.0
"""A Dot's operands and registers decide how it is written: k on the lanes or columns, groups of small elements, AMX
tiles."""

from __future__ import annotations

from fusec.codegen.tvm.along import AlongWriter
from fusec.codegen.tvm.context import Context, Numbers
from fusec.codegen.tvm.dot import DotWriter
from fusec.codegen.tvm.groups import GroupWriter
from fusec.codegen.tvm.tiles import emit_tiled_dot
from fusec.codegen.tvm.vector import Code
from fusec.tile.nodes import Dot, grouped


def emit_dot(context: Context, code: Code, numbers: Numbers, dot: Dot) -> None:
    if dot.registers.along:
        AlongWriter(context, dot).write(code)
    elif dot.registers.tiles:
        emit_tiled_dot(context, code, numbers, dot)
    elif grouped(dot) > 1:
        GroupWriter(context, dot).write(code)
    else:
        DotWriter(context, dot).write(code)
