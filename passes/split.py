"""Reductions of few long rows in two steps, so that all cores share them."""

from __future__ import annotations

from math import prod

from fusec.ir.attributes import ReduceAttributes, SliceAttributes
from fusec.ir.graph import Graph, Value
from fusec.passes.rewrite import Outcome, Rewriter, Rule, rewrite, rule

SERIAL_ELEMENTS = 1 << 19
"""Reductions of fewer elements stay whole: a second kernel costs more than the other cores would gain."""

UNEVEN_ELEMENTS = 1 << 22
"""Fewer elements than these are not cut unevenly: the rest is a kernel more, and the operand may have to be stored."""

PART_ELEMENTS = 1 << 13
"""No part that one task reduces has fewer elements."""

LANES = 64
"""Columns that one task of a reduction over outer axes takes side by side."""

_COMBINE = {
    "reduce_sum": "add",
    "reduce_prod": "mul",
    "reduce_max": "maximum",
    "reduce_min": "minimum",
    "reduce_any": "logical_or",
    "reduce_all": "logical_and",
}


def split_reductions(graph: Graph, threads: int) -> Graph:
    """The graph with every large reduction that has fewer rows than there are threads made of partial ones."""

    @rule(*_COMBINE)
    def in_parts(r: Rewriter) -> Outcome:
        """reduce(x: [n]) ⇒ reduce(reduce(x: [parts, n / parts]) over its last axis)"""
        return _in_parts(r, threads)

    rules: tuple[Rule, ...] = (in_parts,)
    return graph if threads < 2 else rewrite(graph, rules)


def _in_parts(r: Rewriter, threads: int) -> Outcome:
    (x,) = r.operands
    assert isinstance(r.op.attributes, ReduceAttributes)
    axes = r.op.attributes.axes
    if not axes or not x.type.is_static or x.type.size < SERIAL_ELEMENTS:
        return None
    shape = x.type.static_shape
    tasks = _tasks(shape, axes)
    if tasks >= threads:
        return None
    wanted = min(8 * threads, x.type.size // tasks // PART_ELEMENTS)
    axis = next((a for a in axes if shape[a] >= wanted), max(axes, key=lambda a: shape[a]))
    n = shape[axis]
    wanted = min(wanted, n)
    most = min(n, x.type.size // tasks // PART_ELEMENTS)
    if wanted < 2:
        return None
    even = [d for d in range(2, min(most, 64 * threads) + 1) if n % d == 0 and 2 * d >= wanted]
    if not even and x.type.size < UNEVEN_ELEMENTS:
        return None
    parts = min(even, key=lambda d: abs(d - wanted), default=wanted)
    whole = n // parts * parts
    result = _of_parts(r, _cut(r, x, axis, 0, whole), axis, parts)
    if whole < n:
        rest = r.reduce(r.op.name, _cut(r, x, axis, whole, n), axes, hint="rest")
        result = r.emit(_COMBINE[r.op.name], result, rest)
    return result


def _tasks(shape: tuple[int, ...], axes: tuple[int, ...]) -> int:
    """How many tasks a row kernel makes at most."""
    kept = [n for a, n in enumerate(shape) if a not in axes]
    if len(shape) - 1 in axes or not kept:
        return prod(kept)
    return prod(kept[:-1]) * -(-kept[-1] // LANES)


def _cut(r: Rewriter, x: Value, axis: int, start: int, stop: int) -> Value:
    shape = x.type.static_shape
    if stop - start == shape[axis]:
        return x
    starts = tuple(start if a == axis else 0 for a in range(len(shape)))
    stops = tuple(stop if a == axis else n for a, n in enumerate(shape))
    return r.emit("slice", x, attributes=SliceAttributes(starts, stops, (1,) * len(shape)), hint="part")


def _of_parts(r: Rewriter, x: Value, axis: int, parts: int) -> Value:
    """The reduction of ``x``, the axis taken apart: the parts first, then what they give."""
    assert isinstance(r.op.attributes, ReduceAttributes)
    shape = x.type.static_shape
    apart = r.reshape(x, (*shape[:axis], parts, shape[axis] // parts, *shape[axis + 1 :]), hint="apart")
    inner = [a + (a >= axis) for a in r.op.attributes.axes]
    partial = r.reduce(r.op.name, apart, inner, hint="partial")
    place = sum(a < axis for a in range(len(shape)) if a not in r.op.attributes.axes)
    return r.reduce(r.op.name, partial, [place], hint="of_parts")
