# SPDX-License-Identifier: Apache-2.0
"""Matmuls of 8 bits whose operands no kernel takes as they are: laid along K first, or widened to f16."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fusec.ir.attributes import CastAttributes, DotAttributes
from fusec.ir.nodes import Op, Value
from fusec.ir.ops.contract import free_axes
from fusec.ir.types import f16, fixed
from fusec.passes.cse import cse
from fusec.passes.families.map.match import match_maps
from fusec.passes.groups.fused import build_fused_graph
from fusec.passes.groups.partition import Group, Partition
from fusec.passes.lower.context import LoweringContext
from fusec.passes.lower.pieces import Alternative, Pieces
from fusec.passes.rewrite import Outcome, Rewriter, Rule, rewrite, rule
from fusec.tile.views import joined, strided_view

_COPIED = 16
"""Bytes of which rows are a multiple where TMA fetches them."""


def eight_bits_first(context: LoweringContext) -> list[Alternative]:
    """The group in pieces: its operands of 8 bits along K, then the matmuls; its operands in f16, which holds all
    8-bit floats, in the matmuls' kernel or before it."""
    dots = context.anchors("dot")
    kinds = {v.type.dtype for dot in dots for v in dot.operands}
    if not dots or any(d.bits != 8 for d in kinds) or any(dot.expect(DotAttributes).lhs_batch for dot in dots):
        return []
    found: list[Alternative] = []
    apart = {v for dot in dots for side, v in enumerate(dot.operands) if not _lies_along(context, dot, side)}
    if apart:
        found.append(Alternative("operands along K first", lambda c: _pieces(c, _along(frozenset(apart)))))
    if all(d.kind == "float8" for d in kinds):
        found.append(Alternative("operands in f16", lambda c: _pieces(c, widened, inside=True)))
        found.append(Alternative("operands in f16 first", lambda c: _pieces(c, widened)))
    return found


def _lies_along(context: LoweringContext, dot: Op, side: int) -> bool:
    """Whether an operand's contracted axes are one in memory, elements side by side; what is computed is another's
    business."""
    value = dot.operands[side]
    view = strided_view(value, context.producers, context.strides)
    if view is None or not value.type.is_static:
        return True
    shape, strides = value.type.static_shape, fixed(view.strides)
    inner = _contracted(dot.expect(DotAttributes), side)
    along = joined([(shape[a], strides[a]) for a in inner])
    return along is not None and along[1] == 1


def _contracted(attributes: DotAttributes, side: int) -> Sequence[int]:
    return (attributes.lhs_contract, attributes.rhs_contract)[side]


def _along(apart: frozenset[Value]) -> Rule:
    @rule("dot")
    def operands_along_k(r: Rewriter) -> Outcome:
        """dot(a, b) ⇒ dot(copy(a), copy(b)), the copies with their contracted axes last"""
        if apart.isdisjoint(r.operands):
            return None
        attributes = r.op.expect(DotAttributes)
        operands = list(r.operands)
        contracted = [attributes.lhs_contract, attributes.rhs_contract]
        for side, value in enumerate(r.operands):
            if value in apart:
                free = free_axes(value.type.rank, (), tuple(contracted[side]))
                laid = r.permute(value, [*free, *contracted[side]])
                operands[side] = r.emit("copy", laid, hint="laid_out")
                contracted[side] = tuple(range(len(free), value.type.rank))
        made = replace(attributes, lhs_contract=contracted[0], rhs_contract=contracted[1])
        return r.emit("dot", *operands, attributes=made)

    return operands_along_k


@rule("dot")
def widened(r: Rewriter) -> Outcome:
    """dot(a: f8, b: f8) ⇒ dot(cast(a, f16), cast(b, f16))"""
    if any(v.type.dtype.kind != "float8" for v in r.operands):
        return None
    attributes = replace(r.op.expect(DotAttributes), dtype=r.op.result.type.dtype, fast=False)
    wide = [r.emit("cast", v, attributes=CastAttributes(f16), hint="f16") for v in r.operands]
    return r.emit("dot", *wide, attributes=attributes)


def _pieces(context: LoweringContext, change: Rule, inside: bool = False) -> Pieces:
    """``inside``: what makes the operands stays with the matmuls."""
    body = cse(rewrite(context.body, (change,)))
    partition = Partition(body)
    dots = [op for op in body.ops if op.name == "dot"]
    above = set() if inside else _above(body.ops, {v for dot in dots for v in dot.operands})
    makers = above - partition.free
    group = Group("gemm", dots[0].result.type.shape)
    partition.add(group, [op for op in body.ops if op not in makers and op not in partition.free])
    match_maps(partition, lambda declined: None)
    return Pieces(tuple(op for op in build_fused_graph(partition).ops if op.name == "fused"))


def _above(ops: Sequence[Op], values: set[Value]) -> set[Op]:
    """The ops that the values are made by."""
    found: set[Op] = set()
    for op in reversed(ops):
        if not values.isdisjoint(op.results):
            values.update(op.operands)
            found.add(op)
    return found
