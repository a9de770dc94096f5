# SPDX-License-Identifier: Apache-2.0
"""Softmaxes of a joint graph over the maximum and the sum of each row, and their derivatives over outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from fusec.torch_nodes import (
    CASTS,
    PRODUCTS,
    Atom,
    Axes,
    Making,
    along,
    aten,
    is_transpose,
    value_of,
    window_of,
)

FEW = 8
"""Logits beside the scores of a row (sinks)."""


@dataclass(frozen=True)
class _Opened:
    """A softmax's argument in parts along its axis, scores first or last, and their weights."""

    axis: int
    parts: tuple[fx.Node, ...]
    weights: tuple[fx.Node, ...]


def open_softmax(graph: fx.Graph, softmax: fx.Node, forward: set[fx.Node]) -> set[fx.Node]:
    """``exp(x - max) / sum`` in the place of a softmax, and its derivative over the same numbers.

    The maximum and the sum are marked to be saved. Gives what was made of the size of the scores.
    """
    result = value_of(softmax)
    axis: Any = softmax.args[1]
    axis %= result.ndim
    make = Making(graph, softmax)
    wide = torch.float64 if result.dtype == torch.float64 else torch.float32
    parts = [make.cast(part, wide) for part in _parts(softmax, axis)]
    largest = _over(make, aten.amax.default, aten.maximum.default, parts, axis)
    powers = [make(aten.exp.default, make(aten.sub.Tensor, x, largest)) for x in parts]
    total = _over(make, aten.sum.dim_IntList, aten.add.Tensor, powers, axis)
    opened = _Opened(axis, tuple(parts), tuple(make(aten.div.Tensor, x, total) for x in powers))
    for statistic in (largest, total):
        statistic.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    rounded = make.cast(make.join(opened.weights, axis), result.dtype)
    for derivative in _derivatives(softmax):
        _open_derivative(graph, derivative, softmax, opened, forward)
    softmax.replace_all_uses_with(rounded)
    graph.erase_node(softmax)
    least = result.numel() // 2
    return {node for node in make.made if value_of(node).numel() > least}


def _parts(softmax: fx.Node, axis: int) -> list[fx.Node]:
    """What a softmax is of; scores and the few logits beside them, one after another where they were joined for it."""
    x = softmax.args[0]
    assert isinstance(x, fx.Node)
    joined = x
    while joined.target in CASTS:
        (joined,) = joined.all_input_nodes
    if joined.target is not aten.cat.default:
        return [x]
    parts: Any = joined.args[0]
    along: Any = joined.args[1] if len(joined.args) > 1 else 0
    extents = [value_of(part).shape[axis] for part in parts]
    few = [n for n in extents if n <= FEW]
    return list(parts) if along % value_of(joined).ndim == axis and len(few) == len(extents) - 1 > 0 else [x]


def _over(make: Making, reduce: Any, combine: Any, parts: Sequence[fx.Node], axis: int) -> fx.Node:
    """A reduction of all parts along an axis, which is kept; first of the part that is no few."""
    ordered = sorted(parts, key=lambda part: -value_of(part).shape[axis])
    first, *rest = (part if value_of(part).shape[axis] == 1 else make(reduce, part, [axis], True) for part in ordered)
    for each in rest:
        first = make(combine, first, each)
    return first


def _derivatives(softmax: fx.Node) -> list[fx.Node]:
    """The derivatives that read a softmax's result, behind aliases."""
    found, waiting = [], list(softmax.users)
    while waiting:
        node = waiting.pop()
        if node.target is aten._softmax_backward_data.default:
            found.append(node)
        elif node.target in (aten.alias.default, aten.detach.default):
            waiting += node.users
    return found


def _open_derivative(graph: fx.Graph, node: fx.Node, softmax: fx.Node, opened: _Opened, forward: set[fx.Node]) -> None:
    """``P (dP - sum(P dP))``, the sum from the output where one product alone read the weights."""
    gradient, _, _, dtype = node.args
    assert isinstance(gradient, fx.Node)
    assert isinstance(dtype, torch.dtype)
    make = Making(graph, node)
    wide = value_of(opened.weights[0]).dtype
    gradients = _gradients(make, gradient, opened)
    total = _from_output(make, softmax, gradient, opened.axis, wide, forward)
    if total is None:
        terms = [make(aten.mul.Tensor, p, make.cast(g, wide)) for p, g in zip(opened.weights, gradients) if g]
        total = _over(make, aten.sum.dim_IntList, aten.add.Tensor, terms, opened.axis)
    made = []
    for weights, part in zip(opened.weights, gradients):
        rest = make(aten.neg.default, total) if part is None else make(aten.sub.Tensor, make.cast(part, wide), total)
        made.append(make(aten.mul.Tensor, weights, rest))
    node.replace_all_uses_with(make.rounded(make.join(made, opened.axis), dtype))
    graph.erase_node(node)


def _gradients(make: Making, gradient: fx.Node, opened: _Opened) -> list[fx.Node | None]:
    """The gradient of each part's weights; None where it is zero, as of weights that are dropped."""
    if len(opened.parts) == 1:
        return [gradient]
    axis, start, found = opened.axis, 0, list[fx.Node | None]()
    alone = gradient.args[0] if gradient.target is aten.slice_backward.default else None
    for part in opened.parts:
        stop = start + value_of(part).shape[axis]
        if isinstance(alone, fx.Node) and window_of(gradient, axis) == (start, stop):
            found = [None] * len(opened.parts)
            found[opened.parts.index(part)] = alone
            return found
        found.append(make(aten.slice.Tensor, gradient, axis, start, stop))
        start = stop
    return found


def _from_output(
    make: Making, softmax: fx.Node, gradient: fx.Node, axis: int, dtype: torch.dtype, forward: set[fx.Node]
) -> fx.Node | None:
    """``sum_d dO_id O_id`` for ``sum_j P_ij dP_ij``; None where the gradient is not of one product ``P V``."""
    shape = value_of(softmax).shape
    own: Axes = [(Atom(k, n),) if n > 1 else () for k, n in enumerate(shape)]
    ways, product = _down(softmax, forward)
    back_ways, back = _up(gradient)
    axes = along(ways, own)
    if product is None or back is None or axes is None or axes[-1] == () or axes[-1][0].axis != axis:
        return None
    values, transposed = product.args[1], back.args[1]
    if not isinstance(values, fx.Node) or not isinstance(transposed, fx.Node) or not is_transpose(transposed, values):
        return None
    if product.args[0] is not (ways[-1] if ways else softmax) or along(back_ways, axes) != own:
        return None
    output, given = (make.cast(node, dtype) for node in (product, back.args[0]) if isinstance(node, fx.Node))
    total = make(aten.sum.dim_IntList, make(aten.mul.Tensor, given, output), [-1], True)
    return _spread(make, total, [atom for each in axes[:-1] for atom in each], shape, axis)


def _spread(make: Making, total: fx.Node, atoms: Sequence[Atom], shape: Sequence[int], axis: int) -> fx.Node:
    """One number a row, whose rows are made of ``atoms``, as a tensor that broadcasts to scores of a shape."""
    order = sorted(range(len(atoms)), key=lambda k: atoms[k].axis)
    if order != list(range(len(atoms))):
        total = make(aten.view.default, total, [atom.extent for atom in atoms])
        total = make(aten.permute.default, total, order)
    return make(aten.reshape.default, total, [1 if k == axis else n for k, n in enumerate(shape)])


def _down(softmax: fx.Node, forward: set[fx.Node]) -> tuple[list[fx.Node], fx.Node | None]:
    """The views from a softmax's weights to the one product that reads them in the forward."""
    node, ways = softmax, list[fx.Node]()
    while True:
        readers = [reader for reader in node.users if reader in forward]
        if len(readers) != 1:
            return ways, None
        if readers[0].target in PRODUCTS:
            return ways, readers[0]
        node = readers[0]
        ways.append(node)


def _up(gradient: fx.Node) -> tuple[list[fx.Node], fx.Node | None]:
    """The views from the product that a gradient of weights is, and the product."""
    node, ways = gradient, list[fx.Node]()
    while node.target not in PRODUCTS:
        if not node.args or not isinstance(node.args[0], fx.Node):
            return ways, None
        ways.insert(0, node)
        node = node.args[0]
    return ways, node
