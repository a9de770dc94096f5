# SPDX-License-Identifier: Apache-2.0
"""Matmuls of low-precision types in vector registers: groups of 32 bits along k are multiplied and added up by one
instruction.

bf16 with AVX512-BF16 (``vdpbf16ps``, two products a lane, f32 sums; subnormal operands count as 0) and i8 with
AVX512-VNNI (``vpdpbusd``, four products a lane, i32 sums that wrap). The latter takes one operand without a sign: ``a
+ 128`` is multiplied, and ``128 * sum(b)``, added up beside the rows, is taken off in the end.
"""

from __future__ import annotations

from dataclasses import replace

from tvm import tirx

from fusec.codegen.tvm import tir
from fusec.codegen.tvm.context import Context
from fusec.codegen.tvm.dot import DotWriter, RowBlock
from fusec.codegen.tvm.tir import Node, Value
from fusec.codegen.tvm.vector import Code
from fusec.errors import LoweringError
from fusec.ir import index as ix
from fusec.ir.index import Index, symbol
from fusec.tile.nodes import Dot, Iter, grouped
from fusec.tile.scalar import Load, reindex

LANES = 16

BF16_IR = """
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)
define linkonce_odr <16 x float> @fusec_dot_bf16(<16 x float> %s, <16 x i32> %a, <16 x i32> %b) alwaysinline
    "target-features"="+avx512bf16,+avx512f,+evex512" {
  %x = bitcast <16 x i32> %a to <32 x bfloat>
  %y = bitcast <16 x i32> %b to <32 x bfloat>
  %r = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float> %s, <32 x bfloat> %x, <32 x bfloat> %y)
  ret <16 x float> %r
}
"""
"""TVM can't spell LLVM's bfloat, which the intrinsic takes."""


class GroupWriter(DotWriter):
    """Its k counts groups."""

    def __init__(self, context: Context, dot: Dot) -> None:
        self.group = grouped(dot)
        self.signed = dot.a.dtype.name == "i8"
        super().__init__(context, _over_groups(dot, self.group))

    def check(self) -> None:
        dtype = self.dot.a.dtype
        if not self.context.target.multiplies(dtype) or self.dot.registers.columns % LANES:
            raise LoweringError(f"{self.context.target.name} does not multiply {dtype} in groups")

    def _start(self, code: Code, block: RowBlock) -> list[list[Node]]:
        """With signs, one row more: the sum of ``128 * b``."""
        extra = 1 if self.signed else 0
        return super()._start(code, replace(block, rows=block.rows + extra))

    def _step(
        self, code: Code, block: RowBlock, column: Index, k: Index, sums: list[list[Node]], masks: list[Node | None]
    ) -> None:
        vectors = []
        for j in range(self.vectors):
            flat = self._group_at(self.dot.b, block, 0, column, j, k)
            vectors.append(self._right(code, flat))
        self._fetch(code, block, column, k)
        for i, row in enumerate(sums):
            if i < block.rows:
                pair = self._left(code, self._group_at(self.dot.a, block, i, column, 0, k))
            else:
                pair = tir.constant(SIGNS, "int32", LANES).node
            for total, vector in zip(row, vectors, strict=True):
                zero = tir.integer(0)
                old = tirx.BufferLoad(total, [zero])
                added = multiply_groups(self.context, self.group, old, pair, vector)
                code.append(tirx.BufferStore(total, added, [zero]))

    def _group_at(self, load: Load, block: RowBlock, i: int, column: Index, j: int, k: Index) -> Index:
        return self._flat_at(load, self._at(block, i, column, j, k))

    def _right(self, code: Code, flat: Index) -> Node:
        """A group of each of the vector's columns."""
        memory = self.context.memory[self.dot.b.buffer]
        offset = tir.ramp(self.context.index(flat), LANES * self.group, 1, self.context.index_type)
        return self._bound(code, "b", tirx.reinterpret(f"int32x{LANES}", tirx.BufferLoad(memory, [offset])))

    def _left(self, code: Code, flat: Index) -> Node:
        """A group of a row, on every lane."""
        memory = self.context.memory[self.dot.a.buffer]
        offset = tir.ramp(self.context.index(flat), self.group, 1, self.context.index_type)
        pair = tirx.reinterpret("int32", tirx.BufferLoad(memory, [offset]))
        if self.signed:  # before it is broadcast: LLVM 21 does not end on the same with vectors
            pair = tirx.bitwise_xor(pair, tir.integer(SIGNS))
        return self._bound(code, "a", tirx.Broadcast(pair, LANES))

    def _bound(self, code: Code, name: str, node: Node) -> Node:
        variable = tir.variable(code.fresh(name), f"int32x{LANES}")
        code.append(tir.bind(variable, node))
        return variable

    def _finish(
        self, code: Code, block: RowBlock, column: Index, sums: list[list[Node]], masks: list[Node | None]
    ) -> None:
        if self.signed:
            *sums, shifts = sums
            zero = tir.integer(0)
            for row in sums:
                for total, shift in zip(row, shifts, strict=True):
                    values = [Value(tirx.BufferLoad(x, [zero]), self.type, LANES) for x in (total, shift)]
                    code.append(tirx.BufferStore(total, code.sub(*values).node, [zero]))
        super()._finish(code, block, column, sums, masks)


SIGNS = -0x7F7F7F80
"""0x80 in each byte of an int32."""


def multiply_groups(context: Context, group: int, total: Node, a: Node, b: Node) -> Node:
    """The sums with the products of each lane's group added to them."""
    if group == 2:
        context.imports.add(BF16_IR)
        return tirx.call_pure_extern(f"float32x{LANES}", "fusec_dot_bf16", total, a, b)
    bytes_a, bytes_b = (tirx.reinterpret(f"int8x{4 * LANES}", x) for x in (a, b))
    return tir.intrinsic("llvm.x86.avx512.vpdpbusd.512", "int32", LANES, total, bytes_a, bytes_b)


def _over_groups(dot: Dot, group: int) -> Dot:
    k = symbol(f"{dot.k.var.name}g", 0, max(dot.k.extent // group - 1, 0))
    table = {dot.k.var: ix.mul(k, group)}
    a, b = reindex(dot.a, table), reindex(dot.b, table)
    assert isinstance(a, Load)
    assert isinstance(b, Load)
    return replace(dot, k=Iter(k, dot.k.extent // group), a=a, b=b)
