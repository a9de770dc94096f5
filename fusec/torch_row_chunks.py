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
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from fusec.torch_nodes import (
    CASTS,
    PERMUTES,
    RESHAPES,
    Making,
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
CHUNK_BYTES = 2**28
"""Bytes of a wide product's values that a chunk has at most, where as many chunks can be made."""
MOST_CHUNKS = 4
"""Chunks at most: the sums of 16-bit gradients over rows are rounded to 16 bits after each."""

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


# Finding


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
    k, given = lead[first], value_of(first)
    if node.target in RESHAPES:
        k = _prefix(made.shape, math.prod(given.shape[:k]))
    elif node.target in WIDE:
        own = node.args[-2:] if node.target is aten.addmm.default else node.args
        if own[0] is not first or own[1] in lead or made.ndim != 2 or k != 1:
            return None
    elif node.target in REDUCTIONS | PICKS | PUTS or node.target in CASTS:
        pass
    elif made.ndim != given.ndim and node.target not in (
        *(aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.select.int),
        *(*SIZED_LIKE,),
    ):
        return None
    if k is None or tuple(made.shape[:k]) != _rows_shape(made, k, math.prod(given.shape[: lead[first]])):
        return None
    if any(read in lead and lead[read] != lead[first] for read in node.all_input_nodes):
        return None
    return k if can_make(node, k) else None


def _rows_shape(made: torch.Tensor, k: int, rows: int) -> tuple[int, ...] | None:
    shape = tuple(made.shape[:k])
    return shape if math.prod(shape) == rows and len(shape) == k else None


def _prefix(shape: Sequence[int], rows: int) -> int | None:
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
    if target in REDUCTIONS:
        dims: Any = node.args[1] if len(node.args) > 1 else None
        dims = [dims] if isinstance(dims, int) else dims
        return bool(dims) and all(d % wide >= k for d in dims)
    if target in PICKS | PUTS or target in (aten.slice.Tensor, aten.select.int, aten.squeeze.dim):
        dim: Any = node.args[1]
        return dim % wide >= k
    if target is aten.squeeze.dims:
        many: Any = node.args[1]
        return all(d % wide >= k for d in many)
    if target is aten.unsqueeze.default:
        at: Any = node.args[1]
        return at % (wide + 1) >= k
    if target is aten.slice_backward.default:
        back: Any = node.args[2]
        return back % rank >= k
    if target is aten.constant_pad_nd.default:
        pads: Any = node.args[1]
        return len(pads) // 2 <= rank - k
    if target in PERMUTES:
        return order_of(node)[:k] == list(range(k))
    return False


# Rewriting


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
        k = _prefix(shape, self.wide.rows)
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
            made = self._new(node.target, self.own[source], [0])
            return made if list(value_of(made).shape) == shape else self._new(aten.reshape.default, made, shape)
        left, right = node.args
        assert isinstance(left, fx.Node)
        assert isinstance(right, fx.Node)
        if right in self.own:
            return self._new(node.target, self._part(self._outer(left), 1), self.own[right])
        (source,) = left.all_input_nodes
        return self._new(node.target, self._new(aten.t.default, self.own[source]), self._part(self._outer(right), 0))


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
