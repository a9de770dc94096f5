# SPDX-License-Identifier: Apache-2.0
"""Forms of scalar expressions for which there is shorter code."""

from __future__ import annotations

from fusec.ir import indexing
from fusec.tile.scalar import Apply, Const, IndexValue, ScalarExpr


def plus_one(e: Apply) -> Apply | None:
    """The function of ``tanh(x) + 1`` or ``erf(x) + 1`` in f32 or f64."""
    for a, b in (e.args, e.args[::-1]):
        if isinstance(a, Apply) and a.op in ("tanh", "erf") and isinstance(b, Const) and b.value == 1:
            return a if e.dtype.bits >= 32 else None
    return None


def scaled(x: ScalarExpr) -> tuple[ScalarExpr, float]:
    """What is multiplied by a constant of a usual size, and that constant."""
    if isinstance(x, Apply) and x.op == "mul":
        inner, constant = x.args
        if isinstance(constant, Const) and 2.0**-10 < abs(factor := float(constant.value.real)) < 2.0**10:
            return inner, factor
    return x, 1.0


def is_one(e: ScalarExpr) -> bool:
    return isinstance(e, Const) and e.value == 1


def is_small_index(e: ScalarExpr) -> bool:
    if isinstance(e, IndexValue):
        return e.dtype.is_integer and not indexing.needs_int64(e.index)
    return isinstance(e, Const) and e.dtype.is_integer and -(2**31) <= e.value.real < 2**31
