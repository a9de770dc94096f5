# SPDX-License-Identifier: Apache-2.0
"""Matmuls and convolutions of f32 whose operands are rounded to a half type, as ``precision=`` asks.

Sums stay in f32, and so do results: reductions, softmax and norms see what they saw before. A cast stands before the
views that lead to an operand, beside what computes it: there it is part of that kernel, which stores half as much; of
an array that is given it is part of the load.
"""

from __future__ import annotations

from dataclasses import replace

from fusec.ir.attributes import CastAttributes, DotAttributes, GroupedDotAttributes, GroupedOuterAttributes
from fusec.ir.graph import Graph
from fusec.ir.nodes import Op, Value
from fusec.ir.types import DType, f32
from fusec.passes.rewrite import Outcome, Rewriter, Rule, rewrite, rule

_CUTS = ("slice", "strided")
"""Views of a part of what they show."""


def lower_products(graph: Graph, dtype: DType) -> Graph:
    """Afterwards no matmul has operands of f32, unless its sums are f64."""
    return rewrite(graph, (_products_in(dtype),))


def _products_in(dtype: DType) -> Rule:
    @rule("dot", "grouped_dot", "grouped_outer")
    def product_of_halves(r: Rewriter) -> Outcome:
        """dot(a: f32, b: f32) ⇒ dot(cast(a, half), cast(b, half)) {dtype=f32}"""
        attributes = r.op.attributes
        assert isinstance(attributes, DotAttributes | GroupedDotAttributes | GroupedOuterAttributes)
        a, b, *ends = r.operands
        if a.type.dtype is not f32 or b.type.dtype is not f32 or r.op.result.type.dtype is not f32:
            return None
        rounded = replace(attributes, dtype=f32)
        return r.emit(r.op.name, _rounded(r, a, dtype), _rounded(r, b, dtype), *ends, attributes=rounded)

    return product_of_halves


def _rounded(r: Rewriter, value: Value, dtype: DType) -> Value:
    """The value in another type: cast before the views that lead to it, and not at all where it was of that type."""
    path: list[Op] = []
    source = value
    while (made := r.producer(source)) is not None and _shows(r, made):
        path.append(made)
        source = made.operands[0]
    while made is None and any(op.name in _CUTS for op in path):
        source = path.pop().result
    wide = r.producer(source, "cast")
    if wide is not None and wide.operands[0].type.dtype is dtype:
        found = wide.operands[0]
    else:
        found = r.emit("cast", source, attributes=CastAttributes(dtype), hint=dtype.name)
    for op in reversed(path):
        fill = [r.constant(0.0, found)] if op.name == "pad" else []
        found = r.emit(op.name, found, *fill, attributes=op.attributes)
    return found


def _shows(r: Rewriter, op: Op) -> bool:
    """Whether an op's result is elements of its first operand, and zeros."""
    return op.definition.kind == "view" or (op.name == "pad" and r.scalar(op.operands[1]) == 0.0)
