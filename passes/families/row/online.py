# SPDX-License-Identifier: Apache-2.0
"""Reductions that need another one's result, and can still be made in the same pass over a row.

A row that no block holds is read chunk after chunk. ``sum(exp(x - max(x)))`` and ``sum((x - mean(x))²)`` would take a
pass of their own; what a running maximum or a mean of a chunk gives instead is put right afterwards:

- ``sum(exp(v - b) h) = exp(m - b) sum(exp(v - m) h)`` for any ``m`` of the row, here the maximum so far;
- ``sum((v - b)²) = sum((v - m)²) + d (n d - 2 sum(v - m))`` with ``d = b - m``, for ``m`` the mean so far: what is
  added is small beside the sum, so that no digits are lost, however the mean drifts along the row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from fusec.ir.nodes import Op, Value
from fusec.passes.squares import squared_difference

Kind = Literal["exponentials", "squares"]
Producers = Mapping[Value, Op]
Needs = Callable[[Value], frozenset[Op]]


@dataclass(frozen=True)
class Online:
    """``anchor`` adds up a function of ``value - base``; ``base`` is made of ``parent``, a reduction of ``value``.

    exponentials: the parent is a maximum; ``factors`` are what each exponential is multiplied or divided by.
    squares: the parent is a sum.
    """

    kind: Kind
    anchor: Op
    parent: Op
    value: Value
    base: Value
    factors: tuple[tuple[str, Value], ...] = ()

    @property
    def others(self) -> tuple[Value, ...]:
        """What is read of the group beside ``value``."""
        return (self.base, *(v for _, v in self.factors))


def online_sum(anchor: Op, producers: Producers, needs: Needs) -> Online | None:
    """How the anchor's sum can be made beside the reduction it needs; None where it needs a pass of its own.

    ``needs`` gives the reductions of the kernel whose results a value is made of.
    """
    if anchor.name != "reduce_sum":
        return None
    return _exponentials(anchor, anchor.operands[0], (), producers, needs) or _squares(anchor, producers, needs)


def is_one_or_more(anchor: Op, producers: Producers) -> bool:
    """Whether a reduction is ``sum(exp(x - max(x)))``, which is 1 at least, or NaN."""

    def needs(value: Value) -> frozenset[Op]:
        while (op := producers.get(value)) is not None and op.definition.kind == "view":
            value = op.operands[0]
        return frozenset() if op is None or op.definition.kind != "reduce" else frozenset((op,))

    found = _exponentials(anchor, anchor.operands[0], (), producers, needs) if anchor.name == "reduce_sum" else None
    same = found is not None and not found.factors
    return same and found is not None and found.parent.attributes == anchor.attributes


def _exponentials(
    anchor: Op, value: Value, factors: tuple[tuple[str, Value], ...], producers: Producers, needs: Needs
) -> Online | None:
    op = producers.get(_unwidened(value, producers))
    if op is None or op.result.type.shape != anchor.operands[0].type.shape:
        return None
    if op.name in ("mul", "div"):
        a, b = op.operands
        found = _exponentials(anchor, a, (*factors, (op.name, b)), producers, needs)
        if found is None and op.name == "mul":
            found = _exponentials(anchor, b, (*factors, ("mul", a)), producers, needs)
        return found
    if op.name != "exp":
        return None
    parent = _parent(producers.get(op.operands[0]), "reduce_max", needs)
    if parent is None:
        return None
    value, base = producers[op.operands[0]].operands
    return Online("exponentials", anchor, parent, value, base, factors)


def _unwidened(value: Value, producers: Producers) -> Value:
    """The value under casts that lose nothing: to a float type that holds it."""
    while (op := producers.get(value)) is not None and op.name == "cast":
        (source,) = op.operands
        if not (source.type.dtype.is_float and value.type.dtype.is_float):
            return value
        if source.type.dtype.bits >= value.type.dtype.bits:
            return value
        value = source
    return value


def _squares(anchor: Op, producers: Producers, needs: Needs) -> Online | None:
    centred = squared_difference(anchor, producers.get, _unwidened(anchor.operands[0], producers))
    parent = _parent(centred, "reduce_sum", needs)
    if centred is None or parent is None or not parent.result.type.dtype.is_float:
        return None
    value, base = centred.operands
    return Online("squares", anchor, parent, value, base)


def _parent(difference: Op | None, name: str, needs: Needs) -> Op | None:
    """The reduction ``name`` of a difference's left operand that the right one is made of."""
    if difference is None or difference.name != "sub":
        return None
    value, base = difference.operands
    if value.type.shape != difference.result.type.shape:
        return None
    return next((op for op in needs(base) if op.name == name and op.operands[0] is value), None)
