# SPDX-License-Identifier: Apache-2.0
"""Loops over experts whose rows data chooses: rows are sorted by expert, and the loop's body is maps of all of them.

``for e in range(E): out.index_add_(0, tok, f(x[tok], w[e]))`` with ``tok`` from ``torch.where(index == e)`` is captured
as sums of all candidate rows under a mask, one sum for each expert (``scatter_add_where``). The masks compare one array
with a number each, so that each candidate has one expert at most. Sorted by expert, in order, candidates are groups of
rows with ends that are data: products with ``w[e]`` are one ``grouped_dot``, maps are maps of all rows, and one
``scatter_add`` adds them, in the order in which the loop does. On a GPU each row of the result reads those that are
added to it where they lie among the sorted ones: what follows the last product is computed in the order of candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from fusec.errors import UnsupportedOpError
from fusec.ir.attributes import (
    Attributes,
    ConcatAttributes,
    ConstantAttributes,
    DotAttributes,
    ExternAttributes,
    GatherAttributes,
    GroupedDotAttributes,
    IotaAttributes,
    ReduceAttributes,
    SliceAttributes,
)
from fusec.ir.graph import Graph
from fusec.ir.index import mul
from fusec.ir.nodes import Op, Value
from fusec.ir.types import Dim, i64
from fusec.passes.dce import dce
from fusec.passes.expert_choices import Choice, Differs, choice_of
from fusec.passes.rewrite import Outcome, Rewriter, Rule, rewrite, rule
from fusec.passes.row_order import rows_by_group
from fusec.passes.row_sums import sum_of_known_rows

Parts = tuple[Value, ...]

MOST_SUMS = 4
"""Sums of chosen rows that belong to no expert, up to which all candidates are computed instead."""


def group_by_expert(graph: Graph, *, gpu: bool = False) -> Graph:
    """Afterwards no row is added under a mask. UnsupportedOpError for rows that would be multiplied in vain.

    ``gpu``: rows are sorted by kernels, and read where they are added.
    """
    if not any(op.name == "scatter_add_where" for op in graph.ops):
        return graph
    uses, outputs, producers = graph.uses(), set(graph.outputs), graph.producers()
    sums = [op for op in graph.ops if op.name == "scatter_add_where"]
    went_on = {op.operands[0] for op in sums if producers.get(op.operands[0]) in sums}
    inner = {value for value in went_on if len(uses[value]) == 1 and value not in outputs}
    multiplied = {op.result for op in sums if _multiplies(producers.get, op.operands[2])}

    @rule("scatter_add_where")
    def rows_by_expert(r: Rewriter) -> Outcome:
        """add_where(add_where(x, t, f(w[0]), i == 0), t, f(w[1]), i == 1) ⇒ scatter_add(x, t', f(grouped w))"""
        if r.op.result in inner:
            return None  # the last sum of a loop is
        if r.op.operands[0] not in inner and r.op.result not in multiplied:
            return None  # one set of rows: all candidates take no longer than to sort them
        return _Experts(r, gpu).whole()

    graph = dce(rewrite(graph, (rows_by_expert,)))
    left = [op for op in graph.ops if op.name == "scatter_add_where"]
    producers = graph.producers()
    for op in left:
        if len(left) > MOST_SUMS or _multiplies(producers.get, op.operands[2]):
            raise UnsupportedOpError(
                "data chooses rows, and it is not seen that each has one expert at most and that experts are alike",
                op.location,
            )
    return rewrite(graph, (_sums_of_all_rows(gpu),)) if left else graph


def _sums_of_all_rows(gpu: bool) -> Rule:
    @rule("scatter_add_where")
    def sum_of_all_rows(r: Rewriter) -> Outcome:
        """scatter_add_where(x, t, v, m) ⇒ scatter_add(x, t, select(m, v, -0.0))"""
        base, index, value, mask = r.operands
        has = r.reshape(mask, (*mask.type.shape, *(1 for _ in range(value.type.rank - 1))))
        own = _or_nothing(r, has, value)
        known = sum_of_known_rows(r, base, index, own) if gpu else None
        return known if known is not None else _added(r, base, index, own)

    return sum_of_all_rows


def _multiplies(producer: Callable[[Value], Op | None], value: Value) -> bool:
    """Whether a value is made of products: of all candidates they may take far longer than of those that are chosen."""
    seen, found = set[Op](), [value]
    while found:
        made = producer(found.pop())
        if made is None or made in seen:
            continue
        if made.definition.kind in ("dot", "extern"):
            return True
        seen.add(made)
        found += made.operands
    return False


def _or_nothing(r: Rewriter, has: Value, value: Value) -> Value:
    """The value where a condition holds, else -0.0: added to a number it is that number."""
    nothing = -0.0 if value.type.dtype.is_float else 0
    return r.emit("select", has, value, r.constant(nothing, value))


def _added(r: Rewriter, base: Value, places: Value, value: Value) -> Value:
    """The sum of a value and rows at places, one after another. Half types are rounded after each term, as eager's."""
    if not base.type.dtype.is_half:
        return r.emit("scatter_add", base, places, value, attributes=GatherAttributes(0))
    reason = "adds through an index, and rounds after each term"
    call = ExternAttributes("aten.index_add.default", "($0, 0, $1, $2), {}", (base.type,), reason)
    return r.emit("extern", base, places, value, attributes=call)


class _Experts:
    """The experts of one loop, first to last, as one value of all rows."""

    def __init__(self, r: Rewriter, gpu: bool) -> None:
        self.r, self.gpu = r, gpu
        self.made: dict[tuple[Parts, bool], Value] = {}

    def whole(self) -> Value | None:
        """What the loop adds up to; None where its steps are not alike."""
        steps = self._steps()
        base, index = steps[0].operands[:2]
        parts = tuple(op.operands[2] for op in steps)
        try:
            self._sort([op.operands[3] for op in steps])
            if self.places is not None:
                value = self._own(self._lift(parts, given=True), self.experts)
                found = sum_of_known_rows(self.r, base, index, value, self.repeats)
                if found is not None:
                    return found
            value = self._own(self._lift(parts), self.number)
        except Differs:
            return None
        return _added(self.r, base, self._picked(index), value)

    def _steps(self) -> list[Op]:
        found: list[Op] = []
        op: Op | None = self.r.op
        while op is not None and (not found or op.operands[1] is found[0].operands[1]):
            found.append(op)
            op = self.r.producer(op.operands[0], "scatter_add_where")
        return found[::-1]

    # Which rows there are

    def _sort(self, masks: Sequence[Value]) -> None:
        """Finds each row's expert, and sorts rows by it; those without one come last."""
        choices = [choice_of(self.r, mask) for mask in masks]
        first = choices[0]
        for n, choice in enumerate(choices):
            if choice.index is not first.index or choice.number != first.number + n or choice.views != first.views:
                raise Differs
        self.count, self.first = len(masks), first.number
        rows, self.repeats = self._experts_of_rows(first, masks[0])
        number = self._plus(self.r.cast(rows, i64), -self.first)
        at_least, below = self._compare("ge", number, 0), self._compare("lt", number, self.count)
        inside = self.r.emit("logical_and", at_least, below)
        number = self.r.emit("select", inside, number, self._scalar(self.count))
        self.rows = number.type.shape[0]
        order = rows_by_group(self.r, number, self.count, gpu=self.gpu)
        self.order, self.ends, self.places = order.order, order.ends, order.places
        self.experts = number
        self.number = self.r.emit("gather", number, self.order, attributes=GatherAttributes(0), hint="expert")

    def _experts_of_rows(self, choice: Choice, mask: Value) -> tuple[Value, int]:
        """A vector of each row's expert, and how often a row of the loop is a row: an index may name several."""
        if choice.views[:1] and choice.views[-1][0] == "reduce_any":
            *views, (_, reduced) = choice.views
            found = self._seen(choice.index, views)
            assert isinstance(reduced, ReduceAttributes)
            if found.type.rank != 2 or reduced.axes != (1,):
                raise Differs
            rows, repeats = found.type.shape
            if not isinstance(repeats, int):
                raise Differs
            found = self._once(found, repeats)
            return self.r.reshape(found, (mul(rows, repeats),)), repeats
        found = self._seen(choice.index, choice.views)
        if found.type.shape != mask.type.shape:
            raise Differs
        return found, 1

    def _once(self, experts: Value, count: int) -> Value:
        """A row's experts, with -1 less than the first for one that it has had."""
        rows = experts.type.shape[0]
        if count == 1:
            return experts
        one, other = self.r.reshape(experts, (rows, count, 1)), self.r.reshape(experts, (rows, 1, count))
        same = self.r.emit("eq", one, other)
        here, there = (self._iota((1, count, count), axis) for axis in (1, 2))
        before = self.r.emit("logical_and", same, self.r.emit("lt", there, here))
        had = self.r.reduce("reduce_any", before, (2,))
        return self.r.emit("select", had, self.r.constant(self.first - 1, experts), experts)

    def _seen(self, index: Value, views: Sequence[tuple[str, Attributes]]) -> Value:
        for name, attributes in views:
            index = self.r.emit(name, index, attributes=attributes)
        return index

    # Values of all rows

    def _lift(self, parts: Parts, *, given: bool = False) -> Value:
        """The value of all rows, sorted or as they are given, whose parts are of one expert each for all candidates."""
        if (parts, given) not in self.made:
            self.made[parts, given] = self._lifted(parts, given)
        return self.made[parts, given]

    def _lifted(self, parts: Parts, given: bool) -> Value:
        first = parts[0]
        if all(v is first for v in parts) and (len(parts) > 1 or not self._is_of_products(first)):
            return self._picked(first, given=given)
        makers = self._alike(parts)
        op = makers[0]
        if op.name == "dot":
            return self._product(makers, given)
        if op.definition.kind == "elementwise":
            return self._map(makers, given)
        if isinstance(op.attributes, ReduceAttributes) and 0 not in op.attributes.axes:
            rows = self._lift(_operand(makers, 0), given=given)
            return self.r.emit(op.name, rows, attributes=op.attributes)
        if isinstance(op.attributes, SliceAttributes) and _keeps_rows(op):
            rows = self._lift(_operand(makers, 0), given=given)
            shape = op.operands[0].type.shape
            cut = (
                replace(op.attributes, stops=(self.rows, *op.attributes.stops[1:]))
                if op.attributes.stops[0] == shape[0]
                else op.attributes
            )
            return self.r.emit("slice", rows, attributes=cut)
        if op.name == "reshape" and op.operands[0].type.shape[:1] == op.result.type.shape[:1]:
            rows = self._lift(_operand(makers, 0), given=given)
            return self.r.reshape(rows, (self.rows, *op.result.type.shape[1:]))
        if op.name == "broadcast" and op.operands[0].type.shape[:1] == op.result.type.shape[:1]:
            rows = self._lift(_operand(makers, 0), given=given)
            return self.r.broadcast(rows, (self.rows, *op.result.type.shape[1:]))
        raise Differs

    def _is_of_products(self, value: Value) -> bool:
        """Whether a value of a loop of one step is made of products; rows that are found by a position are not."""
        return self.r.producer(value, "gather") is None and _multiplies(self.r.producer, value)

    def _alike(self, parts: Parts) -> list[Op]:
        makers = [op for v in parts if (op := self.r.producer(v)) is not None]
        if len(makers) < len(parts) or any(op.name != makers[0].name for op in makers):
            raise Differs
        if any(op.attributes != makers[0].attributes or op.result.type != makers[0].result.type for op in makers):
            raise Differs
        return makers

    def _map(self, makers: Sequence[Op], given: bool) -> Value:
        result = makers[0].result.type
        operands = []
        for place in range(len(makers[0].operands)):
            parts = _operand(makers, place)
            type_ = parts[0].type
            if type_.rank == result.rank and type_.shape[0] == result.shape[0] and result.shape[0] != 1:
                operands.append(self._lift(parts, given=given))
            elif all(v is parts[0] for v in parts):
                operands.append(parts[0])
            else:
                operands.append(self._of_expert(parts, result.rank, self.experts if given else self.number))
        return self.r.emit(makers[0].name, *operands, attributes=makers[0].attributes, hint=makers[0].result.name)

    def _of_expert(self, parts: Parts, rank: int, experts: Value) -> Value:
        """What each expert has one of, a number or a row, for each row of some experts."""
        numbers = [self._number(v) for v in parts]
        if parts[0].type.rank == 0 and None not in numbers:
            known = [n for n in numbers if n is not None]
            if known != list(range(known[0], known[0] + len(known))) or parts[0].type.dtype.kind not in ("int", "uint"):
                raise Differs
            made = self.r.cast(self._plus(experts, known[0]), parts[0].type.dtype)
            return self.r.reshape(made, (self.rows, *(1 for _ in range(rank - 1))))
        array = self._array(parts)
        if array is None:
            if any(v.type != parts[0].type for v in parts):
                raise Differs
            rows = [self.r.reshape(v, (1, *v.type.shape)) for v in parts]
            array = self.r.emit("concat", *rows, attributes=ConcatAttributes(0)) if len(rows) > 1 else rows[0]
        within = self.r.emit("minimum", experts, self._scalar(self.count - 1))  # the last one for rows that have none
        found = self.r.emit("gather", array, within, attributes=GatherAttributes(0))
        shape = found.type.shape[1:]
        if len(shape) >= rank and shape[0] == 1:
            shape = shape[1:]
        if len(shape) >= rank:
            raise Differs
        return self.r.reshape(found, (self.rows, *(1 for _ in range(rank - 1 - len(shape))), *shape))

    def _product(self, makers: Sequence[Op], given: bool) -> Value:
        """A product of sorted rows; with ``given`` its rows where they were."""
        attributes = makers[0].expect(DotAttributes)
        rows, matrix = makers[0].operands
        plain = rows.type.rank == 2 and matrix.type.rank == 2 and attributes.lhs_contract == (1,)
        if not plain or attributes.lhs_batch:
            raise Differs
        right = _operand(makers, 1)
        if all(v is matrix for v in right) and len(right) > 1:
            return self.r.emit("dot", self._lift(_operand(makers, 0), given=given), matrix, attributes=attributes)
        if given:
            assert self.places is not None
            products = self._lift(tuple(op.result for op in makers))
            return self.r.emit("gather", products, self.places, attributes=GatherAttributes(0), hint="given")
        left = self._lift(_operand(makers, 0))
        made = GroupedDotAttributes(attributes.rhs_contract[0] + 1, (), attributes.dtype)
        array = self._array(right)
        if array is not None:
            return self.r.emit("grouped_dot", left, array, self.ends, attributes=made, hint="products")
        if any(v.type != matrix.type for v in right):
            raise Differs
        made = replace(made, apart=self.count)
        return self.r.emit("grouped_dot", left, *right, self.ends, attributes=made, hint="products")

    def _array(self, parts: Parts) -> Value | None:
        """The array whose elements along its first axis parts are, one after another; None where there is none."""
        cuts: list[tuple[Value, int, _Rest]] = []
        for part in parts:
            view = self.r.producer(part, "reshape")
            cut = self.r.producer(view.operands[0] if view is not None else part, "slice")
            if cut is None or not isinstance(cut.attributes, SliceAttributes) or part.type != parts[0].type:
                return None
            low, high = cut.attributes.starts[0], cut.attributes.stops[0]
            if not isinstance(low, int) or high != low + 1:
                return None
            cuts.append((cut.operands[0], low, _but_first(cut.attributes)))
        source, start, rest = cuts[0]
        if any(cut != (source, start + number, rest) for number, cut in enumerate(cuts)):
            return None
        whole = SliceAttributes((start, *rest[0]), (start + self.count, *rest[1]), (1, *rest[2]))
        if whole != SliceAttributes.of_axes(source.type.static_shape, {}):
            source = self.r.emit("slice", source, attributes=whole)
        return self.r.reshape(source, (self.count, *parts[0].type.shape))

    def _picked(self, value: Value, *, given: bool = False) -> Value:
        """A value of all candidates, at the sorted rows, or at those that are given."""
        if given and self.repeats == 1:
            return value
        where = self._iota((self.rows,), 0) if given else self.order
        if self.repeats > 1:
            where = self.r.emit("floordiv", where, self.r.constant(self.repeats, where))
        return self.r.emit("gather", value, where, attributes=GatherAttributes(0), hint="rows")

    # Sums

    def _own(self, value: Value, experts: Value) -> Value:
        """The value, with nothing in rows without an expert."""
        has = self._compare("lt", experts, self.count)
        return _or_nothing(self.r, self.r.reshape(has, (self.rows, *(1 for _ in range(value.type.rank - 1)))), value)

    def _number(self, value: Value) -> int | None:
        found = self.r.scalar(value)
        return found if isinstance(found, int) and not isinstance(found, bool) else None

    def _scalar(self, number: int) -> Value:
        return self.r.constant_of(ConstantAttributes(number, i64, self.r.op.result.type.device))

    def _iota(self, shape: tuple[Dim, ...], axis: int) -> Value:
        return self.r.emit("iota", attributes=IotaAttributes(shape, axis, i64, self.r.op.result.type.device))

    def _plus(self, value: Value, number: int) -> Value:
        return value if number == 0 else self.r.emit("add", value, self._scalar(number))

    def _compare(self, name: str, value: Value, number: int) -> Value:
        return self.r.emit(name, value, self._scalar(number))


def _operand(makers: Sequence[Op], place: int) -> Parts:
    return tuple(op.operands[place] for op in makers)


def _keeps_rows(op: Op) -> bool:
    cut, shape = op.expect(SliceAttributes), op.operands[0].type.shape
    return cut.starts[0] == 0 and cut.stops[0] == shape[0] and cut.steps[0] == 1


_Rest = tuple[tuple[Dim, ...], tuple[Dim, ...], tuple[int, ...]]


def _but_first(cut: SliceAttributes) -> _Rest:
    return cut.starts[1:], cut.stops[1:], cut.steps[1:]
