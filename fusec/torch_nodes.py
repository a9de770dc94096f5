# SPDX-License-Identifier: Apache-2.0
"""The nodes of AOTAutograd's graphs, and views in them as axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten

PRODUCTS = frozenset({aten.mm.default, aten.bmm.default})
ROUNDED = torch.ops.prims.convert_element_type.default
"""The cast with which a decomposed call ends."""
CASTS = frozenset({aten._to_copy.default, aten.clone.default, aten.alias.default, aten.detach.default, ROUNDED})
RESHAPES = frozenset({aten.view.default, aten._unsafe_view.default, aten.reshape.default})
PERMUTES = frozenset({aten.transpose.int, aten.permute.default, aten.t.default})
INSERTS = frozenset({aten.expand.default, aten.unsqueeze.default, aten.squeeze.dim})
VIEWS = frozenset(
    {
        *RESHAPES,
        *PERMUTES,
        *(aten.expand.default, aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default),
        *(aten.slice.Tensor, aten.select.int, aten.cat.default, aten.alias.default, aten.detach.default),
    }
)
MAKERS = frozenset(
    {
        *(
            aten.arange.default,
            aten.arange.start,
            aten.arange.start_step,
            aten.full.default,
            aten.scalar_tensor.default,
        ),
        *(aten.ones.default, aten.zeros.default, aten.full_like.default, aten.ones_like.default),
        *(aten.zeros_like.default, aten.new_full.default, aten.new_ones.default, aten.new_zeros.default),
        *(aten.lift_fresh_copy.default, aten.tril.default, aten.triu.default),
    }
)


def value_of(node: fx.Node) -> torch.Tensor:
    value = node.meta["val"]
    assert isinstance(value, torch.Tensor)
    return value


def tensor_of(node: fx.Node) -> torch.Tensor | None:
    value = node.meta.get("val")
    return value if isinstance(value, torch.Tensor) else None


def size_of(node: fx.Node) -> int | None:
    """The number of elements of a node's tensor; None where there is none, or it is not known."""
    value = tensor_of(node)
    if value is None or not all(isinstance(n, int) for n in value.shape):
        return None
    return value.numel()


def outputs_of(graph: fx.Graph) -> list[Any]:
    (output,) = (node for node in graph.nodes if node.op == "output")
    given = output.args[0]
    return list(given) if isinstance(given, Sequence) else [given]


def ancestors(nodes: Sequence[Any]) -> set[fx.Node]:
    return _reached((node for node in nodes if isinstance(node, fx.Node)), lambda node: node.all_input_nodes)


def readers(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    return _reached(nodes, lambda node: node.users)


def _reached(nodes: Iterable[fx.Node], following: Callable[[fx.Node], Iterable[fx.Node]]) -> set[fx.Node]:
    found: set[fx.Node] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += following(node)
    return found


# Making


class Making:
    """Makes nodes before another, with what they give noted. ``like``: the node whose place in the code they have."""

    def __init__(self, graph: fx.Graph, before: fx.Node, like: fx.Node | None = None) -> None:
        self._graph, self._before = graph, before
        self.like = like or before
        self.made: list[fx.Node] = []

    def __call__(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
        with self._graph.inserting_before(self._before):
            node = self._graph.call_function(target, args, kwargs)
        node.meta |= {k: v for k, v in self.like.meta.items() if k not in ("val", "tensor_meta", "recompute")}
        given: Any = fx.node.map_arg((args, kwargs), lambda n: n.meta["val"])
        mode = getattr(tensor_of(self.like), "fake_mode", None)
        assert mode is not None, "AOTAutograd notes fake tensors"
        with mode, torch.no_grad():
            node.meta["val"] = target(*given[0], **given[1])
        self.made.append(node)
        return node

    def cast(self, node: fx.Node, dtype: torch.dtype) -> fx.Node:
        return node if value_of(node).dtype == dtype else self(aten._to_copy.default, node, dtype=dtype)

    def rounded(self, node: fx.Node, dtype: torch.dtype) -> fx.Node:
        """The end of a call that is computed in a wider type; no rounding that a user wrote."""
        return node if value_of(node).dtype == dtype else self(ROUNDED, node, dtype)

    def join(self, parts: Sequence[fx.Node], axis: int) -> fx.Node:
        return parts[0] if len(parts) == 1 else self(aten.cat.default, list(parts), axis)


# Views


@dataclass(frozen=True)
class Atom:
    """An axis of a softmax, or as much of it as a slice leaves."""

    axis: int
    extent: int


Axes = list[tuple[Atom, ...]]
"""Of each axis of a view of scores the axes that it is made of."""


def along(ways: Sequence[fx.Node], axes: Axes) -> Axes | None:
    """The axes after views; None after anything else."""
    for node in ways:
        found = _after(node, axes)
        if found is None:
            return None
        axes = found
    return axes


def _after(node: fx.Node, axes: Axes) -> Axes | None:
    source = node.args[0]
    made, given, target = tensor_of(node), tensor_of(source) if isinstance(source, fx.Node) else None, node.target
    if made is None or given is None:
        return None
    if target in PERMUTES:
        return [axes[k] for k in order_of(node)]
    if target in (aten.slice.Tensor, aten.slice_backward.default):
        return _cut(node, axes)
    if made.numel() != given.numel() or target not in CASTS | RESHAPES | INSERTS:
        return None
    atoms = [atom for each in axes for atom in each]
    found: Axes = []
    for extent in made.shape:
        own: list[Atom] = []
        while atoms and math.prod(atom.extent for atom in own) < extent:
            own.append(atoms.pop(0))
        if math.prod(atom.extent for atom in own) != extent:
            return None
        found.append(tuple(own))
    return found


def _cut(node: fx.Node, axes: Axes) -> Axes | None:
    """The axes after a slice, or what puts its gradient into zeros, that begins with an axis."""
    for axis, atoms in enumerate(axes):
        window = window_of(node, axis)
        if window is not None:
            if window[0] != 0 or len(atoms) != 1:
                return None
            return [*axes[:axis], (Atom(atoms[0].axis, value_of(node).shape[axis]),), *axes[axis + 1 :]]
    return None


def order_of(node: fx.Node) -> list[int]:
    """Which axis of its operand each axis of a permuted view is."""
    rank = value_of(node).ndim
    order = list(range(rank))
    if node.target is aten.permute.default:
        given: Any = node.args[1]
        return [int(k) % rank for k in given]
    a, b = node.args[1:] if node.target is aten.transpose.int else (0, rank - 1)
    assert isinstance(a, int)
    assert isinstance(b, int)
    order[a], order[b] = order[b], order[a]
    return order


def is_transpose(node: fx.Node, other: fx.Node) -> bool:
    """Whether a matrix, or each of a batch, is another's transpose."""
    if node.target not in PERMUTES or node.args[0] is not other:
        return False
    rank = value_of(other).ndim
    return order_of(node) == [*range(rank - 2), rank - 1, rank - 2]


def window_of(node: fx.Node, axis: int) -> tuple[int, int] | None:
    """Where a slice along an axis, one after another, begins and ends, or one that a derivative puts in its place."""
    backward = node.target is aten.slice_backward.default
    source = node.args[0]
    assert isinstance(source, fx.Node)
    whole, part = (value_of(n).shape for n in ((node, source) if backward else (source, node)))
    given: list[Any] = list(node.args[2 if backward else 1 :])
    given += [0, 0, None, 1][len(given) :]
    dim, start, step = given[0], given[1] or 0, given[3]
    if dim % len(whole) != axis or step != 1 or not isinstance(start, int) or start < 0:
        return None
    return start, start + part[axis]
