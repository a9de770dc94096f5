# SPDX-License-Identifier: Apache-2.0
"""Square roots on vectors."""

from __future__ import annotations

from fusec.codegen.tvm import tir
from fusec.codegen.tvm.math import avx512, fills_register
from fusec.codegen.tvm.tir import Value
from fusec.codegen.tvm.vector import Code


def square_root(code: Code, x: Value) -> Value:
    """Rounded as IEEE has it, or ``refined``: off by 0.85 of the last digit at most, and exact where the root is.

    An estimate to 2**-14 of itself, and one of Newton's steps. On Intel's servers a root of 16 numbers takes 16 cycles
    of the unit that divides, during which that can't; this takes 4 of the usual ones.
    """
    if not (code.refined and x.type == "float32" and fills_register(code, x)):
        return code.call("llvm.sqrt", x.type, x)
    every = tir.integer(-1, "int16")
    node = tir.intrinsic("llvm.x86.avx512.rsqrt14.ps.512", x.type, x.lanes, x.node, x.node, every)
    inverse = code.let(Value(node, x.type, x.lanes))
    root, half = code.mul(x, inverse), code.mul(inverse, code.constant(x, 0.5))
    rest = code.fma(code.neg(root), half, code.constant(x, 0.5))
    root = code.fma(root, rest, root)
    table = tir.constant(_FIXUP, "int32", x.lanes)
    return avx512(code, "fixupimm", root, x.node, table.node, tir.integer(0))


_FIXUP = 0x00130122
"""What ``vfixupimm`` puts for each class of x, from the lowest 4 bits: NaN (2: itself, quiet), signalling NaN, zero
(1: itself), one (0: what was computed), minus infinity (3: NaN), infinity, below 0, above 0."""
