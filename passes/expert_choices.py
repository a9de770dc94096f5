# SPDX-License-Identifier: Apache-2.0
"""Masks that say which rows an expert has: comparisons of one array with a number each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from fusec.ir.attributes import Attributes, IotaAttributes, ReduceAttributes, Scalar, ShapeAttributes, SliceAttributes
from fusec.ir.graph import Graph
from fusec.ir.index import product
from fusec.ir.nodes import Op, Value
from fusec.ir.types import Dim
from fusec.passes.canonicalize import canonicalize
from fusec.passes.cse import cse
from fusec.passes.dce import dce
from fusec.passes.fold import fold
from fusec.passes.rewrite import Rewriter, Sweep


class Differs(Exception):  # noqa: N818 - not an error: the loop stays
    """Experts are not computed alike."""


class Producers(Protocol):
    """What is asked of a graph."""

    def producer(self, value: Value, *names: str) -> Op | None: ...

    def scalar(self, value: Value) -> Scalar | None: ...


@dataclass(frozen=True)
class Choice:
    """``views(eq(index, number))``, over the axes ``any`` of which there is one: which rows an expert has."""

    index: Value
    number: int
    views: tuple[tuple[str, Attributes], ...]


def most_at_once(graph: Graph) -> int:
    """How many of the masks that a graph gives may hold at the same position at most; 0 where that is not known."""
    graph = dce(cse(fold(canonicalize(graph))))
    sweep = Sweep(graph)
    for op in graph.ops:
        sweep.append(op)
    try:
        found = [choice_of(Rewriter(sweep, graph.ops[-1]), mask) for mask in graph.outputs]
    except (Differs, IndexError):
        return 0
    first = found[0]
    alike = all(c.index is first.index and c.views == first.views for c in found)
    if not alike or len({c.number for c in found}) < len(found):
        return 0
    if all(name != "reduce_any" for name, _ in first.views):
        return 1
    (_, reduced), shape = first.views[0], first.index.type.shape
    known = len(first.views) == 1 and isinstance(reduced, ReduceAttributes) and reduced.axes == (1,) and len(shape) == 2
    return shape[1] if known and isinstance(shape[1], int) else 0


def choice_of(r: Producers, mask: Value) -> Choice:
    """Takes a mask apart. A slice of a comparison with an iota is a comparison with a number."""
    views: list[tuple[str, Attributes]] = []
    value = mask
    while True:
        op = r.producer(value)
        if op is None:
            raise Differs
        if op.name == "eq":
            break
        if op.name in ("copy", "cast") or (op.name == "ne" and _number(r, op.operands[1]) == 0):
            value = op.operands[0]
            continue
        if op.definition.kind != "view" and op.name != "reduce_any":
            raise Differs
        if op.name == "reduce_any" and views:
            raise Differs
        views.append((op.name, op.attributes))
        value = op.operands[0]
    index, other = op.operands
    number = _number(r, other)
    if number is not None:
        if index.type.shape != op.result.type.shape:
            raise Differs
        return Choice(index, number, tuple(reversed(views)))
    return _of_classes(r, op, tuple(reversed(views)))


def _of_classes(r: Producers, op: Op, views: tuple[tuple[str, Attributes], ...]) -> Choice:
    """A slice of ``eq(index, iota)`` at one class: follows the axis of classes through views."""
    index, classes = op.operands
    made = r.producer(classes, "iota")
    shape = op.result.type.shape
    if made is None or not isinstance(made.attributes, IotaAttributes) or not shape:
        raise Differs
    axis = made.attributes.axis + len(shape) - classes.type.rank
    if index.type.rank != len(shape) or index.type.shape[axis] != 1:
        raise Differs
    number: int | None = None
    kept: list[tuple[str, Attributes]] = [("broadcast", ShapeAttributes((*shape[:axis], 1, *shape[axis + 1 :])))]
    if index.type.shape == (*shape[:axis], 1, *shape[axis + 1 :]):
        kept = []
    for name, attributes in views:
        if number is not None:
            kept.append((name, attributes))
            continue
        shape, axis, number = _follow(name, attributes, shape, axis, kept)
    if number is None:
        raise Differs
    return Choice(index, number, tuple(kept))


def _follow(
    name: str, attributes: Attributes, shape: tuple[Dim, ...], axis: int, kept: list[tuple[str, Attributes]]
) -> tuple[tuple[Dim, ...], int, int | None]:
    """One view of an array with an axis of classes, written for one class: what is known behind it."""
    classes = shape[axis]
    if name == "permute":
        order = attributes.permutation  # type: ignore[attr-defined]
        kept.append((name, attributes))
        return tuple(shape[a] for a in order), order.index(axis), None
    if name == "reshape":
        assert isinstance(attributes, ShapeAttributes)
        new = attributes.shape
        places = [a for a in range(len(new)) if new[a] == classes and product(new[:a]) == product(shape[:axis])]
        if not places:
            raise Differs
        at = places[0]
        kept.append((name, ShapeAttributes((*new[:at], 1, *new[at + 1 :]))))
        return new, at, None
    if isinstance(attributes, SliceAttributes):
        start, stop = attributes.starts[axis], attributes.stops[axis]
        if not isinstance(start, int) or stop != start + 1:
            raise Differs
        low, high = attributes.starts, attributes.stops
        cut = SliceAttributes(
            (*low[:axis], 0, *low[axis + 1 :]), (*high[:axis], 1, *high[axis + 1 :]), attributes.steps
        )
        here = (*shape[:axis], 1, *shape[axis + 1 :])
        if cut != SliceAttributes((0,) * len(here), here, (1,) * len(here)):
            kept.append((name, cut))
        return here, axis, start
    raise Differs


def _number(r: Producers, value: Value) -> int | None:
    found = r.scalar(value)
    return found if isinstance(found, int) and not isinstance(found, bool) else None
