# SPDX-License-Identifier: Apache-2.0
"""Loops over blocks of K as one matmul: sums of products of slices of 8-bit floats, each scaled.

``acc += (a[:, 128*i:128*(i+1)].float() @ b[:, 128*i:128*(i+1)].float().T) * s[:, i:i+1] * t[i]`` is a scaled dot
(``passes/block_scales.py``) whose scales multiply the sums of each block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from fusec.ir.attributes import (
    CastAttributes,
    ConstantAttributes,
    DotAttributes,
    PermuteAttributes,
    ShapeAttributes,
    SliceAttributes,
)
from fusec.ir.graph import Graph
from fusec.ir.nodes import Op, Value
from fusec.ir.types import Dim, f32
from fusec.passes.block_scales import STEP, can_scale_sums
from fusec.passes.eight_bits import FEW_ROWS, rounded_soon, widening_of
from fusec.passes.rewrite import Outcome, Rewriter, rewrite, rule
from fusec.target.gpu import GpuTarget

_FEWEST = 2
"""Products that are added up."""


@dataclass(frozen=True)
class _Cut:
    """A view of one of several slices along an ``axis`` of a value: ``views`` of it, the last one first."""

    views: tuple[Op, ...]
    slice: Op
    source: Value


@dataclass(frozen=True)
class _Term:
    """A product of two slices times scales, in the order of the code."""

    dot: Op
    factors: tuple[Value, ...]


def sum_blocks(graph: Graph, target: GpuTarget) -> Graph:
    """Afterwards sums of scaled products of adjoining slices along K are one dot, on GPUs that scale sums of 8-bit
    products, where these are rounded soon."""
    if target.backend != "cuda" or target.arch != 90 or not any(op.name == "dot" for op in graph.ops):
        return graph
    chains = _chains(graph)
    if not chains:
        return graph

    @rule("add")
    def products_of_blocks(r: Rewriter) -> Outcome:
        """add(mul(dot(a[:, :128], b[:, :128]), s0), mul(dot(a[:, 128:], b[:, 128:]), s1)) ⇒ dot(a*s, b*t) {scaled}"""
        terms = chains.get(r.op.result)
        return None if terms is None else _whole(r, terms)

    return rewrite(graph, (products_of_blocks,))


def _chains(graph: Graph) -> dict[Value, list[_Term]]:
    """The terms of each longest sum of scaled products of 8-bit floats that is rounded soon."""
    producers, uses, outputs = graph.producers(), graph.uses(), set(graph.outputs)
    rounded = rounded_soon(graph)
    inner = set[Value]()
    found: dict[Value, list[_Term]] = {}
    for op in reversed(graph.ops):
        if op.name != "add" or op.result in inner or op.result not in rounded or op.result.type.dtype is not f32:
            continue
        terms: list[_Term | None] = []
        passed: set[Value] = set()
        waiting = [op.result]
        while waiting:
            value = waiting.pop()
            made = producers.get(value)
            own = value is op.result or (len(uses[value]) == 1 and value not in outputs)
            if made is not None and made.name == "add" and own:
                passed.add(value)
                waiting += reversed(made.operands)
            elif not _is_zero(made):
                terms.append(_term(producers, uses, outputs, value))
        inner |= passed
        products = [t for t in terms if t is not None]
        if len(products) == len(terms) >= _FEWEST:
            found[op.result] = products
    return found


def _is_zero(op: Op | None) -> bool:
    """Whether an op makes zeros alone."""
    return op is not None and isinstance(op.attributes, ConstantAttributes) and op.attributes.value == 0


def _term(producers: dict[Value, Op], uses: dict[Value, list[Op]], outputs: set[Value], value: Value) -> _Term | None:
    """The dot and the factors of a product, none of which anything else reads on the way."""
    dots: list[Op] = []
    factors: list[Value] = []
    waiting = [value]
    while waiting:
        at = waiting.pop()
        op = producers.get(at)
        if op is not None and op.name == "dot":
            dots.append(op)
        elif op is not None and op.name == "mul" and op.result.type.dtype is f32:
            waiting += reversed(op.operands)
        else:
            factors.append(at)
            continue
        if len(uses[at]) != 1 or at in outputs:
            return None
    if len(dots) != 1 or dots[0].result.type != value.type:
        return None
    return _Term(dots[0], tuple(factors))


def _whole(r: Rewriter, terms: Sequence[_Term]) -> Outcome:
    terms = sorted(terms, key=lambda term: _start(r, term))
    dots = [t.dot for t in terms]
    first = dots[0].expect(DotAttributes)
    if any(d.attributes != first for d in dots) or first.lhs_batch or len(first.lhs_contract) != 1:
        return None
    operands: list[Value] = []
    depths: list[list[Dim]] = []
    for side, axis in enumerate((first.lhs_contract[0], first.rhs_contract[0])):
        paths = [widening_of(r.producer, d.operands[side]) for d in dots]
        known = [p for p in paths if p is not None and p[-1].operands[0].type.dtype.kind == "float8"]
        cuts = _cuts([_views(r, p) for p in known])
        if len(known) != len(paths) or cuts is None:
            return None
        depths.append([d.operands[side].type.shape[axis] for d in dots])
        whole = _joined(r, cuts)
        if whole is None:
            return None
        operands.append(whole)
    block, end = depths[0][0], depths[0][-1]
    if not isinstance(block, int) or not isinstance(end, int) or end > block:
        return None
    if block % STEP or any(n != block for n in depths[0][:-1]):
        return None
    scales = _scales(r, terms)
    if scales is None:
        return None
    scaled = [
        _scaled(r, value, scale, axis, block)
        for value, scale, axis in zip(operands, scales, (first.lhs_contract[0], first.rhs_contract[0]), strict=True)
    ]
    attributes = replace(first, dtype=f32, tf32=False, scaled=True, scales_sums=True)
    total = r.emit("dot", *scaled, attributes=attributes)
    return total if can_scale_sums(r.producer, r.producer(total) or r.op) else None


def _start(r: Rewriter, term: _Term) -> tuple[int, ...]:
    """Where the left operand's slices begin."""
    path = widening_of(r.producer, term.dot.operands[0]) or []
    slices = [op.attributes for op in _views(r, path) if isinstance(op.attributes, SliceAttributes)]
    return tuple(s for a in slices for s in a.starts if isinstance(s, int))


def _views(r: Rewriter, path: Sequence[Op]) -> list[Op]:
    """The views of a cast of 8 bits, and those behind it."""
    return [*path[:-1], *_views_of(r, path[-1].operands[0])] if path else []


def _views_of(r: Rewriter, value: Value) -> list[Op]:
    """The views that make a value, the last one first."""
    found: list[Op] = []
    made = r.producer(value)
    while made is not None and made.definition.kind == "view":
        found.append(made)
        made = r.producer(made.operands[0])
    return found


def _cuts(chains: Sequence[Sequence[Op]]) -> list[_Cut] | None:
    """Where chains of views differ: in one slice each, of one value."""
    if len({len(chain) for chain in chains}) != 1:
        return None
    for number, ops in enumerate(zip(*chains, strict=True)):
        if isinstance(ops[0].attributes, SliceAttributes) and any(op.attributes != ops[0].attributes for op in ops):
            return [_Cut(tuple(c[:number]), c[number], c[number].operands[0]) for c in chains]
    return None


def _axis_of(cuts: Sequence[_Cut]) -> int | None:
    """The axis along which slices of one value follow each other from its first to its last; None where they do not."""
    if any(c.source is not cuts[0].source or len(c.views) != len(cuts[0].views) for c in cuts):
        return None
    slices = [c.slice.expect(SliceAttributes) for c in cuts]
    if any(step != 1 for s in slices for step in s.steps):
        return None
    axes = [a for a in range(len(slices[0].starts)) if len({s.starts[a] for s in slices}) > 1]
    if len(axes) != 1:
        return None
    (axis,) = axes
    others = {tuple(x for a, x in enumerate(zip(s.starts, s.stops, strict=True)) if a != axis) for s in slices}
    adjoin = all(a.stops[axis] == b.starts[axis] for a, b in pairwise(slices))
    return axis if len(others) == 1 and adjoin else None


def _joined(r: Rewriter, cuts: Sequence[_Cut]) -> Value | None:
    """All slices as one, through the same views, which may only change the order of axes."""
    axis = _axis_of(cuts)
    if axis is None or any(op.name != "permute" for c in cuts for op in c.views):
        return None
    if any(op.attributes != other.attributes for c in cuts for op, other in zip(c.views, cuts[0].views, strict=True)):
        return None
    first, last = (cuts[n].slice.expect(SliceAttributes) for n in (0, -1))
    stops = tuple(last.stops[a] if a == axis else s for a, s in enumerate(first.stops))
    value = r.emit("slice", cuts[0].source, attributes=replace(first, stops=stops), hint="blocks")
    for view in reversed(cuts[0].views):
        value = r.emit("permute", value, attributes=view.attributes, hint="blocks")
    return r.emit("cast", value, attributes=CastAttributes(f32), hint="wide")


def _scales(r: Rewriter, terms: Sequence[_Term]) -> tuple[Value | None, Value | None] | None:
    """Scales of rows ``[blocks, rows]`` and of columns ``[blocks, columns]``; None for factors that are neither."""
    counts = {len(t.factors) for t in terms}
    if len(counts) != 1 or terms[0].dot.result.type.rank != 2 or not terms[0].dot.result.type.is_static:
        return None
    rows, columns = terms[0].dot.result.type.static_shape
    if min(rows, columns) <= FEW_ROWS:
        return None
    found: list[Value | None] = [None, None]
    for number in range(counts.pop()):
        values = [t.factors[number] for t in terms]
        shape = values[0].type.shape
        if any(v.type != values[0].type or v.type.dtype is not f32 for v in values):
            return None
        side = 0 if shape == (rows, 1) else 1 if shape in ((1, columns), (columns,)) else None
        stacked = _stacked(r, values) if side is not None and found[side] is None else None
        if side is None or stacked is None:
            return None
        found[side] = r.reshape(stacked, (len(terms), (rows, columns)[side]), hint="scales")
    return found[0], found[1]


def _stacked(r: Rewriter, values: Sequence[Value]) -> Value | None:
    """Values along a new first axis, which are views of slices of one positions each."""
    known = _cuts([_views_of(r, v) for v in values]) or []
    axis = _axis_of(known) if known else None
    if axis is None or known[0].slice.result.type.shape[axis] != 1:
        return None
    chains = zip(*(c.views for c in known), strict=True)
    if any(op.attributes != ops[0].attributes or op.name != ops[0].name for ops in chains for op in ops):
        return None
    first, last = (known[n].slice.expect(SliceAttributes) for n in (0, -1))
    stops = tuple(last.stops[a] if a == axis else s for a, s in enumerate(first.stops))
    whole = r.emit("slice", known[0].source, attributes=replace(first, stops=stops), hint="scales")
    count, rank = len(values), whole.type.rank
    value = r.permute(whole, [axis, *(a for a in range(rank) if a != axis)], hint="scales")
    value = r.reshape(value, (count, *known[0].slice.result.type.shape), hint="scales")
    for view in reversed(known[0].views):
        again = _along_blocks(r, view, value, count)
        if again is None:
            return None
        value = again
    return value


def _along_blocks(r: Rewriter, view: Op, value: Value, count: int) -> Value | None:
    """A view of each of several values along the first axis."""
    match view.attributes:
        case ShapeAttributes(shape=shape) if view.name in ("reshape", "broadcast"):
            return r.emit(view.name, value, attributes=ShapeAttributes((count, *shape)), hint="scales")
        case PermuteAttributes(permutation=order):
            return r.permute(value, [0, *(a + 1 for a in order)], hint="scales")
        case SliceAttributes(starts=starts, stops=stops, steps=steps):
            cut = SliceAttributes((0, *starts), (count, *stops), (1, *steps))
            return r.emit("slice", value, attributes=cut, hint="scales")
    return None


def _scaled(r: Rewriter, value: Value, scale: Value | None, axis: int, block: int) -> Value:
    """The operand times the scales of its blocks along an axis of two."""
    if scale is None:
        return value
    blocks, free = scale.type.static_shape
    depth = value.type.static_shape[axis]
    spread = r.reshape(r.permute(scale, (1, 0), hint="scales"), (free, blocks, 1), hint="scales")
    spread = r.reshape(r.broadcast(spread, (free, blocks, block), hint="scales"), (free, blocks * block), hint="scales")
    if blocks * block != depth:
        spread = r.emit("slice", spread, attributes=SliceAttributes((0, 0), (free, depth), (1, 1)), hint="scales")
    if axis == 0:
        spread = r.permute(spread, (1, 0), hint="scales")
    return r.emit("mul", value, spread, hint="scaled")
