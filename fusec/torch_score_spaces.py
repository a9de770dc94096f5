# SPDX-License-Identifier: Apache-2.0
"""Score spaces of a joint graph: rows × columns values that a backward makes again instead of reading them.

A *score space* begins at a product that is large beside its operands (queries by keys), goes on through maps and a
softmax, and ends at products that contract its columns. What lies on it is marked to be computed again in the
backward. Of each row the maximum and the sum of exponentials are saved: with them a weight is computed from its score
alone. The row sum in a softmax's derivative becomes one of the outputs: ``sum_j P_ij dP_ij = sum_d O_id dO_id``, as
``O = P V`` and ``dP = dO Vᵀ`` (Dao and others, *FlashAttention*, 2022). A backward of such a graph is two products of
scores' size, maps, and products that consume them by rows and by columns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from fusec.torch_nodes import (
    CASTS,
    MAKERS,
    PRODUCTS,
    VIEWS,
    ancestors,
    aten,
    outputs_of,
    readers,
    size_of,
    tensor_of,
    value_of,
)
from fusec.torch_softmaxes import open_softmax

LARGE = 2
"""How many times larger than its operands a product is that begins a score space."""
WIDEST = 256
"""Elements that such a product contracts: a block of longer rows is not held where scores are computed."""

Form = tuple[tuple[int, ...], ...]
"""The shapes of a score space's first product and of its operands. Spaces of one form are computed again together."""


@dataclass
class _Space:
    """``nodes``: what lies on the space. ``consumers``: the forward's products that contract it."""

    form: Form
    nodes: set[fx.Node] = field(default_factory=set)
    consumers: set[fx.Node] = field(default_factory=set)
    softmaxes: list[fx.Node] = field(default_factory=list)


def forms_of_spaces(joint: fx.GraphModule, results: int) -> list[Form]:
    """The forms of a joint graph's score spaces. ``results``: how many outputs are the forward's.

    None of a graph that holds marks of the user's own (``torch.utils.checkpoint``).
    """
    if any("recompute" in node.meta for node in joint.graph.nodes):
        return []
    return list(dict.fromkeys(space.form for space in _find(joint.graph, results)))


def recompute_scores(joint: fx.GraphModule, results: int, forms: Collection[Form]) -> None:
    """Marks what lies on the score spaces of these forms, and opens their softmaxes.

    PyTorch's partitioners honour the marks.
    """
    forward = ancestors(outputs_of(joint.graph)[:results])
    for space in [space for space in _find(joint.graph, results) if space.form in forms]:
        for reader in (reader for node in space.nodes for reader in node.users):
            if _is_statistic(reader):
                reader.meta["recompute"] = CheckpointPolicy.MUST_SAVE
        for softmax in space.softmaxes:
            space.nodes.remove(softmax)
            space.nodes |= open_softmax(joint.graph, softmax, forward)
        for node in space.nodes:
            node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
    joint.graph.eliminate_dead_code()
    joint.recompile()


# Finding


def _find(graph: fx.Graph, results: int) -> list[_Space]:
    outputs = outputs_of(graph)
    forward = ancestors(outputs[:results])
    after = readers(node for node in graph.nodes if node.op == "placeholder" and "tangents" in str(node.target))
    found: list[_Space] = []
    taken: set[fx.Node] = set()
    for node in graph.nodes:
        if node not in forward or node in taken or not _begins(node):
            continue
        space = _space(node, forward, after, set(outputs[:results]))
        if space is not None and not space.nodes & taken:
            found.append(space)
            taken |= space.nodes
    return found


def _begins(node: fx.Node) -> bool:
    """Whether a product is large beside its operands, of sizes that are known."""
    if node.target not in PRODUCTS:
        return False
    sizes = [size_of(each) for each in (node, *node.all_input_nodes)]
    if None in sizes or len(sizes) < 2:
        return False
    made, *read = (size for size in sizes if size is not None)
    return made >= LARGE * sum(read) and value_of(node.all_input_nodes[0]).shape[-1] <= WIDEST


def _space(start: fx.Node, forward: set[fx.Node], after: set[fx.Node], results: set[fx.Node]) -> _Space | None:
    """What a product's scores lead to; None where something on the way is a result or is no map."""
    space = _Space(tuple(tuple(value_of(each).shape) for each in (start, *start.all_input_nodes)))
    size, value = size_of(start), tensor_of(start)
    assert size is not None
    assert value is not None
    plane = value.shape[-2] * value.shape[-1]
    waiting = [start]
    while waiting:
        node = waiting.pop()
        if node in space.nodes:
            continue
        if node in results:
            return None
        space.nodes.add(node)
        if node.target is aten._softmax.default:
            space.softmaxes.append(node)
        waiting += _below(node, plane, space.nodes)
        for reader in node.users:
            if reader in after or _is_statistic(reader, size):
                continue
            if reader.target in PRODUCTS and reader in forward:
                space.consumers.add(reader)
            elif _is_map(reader):
                waiting.append(reader)
            elif reader in forward:
                return None
    return space if space.consumers else None


def _below(node: fx.Node, plane: int, known: set[fx.Node]) -> Iterator[fx.Node]:
    """What a map on the space reads that is as large as rows × columns, and is made by maps: masks and biases."""
    if node.target in PRODUCTS:
        return
    for read in node.all_input_nodes:
        size = size_of(read)
        if read not in known and size is not None and size >= plane and (_is_map(read) or _begins(read)):
            yield read


def _is_map(node: fx.Node) -> bool:
    target = node.target
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded in target.tags or tensor_of(node) is None:
        return False
    maps = target in VIEWS or target in MAKERS or target in CASTS or target is aten._softmax.default
    return maps or torch.Tag.pointwise in target.tags


def _is_statistic(node: fx.Node, size: int | None = None) -> bool:
    """Whether a node sums a space up: its results are much smaller than what it reads, or than ``size``."""
    if node.op != "call_function" or _is_map(node) or node.target in PRODUCTS:
        return False
    value = node.meta.get("val")
    given = value if isinstance(value, tuple | list) else (value,)
    made = [each for each in given if isinstance(each, torch.Tensor)]
    if size is None:
        size = max((size_of(read) or 0 for read in node.all_input_nodes), default=0)
    known = all(isinstance(n, int) for v in made for n in v.shape)
    return bool(made) and known and all(v.numel() * 4 <= size for v in made)
