"""Scaled dot-product attention opened into dots, a mask and a softmax."""

from __future__ import annotations

from math import sqrt

import numpy as np

from fusec.ir.attributes import IotaAttributes, SdpaAttributes
from fusec.ir.graph import Value
from fusec.ir.ops.definition import Array
from fusec.ir.types import Dim, bool_, i64
from fusec.passes.canonicalize.composites import compute_dtype, softmax_of
from fusec.passes.canonicalize.contractions import dot
from fusec.passes.rewrite import Outcome, Reject, Rewriter, Rule, rule

_MINUS_INFINITY = -float("inf")
_MASK_LIMIT = 1 << 24
"""Elements of a mask that are worth computing at compile time to see whether a row is masked whole."""

Shape = tuple[Dim, ...]


@rule("sdpa")
def sdpa(r: Rewriter) -> Outcome:
    """sdpa(q, k, v, mask) ⇒ dot(softmax(masked(dot(q, k) · scale)), v)

    Heads that share keys become two axes ``[groups, heads a group]``, and the keys a broadcast view over the second.
    """
    q, k, v, *mask = r.operands
    attributes = r.op.attributes
    assert isinstance(attributes, SdpaAttributes)
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
    weights = scores if no_keys else softmax_of(r, scores, rank - 1)[0]
    weights = r.cast(weights, v.type.dtype, hint="weights")
    out = dot(r, weights, v, ((rank - 1,), (rank - 2,)), (axes, axes), hint="out")
    for value in masks:
        if not no_keys and not _keeps_a_key(r, value):
            out = _zero_where_empty(r, value, out)
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
    products = dot(
        r, q, k, ((rank - 1,), (rank - 1,)), (axes, axes), dtype=compute_dtype(q.type.dtype), hint="products"
    )
    head_size = q.type.shape[-1]
    scale = attributes.scale
    if scale is None:
        assert isinstance(head_size, int)
        scale = 1 / sqrt(head_size)
    scores = r.emit("mul", products, r.constant(scale, products), hint="scores")
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


def _zero_where_empty(r: Rewriter, mask: Value, out: Value) -> Value:
    """Zeros for a query whose keys are all masked, as PyTorch's attention gives; the softmax alone gives NaN."""
    axes = [mask.type.rank - 1] if mask.type.rank else []
    if mask.type.dtype == bool_:
        some = r.keep(r.reduce("reduce_any", mask, axes, hint="some"), mask, axes)
        return r.emit("select", some, out, r.constant(0.0, out), hint="safe")
    largest = r.keep(r.reduce("reduce_max", mask, axes, hint="most"), mask, axes)
    empty = r.emit("eq", largest, r.constant(_MINUS_INFINITY, largest), hint="empty")
    return r.emit("select", empty, r.constant(0.0, out), out, hint="safe")


def _keeps_a_key(r: Rewriter, mask: Value) -> bool:
    """True when the mask is made of indices alone and leaves each query at least one key."""
    array = _evaluated(r, mask, {})
    if array is None or array.ndim == 0 or 0 in array.shape:
        return False
    open_ = array if mask.type.dtype == bool_ else np.asarray(array > _MINUS_INFINITY)
    return bool(np.all(np.any(open_, axis=-1)))


def _evaluated(r: Rewriter, value: Value, memo: dict[Value, Array | None]) -> Array | None:
    """The elements of a value that depends on no input and is small enough to compute here, else None."""
    if value in memo:
        return memo[value]
    memo[value] = None
    made = r.producer(value)
    if made is None or len(made.results) != 1 or not value.type.is_static or value.type.size > _MASK_LIMIT:
        return None
    if made.definition.kind not in ("create", "elementwise", "view", "data", "reduce"):
        return None
    operands: list[Array] = []
    for operand in made.operands:
        array = _evaluated(r, operand, memo)
        if array is None:
            return None
        operands.append(array)
    (memo[value],) = made.definition.reference(operands, made.attributes)
    return memo[value]


ATTENTION_RULES: tuple[Rule, ...] = (sdpa,)
