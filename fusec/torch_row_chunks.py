# SPDX-License-Identifier: Apache-2.0
"""Losses over wide rows in chunks: rows × words values of a joint graph of which a chunk of rows is there at a time.

A *wide product* gives many values a row, as a network's last layer its logits. Maps, sums of rows and picks lead from
it to a loss; the gradient comes back to the same rows by maps, and ends in products that contract the words (the
gradient of the product's rows) or the rows (that of its weights). Chunks of rows are independent but for what sums over
rows, which is added up. So one pass over chunks makes the loss and the gradients, and the wide values of one chunk
alone are in memory.

For that the gradients are made before the gradient of the loss is known. A gradient is linear in it: where one number
alone leads into the rows, gradients are made for 1, and scaled in the backward. What is of float16 keeps its own order:
a scaled loss is there to keep such gradients from underflow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from fusec.torch_nodes import PERMUTES, RESHAPES, Making, aten, order_of, outputs_of, readers, value_of
from fusec.torch_wide_rows import PICKS, PUTS, REDUCTIONS, SIZED, SIZED_LIKE, WIDE, Wide, rows_prefix, wide_products

CHUNK_BYTES = 2**30
"""Bytes of a wide product's values that a chunk has at most, where as many chunks can be made."""
MOST_CHUNKS = 4
"""Chunks at most: the sums of 16-bit gradients over rows are rounded to 16 bits after each."""


def chunks_of(wide: Wide) -> int:
    """How many chunks the rows of a wide product are made in."""
    value = value_of(wide.start)
    wanted = math.ceil(value.numel() * value.element_size() / CHUNK_BYTES)
    fitting = [n for n in range(1, MOST_CHUNKS + 1) if wide.rows % n == 0]
    return next((n for n in fitting if n >= wanted), fitting[-1])


Cut = Callable[..., tuple[fx.GraphModule, fx.GraphModule]]
"""PyTorch's partitioners: forward and backward of a joint graph."""


def cut_in_chunks(
    cut: Cut, joint: fx.GraphModule, inputs: Any, *, num_fwd_outputs: int, **given: Any
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Forward and backward of a joint graph where wide products are made in chunks, with their gradients, in the
    forward."""
    wide = wide_products(joint, num_fwd_outputs)
    early = [node for each in wide for node in make_in_chunks(joint, each, chunks_of(each))]
    (output,) = (node for node in joint.graph.nodes if node.op == "output")
    outputs, count = outputs_of(joint.graph), num_fwd_outputs
    told = list(output.meta.get("desc", ())) or [None] * len(outputs)
    output.args = ((*outputs[:count], *early, *outputs[count:]),)
    output.meta["desc"] = [*told[:count], *(None for _ in early), *told[count:]]
    forward, backward = cut(joint, inputs, num_fwd_outputs=count + len(early), **given)
    (output,) = (node for node in forward.graph.nodes if node.op == "output")
    outputs, told = outputs_of(forward.graph), list(output.meta["desc"])
    output.args = ((*outputs[:count], *outputs[count + len(early) :]),)
    output.meta["desc"] = [*told[:count], *told[count + len(early) :]]
    forward.recompile()
    return forward, backward


def make_in_chunks(joint: fx.GraphModule, wide: Wide, count: int) -> list[fx.Node]:
    """Rewrites a joint graph so that a wide product and what lies on its rows are made in ``count`` chunks of rows.

    Gives the gradients for 1, which are to be made in the forward.
    """
    chunks = _Chunks(joint.graph, wide, count)
    early = chunks.rewrite()
    _sort(joint.graph, chunks.make.made)
    joint.graph.eliminate_dead_code()
    joint.recompile()
    return early


class _Chunks:
    """Makes the nodes of all chunks at the end of a graph."""

    def __init__(self, graph: fx.Graph, wide: Wide, count: int) -> None:
        (output,) = (node for node in graph.nodes if node.op == "output")
        self.graph, self.wide, self.count = graph, wide, count
        self.make = Making(graph, output, wide.start)
        self.size = wide.rows // count
        assert wide.tangent is not None
        self.tangent = wide.tangent
        self.after = readers([wide.tangent])
        self.at_one: dict[fx.Node, fx.Node] = {}
        self.flat: dict[fx.Node, fx.Node] = {}
        self.own: dict[fx.Node, fx.Node] = {}
        self.number = 0

    def rewrite(self) -> list[fx.Node]:
        early: list[fx.Node] = []
        results: dict[fx.Node, list[fx.Node]] = {node: [] for node in self.wide.results}
        sums: dict[fx.Node, fx.Node] = {}
        for number in range(self.count):
            self.number, self.own = number, {}
            for node in self.wide.lead:
                self._at(node)
                self.own[node] = self._made(node, self.wide.lead[node])
            for node, parts in results.items():
                parts.append(self.own[node])
            for node in self.wide.sums:
                self._at(node)
                part = self._summed(node)
                sums[node] = self._new(aten.add.Tensor, sums[node], part) if node in sums else part
        for node, parts in results.items():
            self._at(node)
            whole = self.make.join(parts, 0)
            if value_of(whole).shape != value_of(node).shape:
                whole = self.make(aten.reshape.default, whole, list(value_of(node).shape))
            early += self._replace(node, whole)
        for node, total in sums.items():
            self._at(node)
            early += self._replace(node, self.make.cast(total, value_of(node).dtype))
        return early

    def _at(self, node: fx.Node) -> None:
        self.make.like = node

    def _new(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
        return self.make(target, *args, **kwargs)

    def _replace(self, node: fx.Node, whole: fx.Node) -> list[fx.Node]:
        """Lets what reads a node read what was made for it, scaled by the gradient that it was made without."""
        if node not in self.after:
            node.replace_all_uses_with(whole)
            return []
        whole.meta["recompute"] = CheckpointPolicy.MUST_SAVE
        scaled = self._new(aten.mul.Tensor, whole, self.tangent)
        node.replace_all_uses_with(self.make.cast(scaled, value_of(node).dtype))
        return [whole]

    # What chunks read of the graph around them

    def _outer(self, node: fx.Node) -> fx.Node:
        """A node outside; for a gradient of 1 where it depends on the gradient."""
        if node not in self.after and node is not self.tangent:
            return node
        if node not in self.at_one:
            like, self.make.like = self.make.like, node
            if node is self.tangent:
                value = value_of(node)
                one = self._new(aten.full.default, [], 1, dtype=value.dtype, device=value.device)
            else:
                args, kwargs = fx.node.map_arg((node.args, node.kwargs), self._outer)
                one = self._new(node.target, *args, **kwargs)  # type: ignore[arg-type]
            self.at_one[node], self.make.like = one, like
        return self.at_one[node]

    def _rows_of(self, node: fx.Node) -> fx.Node:
        """The chunk of a node whose leading axes are the rows, those as one axis."""
        if node in self.own:
            return self.own[node]
        shape = value_of(node).shape
        k = rows_prefix(shape, self.wide.rows)
        assert k is not None
        if node not in self.flat:
            whole = self._outer(node)
            if k > 1:
                whole = self._new(aten.reshape.default, whole, [self.wide.rows, *shape[k:]])
            self.flat[node] = whole
        return self._part(self.flat[node], 0)

    def _part(self, node: fx.Node, axis: int) -> fx.Node:
        if self.count == 1:
            return node
        start = self.number * self.size
        return self._new(aten.slice.Tensor, node, axis, start, start + self.size)

    def _beside(self, node: Any, k: int, rank: int, lead: Sequence[int]) -> Any:
        """What a map over rows reads beside them: broadcast over rows whole, else the chunk of it."""
        if not isinstance(node, fx.Node):
            return node
        if node in self.own:
            return self.own[node]
        shape = value_of(node).shape
        own = (*(1 for _ in range(rank - len(shape))), *shape)
        if tuple(own[:k]) == tuple(lead):
            return self._rows_of(node)
        assert all(n == 1 for n in own[:k])
        whole = self._outer(node)
        return whole if len(shape) <= rank - k else self._new(aten.reshape.default, whole, list(own[k:]))

    # Nodes of one chunk

    def _made(self, node: fx.Node, k: int) -> fx.Node:
        target: Any = node.target
        value = value_of(node)
        args: list[Any] = list(node.args)
        kwargs = dict(node.kwargs)
        rest = list(value.shape[k:])
        shift = k - 1

        def within(dim: int, rank: int) -> int:
            return dim % rank - shift

        if target in WIDE:
            rows, columns = args[-2:] if target is aten.addmm.default else args
            more = [self._beside(args[0], 1, 2, value.shape[:1])] if target is aten.addmm.default else []
            return self._new(target, *more, self._rows_of(rows), self._outer(columns), **kwargs)
        if target in RESHAPES or target is aten.expand.default:
            source = args[0]
            made = self._rows_of(source) if target in RESHAPES else self._beside(source, k, value.ndim, value.shape[:k])
            if target in RESHAPES:
                return self._new(aten.reshape.default, made, [self.size, *rest])
            return self._new(target, made, [self.size, *rest])
        if target in SIZED:
            return self._new(target, [self.size, *rest], *args[1:], **kwargs)
        if target in SIZED_LIKE:
            like = self.own.get(args[0]) or self._outer(args[0])
            return self._new(target, like, [self.size, *rest], *args[2:], **kwargs)
        if torch.Tag.pointwise in target.tags:
            lead = value.shape[:k]
            taken = fx.node.map_arg((args, kwargs), lambda n: self._beside(n, k, value.ndim, lead))
            return self._new(target, *taken[0], **taken[1])
        source = args[0]
        rank = value_of(source).ndim
        own = self._rows_of(source)
        if target in REDUCTIONS:
            dims = args[1]
            dims = within(dims, rank) if isinstance(dims, int) else [within(d, rank) for d in dims]
            return self._new(target, own, dims, *args[2:], **kwargs)
        if target in PICKS | PUTS:
            more = [self._rows_of(a) if isinstance(a, fx.Node) else a for a in args[2:]]
            return self._new(target, own, within(args[1], rank), *more, **kwargs)
        if target in (aten.slice.Tensor, aten.select.int, aten.squeeze.dim):
            return self._new(target, own, within(args[1], rank), *args[2:], **kwargs)
        if target is aten.squeeze.dims:
            return self._new(target, own, [within(d, rank) for d in args[1]], **kwargs)
        if target is aten.unsqueeze.default:
            return self._new(target, own, within(args[1], rank + 1))
        if target is aten.slice_backward.default:
            return self._new(target, own, [self.size, *rest], within(args[2], value.ndim), *args[3:], **kwargs)
        if target in PERMUTES:
            order = [0, *(axis - shift for axis in order_of(node)[k:])]
            return self._new(aten.permute.default, own, order)
        return self._new(target, own, *args[1:], **kwargs)

    def _summed(self, node: fx.Node) -> fx.Node:
        """A chunk's part of what sums over rows."""
        if node.target is aten.sum.dim_IntList:
            source: Any = node.args[0]
            shape = list(value_of(node).shape)
            made = self._new(aten.sum.dim_IntList, self.own[source], [0])
            return made if list(value_of(made).shape) == shape else self._new(aten.reshape.default, made, shape)
        left, right = node.args
        assert isinstance(left, fx.Node)
        assert isinstance(right, fx.Node)
        if right in self.own:
            return self._new(aten.mm.default, self._part(self._outer(left), 1), self.own[right])
        (source,) = left.all_input_nodes
        return self._new(
            aten.mm.default, self._new(aten.t.default, self.own[source]), self._part(self._outer(right), 0)
        )


def _sort(graph: fx.Graph, made: Sequence[fx.Node]) -> None:
    """Puts what was made, in its order, between what it does not follow from and what does."""
    (output,) = (node for node in graph.nodes if node.op == "output")
    own = set(made)
    behind = readers(made) - own
    first = [node for node in graph.nodes if node not in own and node not in behind]
    last = [node for node in graph.nodes if node in behind]
    for node in (*first, *made, *last):
        if node is not output:
            output.prepend(node)
