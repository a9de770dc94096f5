# SPDX-License-Identifier: Apache-2.0
"""Images with their channels last: what is done to one in PyTorch's order is done in the order it has in memory.

A convolution's result has its channels last, and a view puts them in front. These rules move the view behind what
follows, so that values between convolutions stay as convolutions read them, and two views meet and go away. Only
outputs that have another order in eager are put in it.
"""

from __future__ import annotations

from dataclasses import replace

from fusec.ir.attributes import ConcatAttributes, PadAttributes, PermuteAttributes, ReduceAttributes, SliceAttributes
from fusec.ir.nodes import Op, Value
from fusec.ir.ops import OPS
from fusec.passes.rewrite import Outcome, Rewriter, Rule, rule

_ELEMENTWISE = tuple(name for name, op in OPS.items() if op.kind == "elementwise")

_TRACED = 16
"""Elementwise ops between a convolution of signals and a view of its result, up to which it is found."""


@rule(*_ELEMENTWISE)
def elementwise_of_image(r: Rewriter) -> Outcome:
    """f(permute(x), y) ⇒ permute(f(x, permute⁻¹(y))), where the permute puts channels in front"""
    order = _order(r, r.operands)
    if order is None or r.op.result.type.rank != len(order):
        return None
    made = r.emit(r.op.name, *(_behind(r, v, order) for v in r.operands), attributes=r.op.attributes)
    return r.permute(made, order)


@rule("concat")
def concat_of_images(r: Rewriter) -> Outcome:
    """concat(permute(x), permute(y)) ⇒ permute(concat(x, y))"""
    order = _order(r, r.operands)
    if order is None or any(_image(r, v) is None for v in r.operands):
        return None
    attributes = r.op.expect(ConcatAttributes)
    joined = replace(attributes, axis=order[attributes.axis])
    return r.permute(r.emit("concat", *(_behind(r, v, order) for v in r.operands), attributes=joined), order)


@rule("pad")
def pad_of_image(r: Rewriter) -> Outcome:
    """pad(permute(x)) ⇒ permute(pad(x))"""
    x, fill = r.operands
    order = _order(r, (x,))
    if order is None:
        return None
    attributes = r.op.expect(PadAttributes)
    position = _inverse(order)
    low, high = (tuple(given[k] for k in position) for given in (attributes.low, attributes.high))
    return r.permute(r.emit("pad", _behind(r, x, order), fill, attributes=PadAttributes(low, high)), order)


@rule("slice")
def slice_of_image(r: Rewriter) -> Outcome:
    """slice(permute(x)) ⇒ permute(slice(x))"""
    order = _order(r, r.operands)
    if order is None:
        return None
    cut, position = r.op.expect(SliceAttributes), _inverse(order)
    starts, stops = (tuple(given[k] for k in position) for given in (cut.starts, cut.stops))
    moved = SliceAttributes(starts, stops, tuple(cut.steps[k] for k in position))
    taken = r.emit("slice", _behind(r, r.operands[0], order), attributes=moved)
    return r.permute(taken, order)


@rule(*(name for name, op in OPS.items() if op.kind == "reduce" and not name.startswith("arg")))
def reduction_of_image(r: Rewriter) -> Outcome:
    """reduce(permute(x)) ⇒ permute(reduce(x))"""
    order = _order(r, r.operands)
    if order is None:
        return None
    attributes = r.op.expect(ReduceAttributes)
    axes = tuple(sorted(order[a] for a in attributes.axes))
    made = r.emit(r.op.name, _behind(r, r.operands[0], order), attributes=replace(attributes, axes=axes))
    left = [k for k in range(len(order)) if k not in axes]
    return r.permute(made, [left.index(order[a]) for a in range(len(order)) if a not in attributes.axes])


def _order(r: Rewriter, values: tuple[Value, ...]) -> tuple[int, ...] | None:
    """The first permutation of the values that puts an image's channels in front."""
    return next((order for v in values if (order := _image(r, v)) is not None), None)


def _image(r: Rewriter, value: Value) -> tuple[int, ...] | None:
    view = r.producer(value, "permute")
    if view is None:
        return None
    rank, order = value.type.rank, view.expect(PermuteAttributes).permutation
    if rank < 3 or order != (0, rank - 1, *range(1, rank - 1)):
        return None
    return order if rank > 3 or _is_convolved(r, view.operands[0]) else None


def _is_convolved(r: Rewriter, value: Value) -> bool:
    """Whether a value is made of a convolution's result, not of any other matmul's, by elementwise ops."""
    for _ in range(_TRACED):
        made = r.producer(value)
        if made is None or not made.operands:
            return False
        if made.name == "dot":
            return _shows_windows(r, made)
        if made.definition.kind not in ("elementwise", "data"):
            return False
        value = next((v for v in made.operands if v.type.shape == made.result.type.shape), made.operands[0])
    return False


def _shows_windows(r: Rewriter, dot: Op) -> bool:
    value = dot.operands[0]
    while (made := r.producer(value)) is not None and made.definition.kind == "view":
        if made.name == "windows":
            return True
        value = made.operands[0]
    return False


def _behind(r: Rewriter, value: Value, order: tuple[int, ...]) -> Value:
    """A value with its axes in the order of memory."""
    if not value.type.rank:
        return value
    rank = len(order)
    whole = r.reshape(value, (*(1 for _ in range(rank - value.type.rank)), *value.type.shape))
    view = r.producer(whole, "permute")
    if view is not None and view.attributes == PermuteAttributes(order):
        return view.operands[0]
    return r.permute(whole, _inverse(order))


def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(order.index(k) for k in range(len(order)))


LAYOUT_RULES: tuple[Rule, ...] = (
    elementwise_of_image,
    concat_of_images,
    pad_of_image,
    slice_of_image,
    reduction_of_image,
)
