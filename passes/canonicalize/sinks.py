# SPDX-License-Identifier: Apache-2.0
"""Softmax beside a few extra logits (attention sinks): of each part by itself, with what the others add to its sum.

Models write ``softmax(concat(scores, sinks))`` and drop the sinks' columns again. In parts, the dropped ones are never
made, and the scores' part is an attention's.
"""

from __future__ import annotations

from fusec.ir.attributes import AxisAttributes, ConcatAttributes, ReduceAttributes, SliceAttributes
from fusec.ir.nodes import Value
from fusec.passes.canonicalize.composites import downcast, upcast
from fusec.passes.rewrite import Outcome, Rewriter, Rule, rule

FEW = 8
"""Extra logits of a row."""


@rule("softmax")
def softmax_of_shifted(r: Rewriter) -> Outcome:
    """softmax(x - max(x)) ⇒ softmax(x), which subtracts the maximum itself"""
    (x,) = r.operands
    attributes = r.op.expect(AxisAttributes)
    shifted = r.producer(x, "sub")
    if shifted is None or shifted.operands[0].type != x.type:
        return None
    inner, maximum = shifted.operands
    while (view := r.producer(maximum, "reshape", "broadcast")) is not None:
        maximum = view.operands[0]
    largest = r.producer(maximum, "reduce_max")
    axis = attributes.axis
    if largest is None or largest.operands[0] is not inner or largest.attributes != ReduceAttributes((axis,)):
        return None
    of_row = tuple(1 if a == axis else n for a, n in enumerate(x.type.shape))
    return r.emit("softmax", inner, attributes=attributes) if shifted.operands[1].type.shape == of_row else None


@rule("softmax")
def softmax_beside_few(r: Rewriter) -> Outcome:
    """softmax(concat(x, s)) ⇒ concat(e / t, f / t), t = sum(e) + sum(f)

    with e = exp(x - m), f = exp(s - m) and m = maximum(max(x), max(s)).
    """
    (whole,) = r.operands
    joined = r.producer(whole, "concat")
    axis = r.op.expect(AxisAttributes).axis
    if joined is None or joined.attributes != ConcatAttributes(axis):
        return None
    extents = [v.type.shape[axis] for v in joined.operands]
    few = [isinstance(n, int) and n <= FEW for n in extents]
    if few.count(False) != 1 or len(few) == 1 or 0 in extents:
        return None
    parts = [upcast(r, v) for v in joined.operands]
    peaks = [_over(r, "reduce_max", x, axis) for x in parts]
    largest = _combined(r, "maximum", peaks)
    powers = [r.emit("exp", r.emit("sub", x, largest, hint="shifted")) for x in parts]
    total = _combined(r, "add", [_over(r, "reduce_sum", x, axis) for x in powers])
    made = [downcast(r, r.emit("div", x, total)) for x in powers]
    return r.emit("concat", *made, attributes=joined.attributes)


def _over(r: Rewriter, name: str, x: Value, axis: int) -> Value:
    """The reduction along an axis, which is kept; a single element is itself."""
    return x if x.type.shape[axis] == 1 else r.keep(r.reduce(name, x, [axis]), x, [axis])


def _combined(r: Rewriter, name: str, values: list[Value]) -> Value:
    """The scores' part first: what is added to it is a sink."""
    first, *rest = sorted(values, key=lambda v: r.producer(v) is None or r.producer(v, "reshape") is None)
    for value in rest:
        first = r.emit(name, first, value)
    return first


@rule("slice")
def slice_of_concat(r: Rewriter) -> Outcome:
    """slice(concat(x, y)) ⇒ slice(x), where nothing of y is taken;  slice(cast(concat(x, y))) ⇒ cast(slice(x))"""
    cast = r.producer(r.operands[0], "cast")
    joined = r.producer(r.operands[0] if cast is None else cast.operands[0], "concat")
    cut = r.op.expect(SliceAttributes)
    if joined is None or not r.op.result.type.is_static or not r.operands[0].type.is_static:
        return None
    axis = joined.expect(ConcatAttributes).axis
    count = r.op.result.type.static_shape[axis]
    begin, step = cut.starts[axis], cut.steps[axis]
    if count == 0 or not isinstance(begin, int):
        return None
    ends = sorted((begin, begin + (count - 1) * step))
    start = 0
    for part in joined.operands:
        extent = part.type.static_shape[axis]
        if start <= ends[0] and ends[1] < start + extent:
            starts = tuple(begin - start if a == axis else n for a, n in enumerate(cut.starts))
            past = begin - start + count * step if step > 0 else max(begin - start + count * step, -1)
            stops = tuple(min(past, extent) if a == axis else n for a, n in enumerate(cut.stops))
            taken = r.emit("slice", part, attributes=SliceAttributes(starts, stops, cut.steps))
            return taken if cast is None else r.emit("cast", taken, attributes=cast.attributes)
        start += extent
    return None


SINK_RULES: tuple[Rule, ...] = (softmax_of_shifted, softmax_beside_few, slice_of_concat)
