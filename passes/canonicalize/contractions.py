# SPDX-License-Identifier: Apache-2.0
"""linear and matmul as one ``dot``, and the views on a dot's operands folded into its axes."""

from __future__ import annotations

from dataclasses import replace

from fusec.ir.attributes import CastAttributes, DotAttributes, PermuteAttributes
from fusec.ir.nodes import Value
from fusec.ir.ops.contract import free_axes
from fusec.ir.ops.shapes import broadcast_shapes
from fusec.ir.types import DType, i8, i32
from fusec.passes.canonicalize.composites import compute_dtype, upcast
from fusec.passes.rewrite import Outcome, Reject, Rewriter, Rule, rule


def dot(
    r: Rewriter,
    lhs: Value,
    rhs: Value,
    contract: tuple[tuple[int, ...], tuple[int, ...]],
    batch: tuple[tuple[int, ...], tuple[int, ...]] = ((), ()),
    dtype: DType | None = None,
    hint: str = "dot",
) -> Value:
    """Emits a contraction of the axes ``contract`` of ``lhs`` and ``rhs``; ``batch`` axes are kept side by side."""
    attributes = DotAttributes(*contract, *batch, None if dtype == lhs.type.dtype else dtype)
    return r.emit("dot", lhs, rhs, attributes=attributes, hint=hint)


@rule("linear")
def linear(r: Rewriter) -> Outcome:
    """linear(x, w, b) ⇒ dot(x, w) over their last axes, + b"""
    x, w, *bias = r.operands
    dtype = compute_dtype(x.type.dtype) if bias else x.type.dtype
    result = dot(r, x, w, ((x.type.rank - 1,), (1,)), dtype=dtype)
    if bias:
        result = r.emit("add", result, upcast(r, bias[0]), hint="biased")
    if result.type.dtype == x.type.dtype:
        return result
    return r.emit("cast", result, attributes=CastAttributes(x.type.dtype, True))


@rule("matmul")
def matmul(r: Rewriter) -> Outcome:
    """matmul(a, b) ⇒ dot(a, b), the axes that only one of them has made its free axes

    Where both have batch axes, those that one of them lacks or has with extent 1 become ``broadcast`` views.
    """
    lhs, rhs = r.operands
    shape = r.op.result.type.shape
    if lhs.type.rank == 1 or rhs.type.rank == 1 or not _batched(lhs) or not _batched(rhs):
        return _unbatched(r, lhs, rhs)
    batch = broadcast_shapes(lhs.type.shape[:-2], rhs.type.shape[:-2])
    lhs = r.broadcast(lhs, (*batch, *lhs.type.shape[-2:]), hint="lhs")
    rhs = r.broadcast(rhs, (*batch, *rhs.type.shape[-2:]), hint="rhs")
    axes = tuple(range(len(batch)))
    return r.reshape(dot(r, lhs, rhs, ((len(batch) + 1,), (len(batch),)), (axes, axes)), shape)


def _batched(value: Value) -> bool:
    return any(extent != 1 for extent in value.type.shape[:-2])


def _unbatched(r: Rewriter, lhs: Value, rhs: Value) -> Value:
    """The matmul where one side at most has batch axes: they are free axes of that side."""
    if lhs.type.rank > 2 and not _batched(lhs):
        lhs = r.reshape(lhs, lhs.type.shape[-2:], hint="lhs")
    if rhs.type.rank > 2 and not _batched(rhs):
        rhs = r.reshape(rhs, rhs.type.shape[-2:], hint="rhs")
    result = dot(r, lhs, rhs, ((lhs.type.rank - 1,), (max(rhs.type.rank - 2, 0),)))
    if lhs.type.rank == 2 and rhs.type.rank > 2:
        batch = rhs.type.rank - 2
        result = r.permute(result, [*range(1, batch + 1), 0, batch + 1])
    return r.reshape(result, r.op.result.type.shape)


@rule("dot")
def dot_of_permuted(r: Rewriter) -> Outcome:
    """dot(permute(a), permute(b)) ⇒ dot(a, b) with its axes renamed, where the free axes keep their order"""
    attributes = r.op.expect(DotAttributes)
    lhs, rhs = r.operands
    left = _folded(r, lhs, attributes.lhs_batch, attributes.lhs_contract)
    if isinstance(left, tuple):
        lhs, batch, contract = left
        attributes = replace(attributes, lhs_batch=batch, lhs_contract=contract)
    right = _folded(r, rhs, attributes.rhs_batch, attributes.rhs_contract)
    if isinstance(right, tuple):
        rhs, batch, contract = right
        attributes = replace(attributes, rhs_batch=batch, rhs_contract=contract)
    if isinstance(left, tuple) or isinstance(right, tuple):
        return r.emit("dot", lhs, rhs, attributes=attributes)
    return left or right


def _folded(
    r: Rewriter, value: Value, batch: tuple[int, ...], contract: tuple[int, ...]
) -> tuple[Value, tuple[int, ...], tuple[int, ...]] | Reject | None:
    """What ``value`` permutes, with the batch and contracted axes by their numbers there; None if it is no permute."""
    view = r.producer(value, "permute")
    if view is None or not isinstance(view.attributes, PermuteAttributes):
        return None
    names, source = view.attributes.permutation, view.operands[0]
    free = [names[axis] for axis in free_axes(value.type.rank, batch, contract)]
    if free != sorted(free):
        return Reject(f"{value} puts the free axes of {source} in the order {free}, and so would the result be")
    return source, tuple(names[a] for a in batch), tuple(names[a] for a in contract)


@rule("dot")
def dot_of_widened(r: Rewriter) -> Outcome:
    """dot(cast(a: i8, i32), cast(b: i8, i32)) ⇒ dot(a, b) {dtype=i32}"""
    attributes = r.op.expect(DotAttributes)
    casts = [r.producer(v, "cast") for v in r.operands]
    if any(v.type.dtype is not i32 for v in (*r.operands, r.op.result)):
        return None
    sources = [made.operands[0] for made in casts if made is not None]
    if len(sources) != 2 or any(v.type.dtype is not i8 for v in sources):
        return None
    return r.emit("dot", *sources, attributes=replace(attributes, dtype=i32))


CONTRACTION_RULES: tuple[Rule, ...] = (linear, matmul, dot_of_permuted, dot_of_widened)
