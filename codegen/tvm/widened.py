# SPDX-License-Identifier: Apache-2.0
"""Functions of f32 that are computed in f64."""

from __future__ import annotations

from collections.abc import Callable

from fusec.codegen.tvm import tir
from fusec.codegen.tvm.tir import Value
from fusec.codegen.tvm.vector import Code


def in_f64(code: Code, function: Callable[..., Value], *args: Value) -> Value:
    """The function of f32 numbers rounded once; a full register's two halves one after the other."""
    lanes = max(a.lanes for a in args)
    if not code.avx512 or lanes != 16:
        wide = [code.convert(a, "float64") for a in args]
        return code.convert(function(code, *wide), "float32")
    low, high = (_half(code, function, start, [tir.widen(a, lanes) for a in args]) for start in (0, 8))
    return code.let(tir.shuffle(low, high, range(lanes)))


def _half(code: Code, function: Callable[..., Value], start: int, args: list[Value]) -> Value:
    wide = [code.convert(code.let(tir.part(a, start, 8)), "float64") for a in args]
    return code.convert(function(code, *wide), "float32")
