"""Scalar algebra that changes no bit, or no more than the libraries' own spelling of the same thing would.

Nothing here reassociates floats or drops a NaN, an infinity or the sign of a zero.
"""

from __future__ import annotations

from math import frexp, inf, isfinite

import numpy as np

from fusec.ir.attributes import ConstantAttributes, Scalar
from fusec.ir.graph import Value
from fusec.ir.types import DType, bool_
from fusec.passes.fold import filled, known, to_scalar
from fusec.passes.rewrite import Outcome, Reject, Rewriter, Rule, rule

_NEUTRAL: dict[str, tuple[str, ...]] = {
    "mul": ("1", "1.0"),
    "div": ("1", "1.0"),
    "pow": ("1", "1.0"),
    "sub": ("0", "0.0"),
    "add": ("0", "-0.0"),
    "bitwise_or": ("0",),
    "bitwise_xor": ("0",),
    "shift_left": ("0",),
    "shift_right": ("0",),
}
"""The second operand, as Python writes it, that gives back the first. x + 0.0 is not x where x is -0.0."""

_COMMUTES = ("mul", "add", "bitwise_or", "bitwise_xor")


@rule(*_NEUTRAL)
def neutral_operand(r: Rewriter) -> Outcome:
    """mul(x, 1) ⇒ x;  likewise x / 1, x - 0, x + -0.0, pow(x, 1), and on integers x + 0, x | 0, x << 0"""
    x, y = r.operands
    pairs = ((x, y), (y, x)) if r.op.name in _COMMUTES else ((x, y),)
    for value, other in pairs:
        number = known(r, other)
        if number is None or isinstance(number, bool) or repr(number) not in _NEUTRAL[r.op.name]:
            continue
        if value.type.dtype.is_float and r.op.name == "add" and repr(number) == "0":
            return Reject(f"{value} + 0 turns -0.0 into 0.0")
        if value.type.shape != r.op.result.type.shape:
            return None
        return value
    return None
