# SPDX-License-Identifier: Apache-2.0
"""Gradients in the layout of what they are gradients of.

A gradient of a transposed operand comes out of its product transposed. Autograd copies a leaf's gradient that does not
lie as the leaf does; the kernel that makes it can as well write it so: ``(A B)ᵀ = Bᵀ Aᵀ``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from fusec.torch_nodes import (
    CASTS,
    INSERTS,
    PERMUTES,
    RESHAPES,
    Making,
    aten,
    order_of,
    outputs_of,
    tensor_of,
    value_of,
)

_FORMATS = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)
_VIEWS = RESHAPES | PERMUTES | INSERTS | CASTS


def lay_out_gradients(joint: fx.GraphModule, results: int) -> None:
    """Lets the gradients of a joint graph's inputs lie as these; ``results`` of the outputs are the forward's.

    What is an input itself, seen in another way, stays a view of it.
    """
    outputs = outputs_of(joint.graph)
    primals = [n for n in joint.graph.nodes if n.op == "placeholder" and "tangents" not in str(n.target)]
    gradients = outputs[results:]
    if len(gradients) != len(primals):
        return
    (output,) = (node for node in joint.graph.nodes if node.op == "output")
    made = list(outputs)
    for number, (gradient, primal) in enumerate(zip(gradients, primals, strict=True), results):
        layout = _wanted(gradient, primal)
        if layout is not None:
            make = Making(joint.graph, output, gradient)
            made[number] = _transposed(make, gradient) or make(aten.clone.default, gradient, memory_format=layout)
    if made != list(outputs):
        output.args = (tuple(made),)
        joint.graph.eliminate_dead_code()
        joint.recompile()


def _transposed(make: Making, gradient: fx.Node) -> fx.Node | None:
    """A transposed product as the product of the transposed operands; None where a gradient is none."""
    node, permutes = gradient, list[fx.Node]()
    while node.target in RESHAPES | PERMUTES and node.all_input_nodes:
        source = node.all_input_nodes[0]
        if node.target in PERMUTES:
            permutes.append(node)
        elif value_of(source).shape[-2:] != value_of(node).shape[-2:]:
            return None
        node = source
    rank = value_of(node).ndim
    if node.target not in (aten.mm.default, aten.bmm.default) or len(permutes) != 1 or len(node.users) != 1:
        return None
    order = order_of(permutes[0])
    if order != [*range(len(order) - 2), len(order) - 1, len(order) - 2]:
        return None
    a, b = (make(aten.transpose.int, x, rank - 2, rank - 1) for x in node.args[:2])
    return make(aten.reshape.default, make(node.target, b, a), list(value_of(gradient).shape))


def _wanted(gradient: Any, primal: fx.Node) -> torch.memory_format | None:
    """The layout in which a gradient is to be written; None where it lies well, or is no result of its own."""
    own = tensor_of(primal)
    found = tensor_of(gradient) if isinstance(gradient, fx.Node) else None
    if own is None or found is None or not all(isinstance(n, int) for n in (*found.shape, *own.shape)):
        return None
    if found.shape != own.shape or found.dtype != own.dtype or found.layout != torch.strided or 0 in found.shape:
        return None
    layout = next((f for f in _FORMATS if _lies(own, f)), None)
    if layout is None or _lies(found, layout) or not torch.ops.aten.is_non_overlapping_and_dense(found):
        return None
    return layout if all(node.op == "call_function" for node in _seen(gradient)) else None


def _lies(tensor: torch.Tensor, layout: torch.memory_format) -> bool:
    rank = {torch.channels_last: 4, torch.channels_last_3d: 5}.get(layout, tensor.ndim)
    return tensor.ndim == rank and tensor.is_contiguous(memory_format=layout)


def _seen(node: fx.Node) -> Iterator[fx.Node]:
    """What a node is a view of, in steps."""
    yield node
    while node.target in _VIEWS and node.all_input_nodes:
        node = node.all_input_nodes[0]
        yield node
