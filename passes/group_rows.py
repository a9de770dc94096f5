# SPDX-License-Identifier: Apache-2.0
"""Loops over groups of rows as one product: concatenated products of slices with matrices of one array.

``concat([x[0:3] @ w[0], x[3:5] @ w[1]])`` is a ``grouped_dot`` of ``x``, and maps of such parts are one map of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fusec.ir.attributes import (
    MOST_GROUPS,
    ConcatAttributes,
    DotAttributes,
    GroupedDotAttributes,
    IotaAttributes,
    PadAttributes,
    SliceAttributes,
)
from fusec.ir.graph import Graph
from fusec.ir.nodes import Op, Value
from fusec.passes.dce import dce
from fusec.passes.rewrite import Outcome, Rewriter, rewrite, rule

Parts = tuple[Value, ...]


def group_rows(graph: Graph) -> Graph:
    """Afterwards a GPU's products of half types of groups of rows, one after another, are one op."""
    if any(op.name == "pad" for op in graph.ops):
        graph = rewrite(graph, (rows_in_order,))
    if not any(op.name == "concat" for op in graph.ops):
        return graph
    uses = graph.uses()
    outputs = set(graph.outputs)

    @rule("concat")
    def products_of_groups(r: Rewriter) -> Outcome:
        """concat(x[0:a] @ w[0], x[a:] @ w[1]) ⇒ grouped_dot(x, w) {sizes=[a, n - a]}"""
        static = all(v.type.is_static for v in r.operands)
        if r.op.expect(ConcatAttributes).axis != 0 or len(r.operands) < 2 or not static:
            return None
        found = _Groups(r)
        if not found.match(r.operands) or not found.products:
            return None
        if any(v in outputs or not found.ops.issuperset(set(uses[v]) - {r.op}) for op in found.ops for v in op.results):
            return None  # a part is read by itself
        return found.whole(r.operands)

    return dce(rewrite(graph, (products_of_groups,)))


@rule("select")
def rows_in_order(r: Rewriter) -> Outcome:
    """select(i < 3, pad(x), select(i >= 3, pad(y), z)) ⇒ concat(x, y), which together are all rows"""
    shape = r.op.result.type.shape
    if not r.op.result.type.is_static or not shape:
        return None
    boxes: list[tuple[int, int, Value]] = []
    rows, rest = 0, r.op.result
    while rows < r.op.result.type.static_shape[0]:
        made = r.op if rest is r.op.result else r.producer(rest, "select", "copy")
        if made is not None and made.name == "copy":
            rest = made.operands[0]
            continue
        box = _written_rows(r, made) if made is not None else None
        if made is None or box is None:
            return None
        boxes.append(box)
        rows += box[1] - box[0]
        rest = made.operands[2]
    boxes.sort(key=lambda box: box[:2])
    starts = [0, *(stop for _, stop, _ in boxes)]
    if len(boxes) < 2 or any(start != at for at, (start, _, _) in zip(starts, boxes, strict=False)):
        return None
    return r.emit("concat", *(value for _, _, value in boxes), attributes=ConcatAttributes(0), hint="rows")


def _written_rows(r: Rewriter, select: Op) -> tuple[int, int, Value] | None:
    """The first row that a write of rows changes, the one behind the last, and what it puts there."""
    condition, value, _ = select.operands
    pad = r.producer(value, "pad")
    if pad is None or not pad.operands[0].type.is_static:
        return None
    low, high = pad.expect(PadAttributes).low, pad.expect(PadAttributes).high
    shape = select.result.type.static_shape
    start, stop = low[0], shape[0] - high[0]
    if value.type.shape != shape or any(low[1:]) or any(high[1:]) or start >= stop:
        return None
    return (start, stop, pad.operands[0]) if _rows_where(r, condition, shape[0]) == (start, stop) else None


def _rows_where(r: Rewriter, condition: Value, rows: int) -> tuple[int, int] | None:
    """From which row to which a condition on the number of the row holds."""
    made = r.producer(condition, "ge", "lt", "logical_and")
    if made is None:
        return None
    if made.name == "logical_and":
        both = [_rows_where(r, v, rows) for v in made.operands]
        return _common(both[0], both[1])
    number, bound = r.producer(made.operands[0], "iota"), r.scalar(made.operands[1])
    if number is None or number.expect(IotaAttributes).axis != 0 or not isinstance(bound, int):
        return None
    if number.result.type.shape[:1] != condition.type.shape[:1] or number.result.type.shape[0] != rows:
        return None
    return (bound, rows) if made.name == "ge" else (0, bound)


def _common(a: tuple[int, int] | None, b: tuple[int, int] | None) -> tuple[int, int] | None:
    return None if a is None or b is None else (max(a[0], b[0]), min(a[1], b[1]))


class _Groups:
    """Values of groups of rows that are computed alike; each is one value of all rows."""

    def __init__(self, r: Rewriter) -> None:
        self.r = r
        self.ops: set[Op] = set()
        self.products: dict[Parts, tuple[Value, tuple[int, ...]]] = {}
        """The matrices of parts that are products, and how many rows each has."""
        self.alike: dict[Parts, bool] = {}
        self.made: dict[Parts, Value] = {}

    def match(self, parts: Parts) -> bool:
        """Whether parts are products with matrices of one array, or maps of such parts at the same points."""
        if parts not in self.alike:
            self.alike[parts] = self._match(parts)
        return self.alike[parts]

    def _match(self, parts: Parts) -> bool:
        ops = [self.r.producer(v) for v in parts]
        if any(op is None for op in ops) or len(set(parts)) != len(parts):
            return False
        makers = [op for op in ops if op is not None]
        if any(op.name != makers[0].name for op in makers):
            return False
        if makers[0].name == "dot":
            found = self._matrices(makers)
            if found is None:
                return False
            self.products[parts] = found
            self.ops.update(makers)
            self.match(tuple(op.operands[0] for op in makers))
            return True
        if makers[0].definition.kind != "elementwise" or any(op.attributes != makers[0].attributes for op in makers):
            return False
        if len({(op.result.type.dtype, op.result.type.shape[1:]) for op in makers}) > 1:
            return False
        seen = False
        for of_each in zip(*(op.operands for op in makers), strict=True):
            if self._is_the_same(of_each):
                continue
            if any(v.type.shape[:1] != p.type.shape[:1] or v.type.rank != p.type.rank for v, p in zip(of_each, parts)):
                return False
            seen |= self.match(of_each)
        if seen:
            self.ops.update(makers)
        return seen

    def _is_the_same(self, of_each: Parts) -> bool:
        """Whether an operand is one for all rows: a number, a row."""
        first = of_each[0]
        number = self.r.scalar(first)
        if number is not None:
            return all(self.r.scalar(v) == number and v.type == first.type for v in of_each)
        return all(v is first for v in of_each) and first.type.rank < 2

    def _matrices(self, dots: Sequence[Op]) -> tuple[Value, tuple[int, ...]] | None:
        """The array that the right operands are matrices of, one after another, and the rows of each of its groups."""
        array: Value | None = None
        sizes: list[int] = []
        for dot in dots:
            attributes, (rows, matrix) = dot.expect(DotAttributes), dot.operands
            plain = rows.type.rank == 2 and matrix.type.rank == 2 and attributes.lhs_contract == (1,)
            if not plain or attributes.lhs_batch or replace(attributes, tf32=False) != dots[0].attributes:
                return None
            found = self._matrix(matrix)
            if found is None or (array is not None and found[0] is not array) or found[1] < len(sizes):
                return None
            array, number = found
            sizes += [0] * (number - len(sizes))
            sizes.append(rows.type.static_shape[0])
        assert array is not None
        dtype = dots[0].operands[0].type.dtype
        if not dtype.is_float or dtype.bits > 16 or not array.type.is_static:
            return None  # others are multiplied faster by the kernels of a matmul
        groups, depth = array.type.static_shape[0], dots[0].operands[0].type.static_shape[1]
        if groups > MOST_GROUPS or depth == 0:
            return None
        return array, (*sizes, *(0 for _ in range(groups - len(sizes))))

    def _matrix(self, value: Value) -> tuple[Value, int] | None:
        """The array whose n-th matrix a value is, and n."""
        view = self.r.producer(value, "reshape")
        cut = self.r.producer(view.operands[0], "slice") if view is not None else None
        if cut is None or not isinstance(cut.attributes, SliceAttributes):
            return None
        array, number = cut.operands[0], cut.attributes.starts[0]
        shape = cut.result.type.shape
        whole = array.type.rank == 3 and shape == (1, *array.type.shape[1:]) and value.type.shape == shape[1:]
        if not whole or not isinstance(number, int) or any(step != 1 for step in cut.attributes.steps):
            return None
        return array, number

    def whole(self, parts: Parts) -> Value:
        """The value of all rows."""
        if parts not in self.made:
            self.made[parts] = self._whole(parts)
        return self.made[parts]

    def _whole(self, parts: Parts) -> Value:
        makers = [op for op in map(self.r.producer, parts) if op is not None]
        if parts in self.products:
            array, sizes = self.products[parts]
            attributes = makers[0].expect(DotAttributes)
            rows = self.whole(tuple(op.operands[0] for op in makers))
            made = GroupedDotAttributes(attributes.rhs_contract[0] + 1, sizes, attributes.dtype)
            return self.r.emit("grouped_dot", rows, array, attributes=made, hint=parts[0].name)
        if self.alike.get(parts):
            given = [
                of_each[0] if self._is_the_same(of_each) else self.whole(of_each)
                for of_each in zip(*(op.operands for op in makers), strict=True)
            ]
            return self.r.emit(makers[0].name, *given, attributes=makers[0].attributes, hint=parts[0].name)
        return self._sliced(parts) or self.r.emit("concat", *parts, attributes=ConcatAttributes(0), hint="rows")

    def _sliced(self, parts: Parts) -> Value | None:
        """What the parts are slices of, from its first row on, one after another."""
        cuts = [self.r.producer(v, "slice") for v in parts]
        start, source = 0, None
        for cut, part in zip(cuts, parts, strict=True):
            if cut is None or not isinstance(cut.attributes, SliceAttributes):
                return None
            a, whole = cut.attributes, cut.operands[0]
            source = source or whole
            rest = cut.result.type.shape[1:] == whole.type.shape[1:]
            if whole is not source or a.starts[0] != start or any(s != 1 for s in a.steps) or not rest:
                return None
            start += part.type.static_shape[0]
        if source is None or not source.type.is_static:
            return None
        shape = source.type.static_shape
        if start == shape[0]:
            return source
        return self.r.emit("slice", source, attributes=SliceAttributes.of_axes(shape, {0: (0, start)}), hint="rows")
