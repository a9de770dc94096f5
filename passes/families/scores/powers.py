# SPDX-License-Identifier: Apache-2.0
"""Exponentials as powers of two, whose factor joins the scores' own: what a kernel computes where the result is rounded
to a half type, and a power may be off by some units in the last place of f32."""

from __future__ import annotations

from math import log2

from fusec.ir.types import f32
from fusec.passes.lower.combine import LOG2E, times
from fusec.tile.scalar import Apply, Const, ScalarExpr, rewrite_upward


def by_powers_of_two(value: ScalarExpr) -> ScalarExpr:
    """exp(x) ⇒ exp2(log2(e) x), and c ** x ⇒ exp2(log2(c) x) for a positive number c."""

    def change(node: Apply) -> ScalarExpr:
        if node.dtype is not f32:
            return node
        match node:
            case Apply("exp", (x,), dtype):
                return Apply("exp2", (_scaled(x, LOG2E),), dtype)
            case Apply("pow", (Const(base, _), x), dtype) if isinstance(base, int | float) and base > 0:
                return Apply("exp2", (_scaled(x, log2(base)),), dtype) if x.dtype is f32 else node
            case _:
                return node

    return rewrite_upward(value, change)


def _scaled(e: ScalarExpr, factor: float) -> ScalarExpr:
    """``e`` times a factor, which joins those that are there."""
    match e:
        case Const(value, dtype) if isinstance(value, int | float):
            return Const(float(value) * factor, dtype)
        case Apply("mul", (a, Const(value, _)) | (Const(value, _), a), _) if isinstance(value, int | float):
            return _scaled(a, factor * float(value))
        case Apply("div", (a, Const(value, _)), _) if isinstance(value, int | float) and value != 0:
            return _scaled(a, factor / float(value))
        case Apply("neg", (a,), _):
            return _scaled(a, -factor)
        case Apply("add" | "sub" as op, (a, b), dtype):
            return Apply(op, (_scaled(a, factor), _scaled(b, factor)), dtype)
        case Apply("select", (condition, a, b), dtype):
            return Apply("select", (condition, _scaled(a, factor), _scaled(b, factor)), dtype)
        case _:
            return times(e, factor)
