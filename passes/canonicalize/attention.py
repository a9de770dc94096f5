# SPDX-License-Identifier: Apache-2.0
"""Scaled dot-product attention opened into dots, a mask and a softmax."""

from __future__ import annotations

from math import sqrt

from fusec.ir.attributes import IotaAttributes, SdpaAttributes
from fusec.ir.nodes import Value
from fusec.ir.types import Dim, bool_, i64
from fusec.passes.canonicalize.composites import compute_dtype
from fusec.passes.canonicalize.contractions import dot
from fusec.passes.rewrite import Outcome, Reject, Rewriter, Rule, rule

_MINUS_INFINITY = -float("inf")

Shape = tuple[Dim, ...]


@rule("sdpa")
def sdpa(r: Rewriter) -> Outcome:
    """sdpa(q, k, v, mask) ⇒ dot(weights(masked(dot(q, k) · scale)), v)

    The weights are a softmax, but zeros where all scores of a row are -inf, by a mask or by themselves.
    Heads that share keys become two axes ``[groups, heads a group]``, and the keys a broadcast view over the second.
    """
    q, k, v, *mask = r.operands
    attributes = r.op.expect(SdpaAttributes)
    head_size = q.type.shape[-1]
    if attributes.scale is None and not isinstance(head_size, int):
        return Reject(f"the default scale needs a fixed head size, and {q} has {head_size}")
    batch, groups = r.op.result.type.shape[:-2], None
    if attributes.grouped:
        k, v, groups = _shared_heads(r, batch, k, v)
    split = _split(batch, groups)
    q, k, v = (_with_batch(r, x, batch, split, hint) for x, hint in ((q, "q"), (k, "k"), (v, "v")))
    scores = _scores(r, q, k, attributes)
    masks = [_split_mask(r, value, batch, groups) for value in mask]
    for value in masks:
        scores = _masked(r, scores, value)
    axes = tuple(range(len(split)))
    rank = len(split) + 2
    no_keys = scores.type.shape[-1] == 0
    weights = scores if no_keys else _weights(r, scores, rank - 1)
    weights = r.cast(weights, v.type.dtype, hint="weights")
    out = dot(r, weights, v, ((rank - 1,), (rank - 2,)), (axes, axes), hint="out")
    return r.reshape(out, r.op.result.type.shape)


def _shared_heads(r: Rewriter, batch: Shape, k: Value, v: Value) -> tuple[Value, Value, int | None]:
    """Keys and values, and their number of heads where it is the same for both and not the queries'.

    Where keys and values have different numbers of heads, each is repeated to the queries'.
    """
    heads, key_heads, value_heads = batch[-1], k.type.shape[-3], v.type.shape[-3]
    if key_heads == value_heads:
        return k, v, key_heads if isinstance(key_heads, int) and key_heads != heads else None
    return _repeated(r, k, heads, "k"), _repeated(r, v, heads, "v"), None


def _repeated(r: Rewriter, x: Value, heads: Dim, hint: str) -> Value:
    *outer, own, length, size = x.type.shape
    if own == heads:
        return x
    assert isinstance(own, int)
    assert isinstance(heads, int)
    apart = r.reshape(x, (*outer, own, 1, length, size), hint=hint)
    wide = r.broadcast(apart, (*outer, own, heads // own, length, size), hint=hint)
    return r.reshape(wide, (*outer, heads, length, size), hint=hint)


def _split(batch: Shape, groups: int | None) -> Shape:
    """The batch axes with the heads (the last) split into groups and heads a group."""
    if groups is None:
        return batch
    heads = batch[-1]
    assert isinstance(heads, int)
    return (*batch[:-1], groups, heads // groups)


def _with_batch(r: Rewriter, x: Value, batch: Shape, split: Shape, hint: str) -> Value:
    """``x`` with the batch axes ``split``, by views."""
    *outer, length, size = x.type.shape
    if split != batch:
        if outer[-1] == batch[-1]:
            outer[-1:] = split[-2:]
        else:
            outer.append(1)
        x = r.reshape(x, (*outer, length, size), hint=hint)
    return r.broadcast(x, (*split, length, size), hint=hint)


def _split_mask(r: Rewriter, mask: Value, batch: Shape, groups: int | None) -> Value:
    if groups is None or mask.type.rank < 3:
        return mask
    *outer, heads, rows, columns = mask.type.shape
    apart = _split(batch, groups)[-2:] if heads == batch[-1] else (1, 1)
    return r.reshape(mask, (*outer, *apart, rows, columns), hint="mask")


def _scores(r: Rewriter, q: Value, k: Value, attributes: SdpaAttributes) -> Value:
    rank = q.type.rank
    axes = tuple(range(rank - 2))
    raw = dot(r, q, k, ((rank - 1,), (rank - 1,)), (axes, axes), dtype=compute_dtype(q.type.dtype), hint="raw_scores")
    head_size = q.type.shape[-1]
    scale = attributes.scale
    if scale is None:
        assert isinstance(head_size, int)
        scale = 1 / sqrt(head_size)
    scores = r.emit("mul", raw, r.constant(scale, raw), hint="scores")
    return _causal(r, scores) if attributes.causal else scores


def _causal(r: Rewriter, scores: Value) -> Value:
    rows, columns = scores.type.shape[-2:]
    device = scores.type.device
    i = r.emit("iota", attributes=IotaAttributes((rows, 1), 0, i64, device), hint="i")
    j = r.emit("iota", attributes=IotaAttributes((1, columns), 1, i64, device), hint="j")
    return _masked(r, scores, r.emit("le", j, i, hint="causal"))


def _masked(r: Rewriter, scores: Value, mask: Value) -> Value:
    if mask.type.dtype == bool_:
        return r.emit("select", mask, scores, r.constant(_MINUS_INFINITY, scores), hint="masked")
    return r.emit("add", scores, r.cast(mask, scores.type.dtype), hint="masked")


def _weights(r: Rewriter, scores: Value, axis: int) -> Value:
    """e / sum(e) with e = exp(x - max(x)); a maximum of -inf counts as 0, and then the sum of 0 as 1."""
    largest = r.keep(r.reduce("reduce_max", scores, [axis], hint="max"), scores, [axis])
    shift = _instead(r, largest, _MINUS_INFINITY, 0.0, "shift")
    powers = r.emit("exp", r.emit("sub", scores, shift, hint="shifted"))
    total = r.keep(r.reduce("reduce_sum", powers, [axis], hint="sum"), scores, [axis])
    return r.emit("div", powers, _instead(r, total, 0.0, 1.0, "divisor"))


def _instead(r: Rewriter, x: Value, number: float, other: float, hint: str) -> Value:
    """``other`` where ``x`` is ``number``, else ``x``."""
    found = r.emit("eq", x, r.constant(number, x))
    return r.emit("select", found, r.constant(other, x), x, hint=hint)


ATTENTION_RULES: tuple[Rule, ...] = (sdpa,)
