# SPDX-License-Identifier: Apache-2.0
"""Attention whose queries, keys and values were 8-bit floats, on Hopper (decision 58).

Scores are made of the numbers of 8 bits, as other products are whose results are rounded soon. Weights are no such
numbers: rounded to 8 bits they would keep 4 digits. They are rounded to f16, which holds 8-bit values exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fusec.ir.attributes import CastAttributes, DotAttributes
from fusec.ir.graph import Graph
from fusec.ir.nodes import Op, Value
from fusec.ir.types import DType, bf16, f8e4m3, f8e5m2, f16, f32
from fusec.passes.cse import cse
from fusec.passes.eight_bits import again, rounded_soon, widening_of
from fusec.passes.families.attention.match import AttentionMatch, match_attention
from fusec.passes.groups.partition import Partition
from fusec.passes.rewrite import Outcome, Rewriter, rewrite, rule
from fusec.target.gpu import GpuTarget

_DEPTHS = 32
"""Columns of queries and keys of which there are a multiple."""
_MOST_KEYS = 1 << 16
"""Keys whose weights, a digit or more below f16's least, come to less than half a digit of bf16."""
_FEWEST_ROWS = 64
"""Queries of a head, as ``hopper_attention_candidates`` has it."""


@dataclass(frozen=True)
class _Found:
    """The dots of an attention, by their results; the side of the second dot that weights are on. multiplied: what
    queries and keys are cast to; None where they stay of 8 bits."""

    scores: Value
    result: Value
    weights_side: int
    multiplied: DType | None


def attend_in_8_bits(graph: Graph, target: GpuTarget) -> Graph:
    """Afterwards scores of attention are made of 8-bit floats where queries and keys were cast from such and all that
    comes of them is rounded soon, or else of f16; values that were cast from such, and weights, are of 16 bits."""
    arch = target.arch if target.backend == "cuda" and isinstance(target.arch, int) else 0
    if arch < 80 or not _any_float8(graph):
        return graph
    found = _attentions(graph, arch == 90)
    if not found:
        return graph
    scores = {f.scores: f.multiplied for f in found}
    weighted = {f.result: f for f in found}

    @rule("dot")
    def attention_of_8_bits(r: Rewriter) -> Outcome:
        """dot(softmax(dot(cast(q: f8), cast(k: f8))), cast(v: f8)) ⇒ dot(softmax(dot(q, k)), cast(v, f16))"""
        attributes, result = r.op.expect(DotAttributes), r.op.result
        if result in scores and not any(v.type.dtype in (f16, f8e4m3, f8e5m2) for v in r.operands):
            operands = [again(r, _path(r, v), scores[result]) for v in r.operands]
            return r.emit("dot", *operands, attributes=replace(attributes, dtype=result.type.dtype, tf32=False))
        if result not in weighted or any(v.type.dtype is not f32 for v in r.operands):
            return None
        side = weighted[result].weights_side
        weights = r.emit("cast", r.operands[side], attributes=CastAttributes(f16, True), hint="f16")
        values = again(r, _path(r, r.operands[1 - side]), f16)
        operands = [weights, values] if side == 0 else [values, weights]
        return r.emit("dot", *operands, attributes=replace(attributes, dtype=f32, tf32=False))

    return cse(rewrite(graph, (attention_of_8_bits,)))


def _any_float8(graph: Graph) -> bool:
    return any(v.type.dtype.kind == "float8" for op in graph.ops for v in op.operands)


def _attentions(graph: Graph, eight: bool) -> list[_Found]:
    """``eight``: the target multiplies 8 bits."""
    partition = Partition(graph)
    rounded = rounded_soon(graph)
    found: list[_Found] = []
    for op in graph.ops:
        if op.name != "dot" or not (op.result in rounded or op.result.type.dtype is bf16):
            continue
        match = match_attention(partition, op)
        if isinstance(match, AttentionMatch) and _is_taken(partition, match):
            score = match.parts.score_dot
            multiplied = None if eight and _fits(score) else f16
            found.append(_Found(score.result, op.result, match.parts.weights_side, multiplied))
    return found


def _is_taken(partition: Partition, match: AttentionMatch) -> bool:
    score, value = match.parts.score_dot, match.parts.value_dot
    side = match.parts.weights_side
    if not all(v.type.is_static for dot in (score, value) for v in dot.operands):
        return False
    if any(_eight(partition, v) is None for v in score.operands):
        return False
    values = value.operands[1 - side]
    if value.result.type.dtype is f32:
        keys = value.operands[side].type.static_shape[value.expect(DotAttributes).lhs_contract[0]] if side == 0 else 0
        return values.type.dtype is f32 and keys <= _MOST_KEYS and _eight(partition, values) is not None
    return values.type.dtype is value.result.type.dtype


def _fits(score: Op) -> bool:
    """Whether Hopper's kernel takes queries and keys of 8 bits."""
    contracted = score.expect(DotAttributes).lhs_contract
    depth = [score.operands[0].type.static_shape[a] for a in contracted]
    many = min(score.result.type.static_shape[-2:]) >= _FEWEST_ROWS
    return len(depth) == 1 and depth[0] % _DEPTHS == 0 and many


def _eight(partition: Partition, value: Value) -> DType | None:
    """The 8-bit float that a value was cast from."""
    path = widening_of(partition.producers.get, value)
    dtype = path[-1].operands[0].type.dtype if path is not None else None
    return dtype if dtype is not None and dtype.kind == "float8" else None


def _path(r: Rewriter, value: Value) -> list[Op]:
    path = widening_of(r.producer, value)
    assert path is not None
    return path
