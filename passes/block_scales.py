# SPDX-License-Identifier: Apache-2.0
"""Matmuls of 8-bit floats times scales of blocks, as code writes them: operands that are widened and scaled in f32.

A dot that is ``scaled`` may multiply the numbers of 8 bits and scale the sums of each :data:`STEP` of K
(``codegen/cuda/include/block_scales.cuh``; decision 57).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from fusec.ir.attributes import CastAttributes, DotAttributes
from fusec.ir.graph import Graph
from fusec.ir.index import symbol
from fusec.ir.indexing import last
from fusec.ir.nodes import Op, Value
from fusec.ir.types import contiguous_strides, f32
from fusec.passes.contraction import contraction
from fusec.passes.groups.partition import Partition
from fusec.passes.inline import Inliner, Leaf
from fusec.passes.own_copies import OwnCopies
from fusec.tile.scalar import Apply, Buffer, Load, ScalarExpr, is_same_along, symbols_in
from fusec.tile.templates import SHARED_COLUMNS

STEP = 128
"""Elements along K that have one scale: a row of a TMA box."""


@dataclass(frozen=True)
class Scaling:
    """How an operand is made: ``ops`` widen and scale the numbers ``eight``, all of them computed; ``views`` lie
    between. ``scale``: what they are multiplied by; None where they are not."""

    ops: tuple[Op, ...]
    views: tuple[Op, ...]
    eight: Value
    scale: Value | None


@dataclass(frozen=True)
class ScaledElement:
    """An element of an operand: a float of 8 bits in memory, and what it is multiplied by."""

    eight: Load
    scale: ScalarExpr | None


def scaling_of(producer: Callable[[Value], Op | None], value: Value) -> Scaling | None:
    """cast(a: f8) : f32, or mul(cast(a: f8), scale); None for any other operand."""
    views: list[Op] = []

    def maker(of: Value) -> Op | None:
        made = producer(of)
        while made is not None and made.definition.kind == "view":
            views.append(made)
            made = producer(made.operands[0])
        return made

    op = maker(value)
    if op is None or value.type.dtype is not f32:
        return None
    if _widens(op):
        return Scaling((op,), tuple(views), op.operands[0], None)
    if op.name != "mul":
        return None
    for data, scale in (op.operands, op.operands[::-1]):
        before = len(views)
        widening = maker(data)
        if widening is not None and _widens(widening) and scale is not data:
            maker(scale)
            return Scaling((op, widening), tuple(views), widening.operands[0], scale)
        del views[before:]
    return None


def _widens(op: Op) -> bool:
    to = op.attributes.dtype if isinstance(op.attributes, CastAttributes) and op.name == "cast" else None
    return to is f32 and op.operands[0].type.dtype.kind == "float8"


def scaled_element(e: ScalarExpr) -> ScaledElement | None:
    """An element that is read as :func:`scaling_of` has it."""
    match e:
        case Apply("cast", (Load() as eight,)) if e.dtype is f32 and eight.dtype.kind == "float8":
            return ScaledElement(eight, None)
        case Apply("mul", (a, b)) if e.dtype is f32:
            for data, scale in ((a, b), (b, a)):
                found = scaled_element(data)
                if found is not None and found.scale is None:
                    return ScaledElement(found.eight, scale)
    return None


def can_scale_sums(producer: Callable[[Value], Op | None], dot: Op) -> bool:
    """Whether operands are 8-bit floats of which at least one is scaled, by what stays the same along each step of K,
    and a few columns of the right one."""
    scalings = [scaling_of(producer, v) for v in dot.operands]
    if dot.expect(DotAttributes).lhs_batch or any(s is None for s in scalings):
        return False
    if all(s is None or s.scale is None for s in scalings):
        return False
    axes = contraction(dot)
    i, j, k = (symbol(n, 0, last(extent)) for n, extent in zip("ijk", (axes.m, axes.n, axes.k), strict=True))
    for side, (value, scaling) in enumerate(zip(dot.operands, scalings, strict=True)):
        assert scaling is not None
        element = _inliner(producer, scaling).at(value, axes.operand_at(dot, side, 0, i, j, k))
        found = scaled_element(element)
        if found is None or not (found.scale is None or is_same_along(found.scale, k, STEP)):
            return False
        changes = side == 1 and found.scale is not None and k in symbols_in(found.scale)
        if changes and found.scale is not None and not is_same_along(found.scale, j, SHARED_COLUMNS):
            return False
    return True


def _inliner(producer: Callable[[Value], Op | None], scaling: Scaling) -> Inliner:
    """With the numbers and the scales in memory."""
    producers = {op.result: op for op in (*scaling.ops, *scaling.views)}
    leaves = {scaling.eight: _leaf(scaling.eight)}
    if scaling.scale is not None:
        source = scaling.scale
        while source in producers:
            source = producers[source].operands[0]
        leaves[source] = _leaf(source)
    return Inliner(producers, leaves)


def _leaf(value: Value) -> Leaf:
    shape = value.type.shape
    buffer = Buffer(value.name, value.type.dtype, shape, contiguous_strides(shape))
    return lambda index: Load(buffer, index)


def scaled_apart(graph: Graph) -> Graph:
    """The graph where scaled dots that can't share a kernel have their own copies of what makes their operands, so
    that each can have it in its kernel."""
    partition = Partition(graph)
    own = OwnCopies(graph)
    changed: dict[Op, Op] = {}
    made: dict[object, Value] = {}
    for dot in graph.ops:
        if dot.name != "dot" or not dot.expect(DotAttributes).scaled:
            continue
        operands = list(dot.operands)
        for side, value in enumerate(dot.operands):
            scaling = scaling_of(partition.producers.get, value)
            if scaling is None or not _has_others(partition, scaling, dot):
                continue
            key = value, side, dot.result.type
            if key not in made:
                made[key] = own.make({*scaling.ops, *scaling.views}, dot)[value]
            operands[side] = made[key]
        if operands != list(dot.operands):
            changed[dot] = replace(dot, operands=tuple(operands))
    return own.with_readers(changed)


def _has_others(partition: Partition, scaling: Scaling, dot: Op) -> bool:
    """Whether anything but this dot reads what makes its operand, or it is an output."""
    allowed = {dot, *scaling.ops}
    return any(partition.escapes(op) or not allowed.issuperset(partition.compute_consumers(op)) for op in scaling.ops)
