# SPDX-License-Identifier: Apache-2.0
"""Weights out of a log-softmax without a second exponential: a loss's gradient reads ``exp(log_softmax(y))``."""

from __future__ import annotations

from fusec.ir.nodes import Value
from fusec.passes.rewrite import Outcome, Rewriter, Rule, rule


@rule("exp")
def exp_of_log_softmax(r: Rewriter) -> Outcome:
    """exp(x - log(sum(exp(x)))) ⇒ exp(x) / sum(exp(x)), where x = y - max(y) has no exponential that overflows"""
    (argument,) = r.operands
    difference = r.producer(argument, "sub")
    if difference is None:
        return None
    x, logarithm = difference.operands
    log = r.producer(logarithm, "log")
    if log is None or x.type.dtype != argument.type.dtype:
        return None
    (total,) = log.operands
    summed = r.producer(_whole(r, total), "reduce_sum")
    powers = r.producer(summed.operands[0], "exp") if summed is not None else None
    if powers is None or powers.operands[0] is not x or not _is_shifted(r, x):
        return None
    return r.emit("div", powers.result, total)


def _is_shifted(r: Rewriter, x: Value) -> bool:
    """Whether a value has no element above 0: the greatest of some was subtracted from all of them."""
    difference = r.producer(x, "sub")
    if difference is None:
        return False
    y, shift = difference.operands
    greatest = r.producer(_whole(r, shift), "reduce_max")
    return greatest is not None and greatest.operands[0] is y


def _whole(r: Rewriter, value: Value) -> Value:
    """What a value is a reshaped view of."""
    while (view := r.producer(value, "reshape", "broadcast")) is not None:
        value = view.operands[0]
    return value


LOG_SOFTMAX_RULES: tuple[Rule, ...] = (exp_of_log_softmax,)
