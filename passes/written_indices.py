# SPDX-License-Identifier: Apache-2.0
"""Where library calls write by an index: the positions that must be there for them not to raise."""

from __future__ import annotations

from collections.abc import Iterator

from fusec.ir.attributes import ExternAttributes
from fusec.ir.graph import Graph
from fusec.ir.nodes import Op, Value
from fusec.runtime.library import Operand, parse_arguments

WrittenIndex = tuple[Value, int, int]
"""An index, and the inclusive bounds of its elements."""

_ALONG = frozenset(("index_copy", "index_add", "scatter", "scatter_add", "scatter_reduce"))
"""Calls of an array, an axis and an index, which is not negative."""


def writes_at_indices(op: Op) -> bool:
    """True for a call that gives its first operand with some elements written."""
    return _name(op) in (*_ALONG, "index_fill", "index_put")


def raises_beside_other_writes(graph: Graph) -> bool:
    """Whether the program changes an input by such a call, which may do so in place, and another input otherwise."""
    producers = graph.producers()
    ports = zip(graph.outputs, graph.output_ports, strict=True)
    made = [producers.get(value) for value, port in ports if port.mutates is not None]
    by_call = [op is not None and writes_at_indices(op) for op in made]
    return any(by_call) and not all(by_call)


def written_indices(op: Op) -> Iterator[WrittenIndex]:
    """The positions that a call writes to, of axes whose extents are known."""
    if not writes_at_indices(op):
        return
    shape = op.operands[0].type.shape
    args, _ = parse_arguments(op.expect(ExternAttributes).arguments)
    name = _name(op)
    if name == "index_put":
        found = [(axis, index, True) for axis, index in enumerate(args[1])]
    else:
        found = [(args[1] % max(len(shape), 1), args[2], name == "index_fill")]
    for axis, index, wraps in found:
        if not isinstance(index, Operand) or axis >= len(shape):
            continue
        value, extent = op.operands[index.index], shape[axis]
        if value.type.dtype.is_integer and isinstance(extent, int) and 0 not in value.type.shape:
            yield value, -extent if wraps else 0, extent - 1


def _name(op: Op) -> str:
    if not isinstance(op.attributes, ExternAttributes):
        return ""
    namespace, _, rest = op.attributes.target.partition(".")
    return rest.partition(".")[0] if namespace == "aten" else ""
