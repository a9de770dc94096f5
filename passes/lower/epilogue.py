# SPDX-License-Identifier: Apache-2.0
"""The results of a group, computed from those of its anchors."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fusec.errors import LoweringError
from fusec.ir.attributes import FusedKind
from fusec.ir.index import Index, Symbol
from fusec.ir.indexing import substitute
from fusec.ir.nodes import Op, Value
from fusec.ir.types import DType
from fusec.passes.groups.partition import Group, positions_of
from fusec.passes.lower.context import LoweringContext, expect_index, position_at
from fusec.tile.nodes import Iter, Store
from fusec.tile.scalar import Buffer, Load, ScalarExpr, reindex, with_loads_replaced


def epilogue_stores(
    context: LoweringContext,
    kind: FusedKind,
    ops: Sequence[Op],
    point: tuple[Index, ...],
    shift: dict[Symbol, Index],
    domain: tuple[Iter, ...],
    accumulators: Sequence[ScalarExpr],
    others: Collection[Value] = (),
) -> list[Store]:
    """The stores of every output but ``others``, over what holds the results of the anchors ``ops`` at index ``point``.

    ``point`` is in tight symbols, which ``shift`` turns into block and position in the block.
    """
    group = Group(kind, ops[0].result.type.shape)
    for op in ops:
        group.position[op.result] = group.identity
    positions_of(context.body, group)
    placeholders = [
        _Placeholder(context, op.result, point, acc.dtype) for op, acc in zip(ops, accumulators, strict=True)
    ]
    stores: list[Store] = []
    for value in context.body.outputs:
        if value in others:
            continue
        if value not in group.position:
            raise LoweringError(f"{value} does not lie over the {kind}'s result")
        at = position_at(group.position[value], group, point)
        element = reindex(context.inliner.at(value, at), shift)
        for placeholder, accumulator in zip(placeholders, accumulators, strict=True):
            element = placeholder.fill(element, accumulator)
        stores.append(Store(domain, context.buffers[value], tuple(substitute(x, shift) for x in at), element))
    return stores


class _Placeholder:
    """Stands for an accumulator while an epilogue is expanded, so that its subscripts are not shifted twice."""

    def __init__(self, context: LoweringContext, value: Value, point: tuple[Index, ...], dtype: DType) -> None:
        self.buffer = Buffer("accumulator", dtype, (), (), "tile")
        context.inliner.add_leaf(value, expect_index(value, point, Load(self.buffer, ())))

    def fill(self, element: ScalarExpr, accumulator: ScalarExpr) -> ScalarExpr:
        """The epilogue, its symbols already shifted, with the placeholder replaced."""
        return with_loads_replaced(element, self.buffer, accumulator)
