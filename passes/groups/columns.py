# SPDX-License-Identifier: Apache-2.0
"""Sums over columns beside reductions over rows: a kernel that has each row at hand adds it to its sums on the way.

Such a sum is one of parts, ``reduce_sum`` over axis 1 of ``[parts, rows of a part, ...]``, which is a view of what lies
over the rows (with zeros behind the last row where the parts are not equal). ``passes/share_rows.py`` makes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from fusec.ir.attributes import ConstantAttributes, PadAttributes, ReduceAttributes
from fusec.ir.index import product
from fusec.ir.nodes import Op, Value
from fusec.ir.types import Dim, f32
from fusec.passes.groups.partition import Group, Position
from fusec.tile.views import pure, reshape_index

Shape = tuple[Dim, ...]
Producers = Mapping[Value, Op]


@dataclass(frozen=True)
class ColumnSum:
    """``op`` adds up, for each of ``parts``, ``height`` rows. ``pad`` puts zeros behind the last row. ``seen`` are the
    values that show the same elements, without these zeros, each a view of the next."""

    op: Op
    pad: Op | None
    seen: tuple[Value, ...]

    @property
    def parts(self) -> int:
        return self.op.operands[0].type.static_shape[0]

    @property
    def height(self) -> int:
        return self.op.operands[0].type.static_shape[1]

    @property
    def rest(self) -> Shape:
        """The columns' own axes."""
        return self.op.operands[0].type.shape[2:]

    @property
    def ops(self) -> tuple[Op, ...]:
        return (self.op,) if self.pad is None else (self.pad, self.op)

    @property
    def added(self) -> Value:
        """What is added up: the value below all views."""
        return self.seen[-1]

    def position(self, group: Group) -> Position | None:
        """Where :attr:`added` lies over the rows of a group, which are the last axes; None where it does not."""
        domain, reduced = group.domain, group.reduced
        if not reduced or reduced != tuple(range(len(domain) - len(reduced), len(domain))):
            return None
        if product(self.rest) != product(domain[a] for a in reduced) or product(domain) != self.added.type.count:
            return None
        if self.added.type.shape == domain:
            return group.identity
        return pure(reshape_index(group.identity, domain, self.added.type.shape))


def column_sum(op: Op, producers: Producers) -> ColumnSum | None:
    """The sum of parts that an op is; None for any other op."""
    if op.name != "reduce_sum" or not isinstance(op.attributes, ReduceAttributes) or op.attributes.axes != (1,):
        return None
    (x,) = op.operands
    if x.type.rank < 3 or not x.type.is_static or op.result.type.dtype is not f32 or x.type.dtype is not f32:
        return None
    seen, pad = [x], None
    while (made := producers.get(seen[-1])) is not None:
        if made.name == "reshape":
            seen.append(made.operands[0])
        elif pad is None and _ends_in_zeros(made, producers):
            pad, seen = made, [made.operands[0]]
        else:
            break
    return ColumnSum(op, pad, tuple(seen))


def _ends_in_zeros(op: Op, producers: Producers) -> bool:
    """Whether an op puts zeros behind the last place of the first axis, and nothing else."""
    if not isinstance(op.attributes, PadAttributes) or any(op.attributes.low) or any(op.attributes.high[1:]):
        return False
    fill = producers.get(op.operands[1])
    return fill is not None and isinstance(fill.attributes, ConstantAttributes) and fill.attributes.value == 0


def rows_and_columns(ops: Iterable[Op], producers: Producers) -> tuple[list[Op], list[ColumnSum]]:
    """The reductions of a row kernel: those over its rows, and the sums over columns beside them."""
    anchors = [op for op in ops if op.definition.kind == "reduce"]
    rows = [op for op in anchors if _ends_rows(op)]
    if not rows or len(rows) == len(anchors):
        return anchors, []
    sums = [column_sum(op, producers) for op in anchors if op not in rows]
    found = [s for s in sums if s is not None]
    return (rows, found) if len(found) == len(sums) else (anchors, [])


def _ends_rows(op: Op) -> bool:
    return op.operands[0].type.rank - 1 in op.expect(ReduceAttributes).axes


def made_of(value: Value, producers: Producers, there: Callable[[Value], bool]) -> frozenset[Value]:
    """The values of as many elements as ``value`` that it is made of by maps and views: those that no map makes, or
    that are ``there`` already, in memory."""
    found: set[Value] = set()
    seen, stack = {value}, [value]
    while stack:
        one = stack.pop()
        op = producers.get(one)
        if op is None or op.definition.kind not in ("elementwise", "view") or there(one):
            found.add(one)
            continue
        more = [v for v in op.operands if v not in seen and v.type.count == value.type.count]
        seen.update(more)
        stack += more
    return frozenset(found)
