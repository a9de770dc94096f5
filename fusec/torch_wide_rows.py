# SPDX-License-Identifier: Apache-2.0
"""What of a joint graph lies on the rows of a wide product, and can be made a chunk of rows at a time.

From a product that gives many values a row (a network's logits) it goes on through maps, reductions of rows and picks
from them, as far as leading axes are the product's rows. It ends at the results of each row and at sums over rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from fusec.torch_nodes import (
    CASTS,
    PERMUTES,
    RESHAPES,
    ancestors,
    aten,
    order_of,
    outputs_of,
    readers,
    size_of,
    tensor_of,
    value_of,
)

FEWEST = 2**20
"""Values that a wide product gives at least."""

WIDE = frozenset({aten.mm.default, aten.addmm.default})
SIZED = frozenset({aten.full.default, aten.zeros.default, aten.ones.default, aten.empty.memory_format})
SIZED_LIKE = frozenset({aten.new_zeros.default, aten.new_ones.default, aten.new_full.default})
LIKE = frozenset({aten.zeros_like.default, aten.ones_like.default, aten.full_like.default, aten.empty_like.default})
REDUCTIONS = frozenset(
    {
        *(aten.amax.default, aten.amin.default, aten.sum.dim_IntList, aten.mean.dim, aten.logsumexp.default),
        *(aten.argmax.default, aten.prod.dim_int, aten.any.dim, aten.all.dim),
    }
)
PICKS = frozenset({aten.gather.default})
PUTS = frozenset({aten.scatter.value, aten.scatter.src, aten.scatter_add.default})
CHANGE_RANK = frozenset(
    {
        *(*REDUCTIONS, *SIZED_LIKE),
        *(aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.select.int),
    }
)


@dataclass
class Wide:
    """What of a joint graph is made a chunk of rows at a time.

    ``nodes``: in order, each with how many of its leading axes are the rows. ``results``: of a row each; ``sums``: over
    rows. ``tangent``: the number that leads into the rows, whose gradients are made for 1.
    """

    start: fx.Node
    rows: int
    lead: dict[fx.Node, int] = field(default_factory=dict)
    results: list[fx.Node] = field(default_factory=list)
    sums: list[fx.Node] = field(default_factory=list)
    tangent: fx.Node | None = None


def wide_products(joint: fx.GraphModule, results: int) -> list[Wide]:
    """The wide products of a joint graph that can be made in chunks; ``results`` of its outputs are the forward's."""
    found: list[Wide] = []
    taken: set[fx.Node] = set()
    forward = ancestors(outputs_of(joint.graph)[:results])
    for node in joint.graph.nodes:
        if node in forward and node.target in WIDE and (size_of(node) or 0) >= FEWEST:
            wide = _Finding(joint.graph, node, results).found()
            if wide is not None and not taken & wide.lead.keys():
                found.append(wide)
                taken |= wide.lead.keys()
    return found


class _Finding:
    def __init__(self, graph: fx.Graph, start: fx.Node, results: int) -> None:
        value = value_of(start)
        self.graph, self.start = graph, start
        self.large = value.numel() // 2
        self.wide = Wide(start, value.shape[0])
        self.after_start = readers([start])
        self.outputs = {node for node in outputs_of(graph) if isinstance(node, fx.Node)}
        self.tangents = [n for n in graph.nodes if n.op == "placeholder" and "tangents" in str(n.target)]

    def found(self) -> Wide | None:
        """None where what follows a product can't be made in chunks, or makes no gradient."""
        wide = self.wide
        if not all(isinstance(n, int) for n in value_of(self.start).shape):
            return None
        lead = self._aligned()
        ahead = ancestors([node for node in lead if self._is_large(node)])
        kept = {node: k for node, k in lead.items() if node in ahead or self._reads_large(node)}
        self._take_makers(kept)
        order = {node: number for number, node in enumerate(self.graph.nodes)}
        wide.lead = {node: kept[node] for node in sorted(kept, key=order.__getitem__)}
        if not self._note_ends() or not self._note_tangent():
            return None
        gradients = [*wide.sums, *wide.results]
        return wide if any(node.target in WIDE for node in gradients) else None

    def _is_large(self, node: fx.Node) -> bool:
        return (node.target not in WIDE and (size_of(node) or 0) > self.large) or node is self.start

    def _reads_large(self, node: fx.Node) -> bool:
        return any(self._is_large(read) for read in node.all_input_nodes)

    def _aligned(self) -> dict[fx.Node, int]:
        """The nodes after the product whose leading axes are its rows, each with how many axes those are."""
        lead = {self.start: 1}
        for node in self.graph.nodes:
            if node in lead or not any(read in lead for read in node.all_input_nodes):
                continue
            if any(read.target in WIDE and read is not self.start for read in node.all_input_nodes if read in lead):
                continue  # a gradient of the rows: an end
            k = lead_after(node, lead)
            if k is not None:
                lead[node] = k
        return lead

    def _take_makers(self, kept: dict[fx.Node, int]) -> None:
        """Adds large values beside the rows that maps alone make: masks, zeros into which something is put."""
        waiting = list(kept)
        while waiting:
            node = waiting.pop()
            for read in node.all_input_nodes if node.target not in WIDE else ():
                if read in kept or read in self.after_start or read.op != "call_function" or not self._is_large(read):
                    continue
                k = kept[node]
                shape, own = value_of(read).shape, value_of(node).shape
                if shape[:k] == own[:k] and can_make(read, k):
                    kept[read] = k
                    waiting.append(read)

    def _note_ends(self) -> bool:
        """Notes what reads the rows from outside. False where wide values are needed, or are read across rows."""
        wide = self.wide
        for node in (node for node in wide.lead if node in self.after_start):
            outside = [reader for reader in node.users if reader not in wide.lead]
            for reader in list(outside):
                sums = self._sums_over_rows(node, reader)
                if sums is None:
                    continue
                if any(each in self.outputs and each is node for each in sums):
                    return False
                wide.sums += [each for each in sums if each not in wide.sums]
                outside.remove(reader)
            if not outside:
                continue
            if self._is_large(node):
                return False
            wide.results.append(node)
        return True

    def _sums_over_rows(self, node: fx.Node, reader: fx.Node) -> list[fx.Node] | None:
        """The products, or the sum, over all rows that a reader of wide values is or, as their transpose, leads to."""
        wide, k = self.wide, self.wide.lead[node]
        if not self._is_large(node):
            return None
        if reader.target is aten.sum.dim_IntList and not reader.kwargs:
            dims: Any = reader.args[1]
            rank = value_of(node).ndim
            return [reader] if sorted(d % rank for d in dims) == list(range(k)) else None
        if k != 1 or value_of(node).ndim != 2:
            return None
        if reader.target is aten.mm.default and reader.args[1] is node and reader.args[0] not in wide.lead:
            return [reader]
        if reader.target not in PERMUTES or order_of(reader) != [1, 0]:
            return None
        products = list(reader.users)
        good = all(p.target is aten.mm.default and p.args[0] is reader and p.args[1] not in wide.lead for p in products)
        return products if good and reader not in self.outputs else None

    def _note_tangent(self) -> bool:
        """Notes the number that leads into the rows. False where more than one does, or none, or they depend on sums
        over rows."""
        wide = self.wide
        read = {r for node in [*wide.lead, *wide.sums] for r in node.all_input_nodes}
        transposed = {r for each in wide.sums for r in each.all_input_nodes if r.target in PERMUTES}
        outer = {r for r in read - transposed if r not in wide.lead}
        outer |= {r for t in transposed for r in t.all_input_nodes if r not in wide.lead}
        if outer & self.after_start:
            return False
        leading = [t for t in self.tangents if outer & readers([t])]
        if len(leading) != 1 or value_of(leading[0]).ndim:
            return False
        wide.tangent = leading[0]
        halves = (node for node in [*wide.lead, *wide.sums] if value_of(node).dtype == torch.float16)
        return not any(halves)


def lead_after(node: fx.Node, lead: dict[fx.Node, int]) -> int | None:
    """How many leading axes of a node that reads rows are those rows; None where they are not, or it can't be made of
    a chunk of them."""
    made = tensor_of(node)
    if made is None or node.op != "call_function" or not all(isinstance(n, int) for n in made.shape):
        return None
    first = next(read for read in node.all_input_nodes if read in lead)
    given = value_of(first)
    rows = math.prod(given.shape[: lead[first]])
    k: int | None = lead[first]
    if node.target in RESHAPES:
        k = rows_prefix(made.shape, rows)
    elif node.target in WIDE:
        own = node.args[-2:] if node.target is aten.addmm.default else node.args
        if own[0] is not first or own[1] in lead or made.ndim != 2 or k != 1:
            return None
    elif made.ndim != given.ndim and node.target not in CHANGE_RANK:
        return None
    if k is None or len(made.shape) < k or math.prod(made.shape[:k]) != rows:
        return None
    if any(read in lead and lead[read] != lead[first] for read in node.all_input_nodes):
        return None
    return k if can_make(node, k) else None


def rows_prefix(shape: Sequence[int], rows: int) -> int | None:
    """The least number of leading axes that have so many places together."""
    for k in range(1, len(shape) + 1):
        if math.prod(shape[:k]) == rows:
            return k
    return None


def can_make(node: fx.Node, k: int) -> bool:
    """Whether a node whose ``k`` leading axes are rows can be made of a chunk of them."""
    target: Any = node.target
    rank = value_of(node).ndim
    read = node.args[0] if node.args and isinstance(node.args[0], fx.Node) else None
    if not isinstance(target, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded in target.tags:
        return False
    if target in WIDE or target in CASTS or target in LIKE or target in SIZED or target in SIZED_LIKE:
        return True
    if torch.Tag.pointwise in target.tags or target in (aten.expand.default, *RESHAPES):
        return target is not aten.expand.default or (read is not None and value_of(read).ndim == rank)
    if read is None:
        return False
    wide = value_of(read).ndim
    args: tuple[Any, ...] = node.args
    if target in REDUCTIONS:
        dims = [args[1]] if len(args) > 1 and isinstance(args[1], int) else list(args[1]) if len(args) > 1 else []
        return bool(dims) and min(d % wide for d in dims) >= k
    if target in PICKS | PUTS or target in (aten.slice.Tensor, aten.select.int, aten.squeeze.dim):
        return int(args[1]) % wide >= k
    if target is aten.squeeze.dims:
        return all(d % wide >= k for d in args[1])
    if target is aten.unsqueeze.default:
        return int(args[1]) % (wide + 1) >= k
    if target is aten.slice_backward.default:
        return int(args[2]) % rank >= k
    if target is aten.constant_pad_nd.default:
        return len(args[1]) // 2 <= rank - k
    if target in PERMUTES:
        return order_of(node)[:k] == list(range(k))
    return False
