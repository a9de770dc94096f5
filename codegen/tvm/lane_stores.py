# SPDX-License-Identifier: Apache-2.0
"""Where lanes lie in memory, and stores of them past the caches."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx

from fusec.codegen.tvm import tir
from fusec.codegen.tvm.context import Context
from fusec.codegen.tvm.tir import Node, Value
from fusec.codegen.tvm.vector import bits_of


@dataclass(frozen=True, eq=False)
class LaneOffset:
    """A flat index on ``lanes`` lanes; ``unit`` when the lanes are adjacent in memory."""

    node: Node
    lanes: int
    unit: bool


def non_temporal_store(context: Context, memory: Node, offset: LaneOffset, value: Value) -> Node | None:
    """A store of adjacent lanes past the caches, if the address is a multiple of their size; None where the target
    has no such store for them."""
    name = _LLVM_TYPES.get(value.type)
    nbytes = value.lanes * bits_of(value.type) // 8
    if name is None or nbytes not in (16, 32, 64) or context.target.architecture != "x86_64":
        return None
    context.imports.add(_non_temporal_ir(name, value.lanes, nbytes))
    address = tir.address_of(memory, offset.node.base)
    return tirx.Evaluate(tirx.call_extern("int32", f"fusec_stream_{name}_{value.lanes}", address, value.node))


def _non_temporal_ir(name: str, lanes: int, nbytes: int) -> str:
    vector = f"<{lanes} x {name}>"
    return f"""
define linkonce_odr i32 @fusec_stream_{name}_{lanes}(ptr %p, {vector} %v) alwaysinline {{
  %address = ptrtoint ptr %p to i64
  %beyond = and i64 %address, {nbytes - 1}
  %whole = icmp eq i64 %beyond, 0
  br i1 %whole, label %past, label %usual
past:
  store {vector} %v, ptr %p, align {nbytes}, !nontemporal !0
  ret i32 0
usual:
  store {vector} %v, ptr %p, align 1
  ret i32 0
}}
!0 = !{{i32 1}}
"""


_LLVM_TYPES = {
    "float32": "float",
    "float64": "double",
    **{f"{sign}int{bits}": f"i{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
