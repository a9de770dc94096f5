# SPDX-License-Identifier: Apache-2.0
"""In which order of axes an intermediate result lies in memory, on a GPU: that in which it is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fusec.ir.attributes import PermuteAttributes
from fusec.ir.graph import FusedAttributes, Graph
from fusec.ir.nodes import Op, Value
from fusec.ir.types import contiguous_strides
from fusec.tile.views import Strides


def orders_of(graph: Graph) -> Mapping[Value, Strides]:
    """The strides of results that every reader transposes in one way, but for the last axis.

    Attention's heads, which the next matmul reads side by side, are then rows of one matrix: blocks of these may begin
    anywhere, also where a text ends within one. Readers are kernels alone: views of what lies so may be none.
    """
    outputs, found = set(graph.outputs), dict[Value, Strides]()
    uses = graph.uses()
    for op in graph.ops:
        for value in op.results if isinstance(op.attributes, FusedAttributes) else ():
            order = None if value in outputs else _read_in(value, uses[value])
            if order is not None and order[-1] == len(order) - 1:
                found[value] = _strides(value, order)
    return found


def _read_in(value: Value, readers: Sequence[Op]) -> tuple[int, ...] | None:
    """The order of axes in which all readers see a value; None where it is its own, or they differ."""
    orders = {order for reader in readers for order in _orders_in(value, reader)}
    found = orders.pop() if len(orders) == 1 else None
    return None if found is None or found == tuple(range(len(found))) else found


def _orders_in(value: Value, reader: Op) -> set[tuple[int, ...] | None]:
    if not isinstance(reader.attributes, FusedAttributes):
        return {None}
    body = reader.attributes.body
    inner = [own for own, given in zip(body.inputs, reader.operands, strict=True) if given is value]
    uses = body.uses()
    return {
        op.attributes.permutation if isinstance(op.attributes, PermuteAttributes) else None
        for own in inner
        for op in uses[own]
    } | ({None} if any(own in body.outputs for own in inner) else set())


def _strides(value: Value, order: Sequence[int]) -> Strides:
    """Of memory in which axis ``order[0]`` is outermost."""
    steps = contiguous_strides(tuple(value.type.shape[axis] for axis in order))
    of_axis = dict(zip(order, steps, strict=True))
    return tuple(of_axis[axis] for axis in range(len(order)))
