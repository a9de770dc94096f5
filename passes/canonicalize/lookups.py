# SPDX-License-Identifier: Apache-2.0
"""Lookups by positions that count along the axes: what they find is a view.

Masks are made so: ``padding[batch[:, None, None], keys[None, None, :]]`` with the numbers of all rows and keys. PyTorch
flattens the indexed axes first, so that the index is ``i * n + j`` and the source a reshape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusec.ir.attributes import ExtentAttributes, GatherAttributes, IotaAttributes, PermuteAttributes
from fusec.ir.index import Index, bounds, product
from fusec.ir.nodes import Op, Value
from fusec.ir.types import Dim
from fusec.passes.rewrite import Outcome, Rewriter, Rule, rule


@dataclass(frozen=True)
class _Linear:
    """An integer array whose element at i is the sum of ``steps[a] * i[a]`` and ``start``."""

    steps: tuple[Index, ...]
    start: Index


@rule("gather")
def lookup_of_positions(r: Rewriter) -> Outcome:
    """gather(reshape(x), i * n + j) ⇒ x, its axes permuted and broadcast, where i and j count along axes of x"""
    source, index = r.operands
    axis = r.op.expect(GatherAttributes).axis
    linear = _linear(r, index)
    if linear is None or linear.start != 0 or 0 in r.op.result.type.shape:
        return None
    whole, first, last = _opened(r, source, axis)
    inner = whole.type.shape[first:last]
    strides = [product(inner[k + 1 :]) for k in range(len(inner))]
    places: list[int | None] = []
    for step, extent in zip(linear.steps, index.type.shape, strict=True):
        if step == 0 or extent == 1:
            places.append(None)
            continue
        fits = (k for k, n in enumerate(inner) if n == extent and strides[k] == step and k not in places)
        place = next(fits, None)
        if place is None:
            return None
        places.append(place)
    if any(n != 1 and k not in places for k, n in enumerate(inner)):
        return None
    return _viewed(r, whole, first, last, places)


def _opened(r: Rewriter, source: Value, axis: int) -> tuple[Value, int, int]:
    """What a reshape made one axis of: the array before it, and which axes of it; the array itself where none did."""
    made = r.producer(source, "reshape")
    if made is not None:
        before, rank = made.operands[0], source.type.rank
        last = before.type.rank - (rank - 1 - axis)
        same = before.type.shape[:axis] == source.type.shape[:axis]
        if axis <= last and same and before.type.shape[last:] == source.type.shape[axis + 1 :]:
            return before, axis, last
    return source, axis, axis + 1


def _viewed(r: Rewriter, whole: Value, first: int, last: int, places: Sequence[int | None]) -> Value:
    """The axes from ``first`` on in the order of ``places``, each None an axis along which all is the same."""
    shape = whole.type.shape
    taken = [k for k in places if k is not None]
    order = [*range(first), *(first + k for k in taken), *range(last, len(shape))]
    unused = [k for k in range(first, last) if k - first not in taken]
    kept = r.reshape(whole, [n for k, n in enumerate(shape) if k not in unused], hint="kept")
    numbers = [k for k in range(len(shape)) if k not in unused]
    transposed = r.permute(kept, [numbers.index(k) for k in order], hint="transposed")
    ones: list[Dim] = [1 if k is None else shape[first + k] for k in places]
    spread = r.reshape(transposed, [*shape[:first], *ones, *shape[last:]], hint="spread")
    return r.broadcast(spread, r.op.result.type.shape, hint="all")


def _linear(r: Rewriter, value: Value) -> _Linear | None:
    """The value as a linear function of its position; None where it is none."""
    made = r.producer(value)
    shape = value.type.shape
    if made is None or not value.type.dtype.is_integer or value.type.dtype.bits < 32:  # it may wrap around
        return None
    flat = (0,) * len(shape)
    match made.name:
        case "constant":
            number = r.scalar(value)
            return _Linear(flat, number) if type(number) is int else None
        case "extent":
            return _Linear(flat, product(made.expect(ExtentAttributes).factors))
        case "iota":
            axis = made.expect(IotaAttributes).axis
            return _Linear(tuple(int(k == axis) for k in range(len(shape))), 0)
        case "broadcast" | "copy":
            inner = _linear(r, made.operands[0])
            return None if inner is None else _aligned(inner, made.operands[0].type.shape, shape)
        case "cast":
            return _linear(r, made.operands[0])
        case "permute":
            inner = _linear(r, made.operands[0])
            order = made.expect(PermuteAttributes).permutation
            return None if inner is None else _Linear(tuple(inner.steps[k] for k in order), inner.start)
        case "reshape":
            return _reshaped(_linear(r, made.operands[0]), made.operands[0].type.shape, shape)
        case "select":
            return _unwrapped(r, made)
        case "add" | "mul":
            parts = [_linear(r, operand) for operand in made.operands]
            if parts[0] is None or parts[1] is None:
                return None
            a, b = (_aligned(p, o.type.shape, shape) for p, o in zip(parts, made.operands) if p is not None)
            return _sum(a, b) if made.name == "add" else _product(a, b)
        case _:
            return None


def _unwrapped(r: Rewriter, select: Op) -> _Linear | None:
    """Of ``select(i < 0, i + n, i)`` it is i, where that is never negative."""
    condition, _, index = select.operands
    less = r.producer(condition, "lt")
    tested = _linear(r, less.operands[0]) if less is not None and r.scalar(less.operands[1]) == 0 else None
    lows = [bounds(n)[0] for n in (*tested.steps, tested.start)] if tested is not None else [None]
    if any(low is None or low < 0 for low in lows):
        return None
    inner = _linear(r, index)
    return None if inner is None else _aligned(inner, index.type.shape, select.result.type.shape)


def _aligned(inner: _Linear, of: Sequence[Dim], shape: Sequence[Dim]) -> _Linear:
    """The function over a shape that ``of`` is broadcast to."""
    steps = [0 if have == 1 else step for have, step in zip(of, inner.steps, strict=True)]
    return _Linear((*(0,) * (len(shape) - len(steps)), *steps), inner.start)


def _reshaped(inner: _Linear | None, of: Sequence[Dim], shape: Sequence[Dim]) -> _Linear | None:
    """Where axes of extent 1 come and go alone."""
    moving = [(n, step) for n, step in zip(of, inner.steps if inner is not None else ()) if n != 1]
    if inner is None or [n for n, _ in moving] != [n for n in shape if n != 1]:
        return None
    left = iter(moving)
    return _Linear(tuple(0 if n == 1 else next(left)[1] for n in shape), inner.start)


def _sum(a: _Linear, b: _Linear) -> _Linear:
    return _Linear(tuple(x + y for x, y in zip(a.steps, b.steps, strict=True)), a.start + b.start)


def _product(a: _Linear, b: _Linear) -> _Linear | None:
    for one, other in ((a, b), (b, a)):
        if not any(other.steps):
            return _Linear(tuple(step * other.start for step in one.steps), one.start * other.start)
    return None


LOOKUP_RULES: tuple[Rule, ...] = (lookup_of_positions,)
