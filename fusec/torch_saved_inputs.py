# SPDX-License-Identifier: Apache-2.0
"""What a backward reads of a graph's inputs: those alone that eager's own backward saves.

Code may write to an input between a forward and its backward. Eager's nodes save some inputs, whose versions they
check, and results of others: ``tanh`` saves its result, so a write to its operand changes nothing. A cut of the joint
graph is free to save the operand instead and to compute the result again. So inputs that eager does not save are read
through a copy, which is made in the forward: the cut may save that, or what is made of it. Inputs that eager saves are
saved, whether or not the backward reads them, so that autograd checks their versions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from fusec.torch_nodes import Making, ancestors, aten, outputs_of, tensor_of

Graphs = tuple[fx.GraphModule, fx.GraphModule]
Cut = Callable[..., Graphs]
"""PyTorch's partitioners: forward and backward of a joint graph."""


def saved_by_eager(joint: fx.GraphModule, results: int) -> list[str]:
    """The names of the inputs whose memory nodes of autograd read; ``results`` of the outputs are the forward's."""
    forward = ancestors(outputs_of(joint.graph)[:results])
    return [
        node.name
        for node in _primals(joint.graph)
        if any(reader not in forward and not _is_tagged_forward(reader) for reader in _memory_readers(node))
    ]


def cut_keeping_inputs(
    cut: Cut, saved: Collection[str], joint: fx.GraphModule, inputs: Any, *, num_fwd_outputs: int, **given: Any
) -> Graphs:
    """Forward and backward of a joint graph: of the inputs the backward gets those that are ``saved``."""
    copies = [_read_through_copy(joint.graph, node) for node in _primals(joint.graph) if _is_unsaved(node, saved)]
    names = {node.name for node in copies}
    _leave_in_backward(joint.graph, saved, num_fwd_outputs)
    joint.recompile()
    forward, backward = cut(joint, inputs, num_fwd_outputs=num_fwd_outputs, **given)
    _drop_unsaved(forward, names)
    for name in saved:
        _save(forward, backward, name, num_fwd_outputs)
    return forward, backward


def _primals(graph: fx.Graph) -> list[fx.Node]:
    """The inputs that are tensors of the user's."""
    return [n for n in graph.nodes if n.op == "placeholder" and "primals" in str(n.target) and tensor_of(n) is not None]


def _is_tagged_forward(node: fx.Node) -> bool:
    """Whether PyTorch notes that a node ran in the forward: code of a user's may compute what it saves."""
    return node.meta.get("partitioner_tag") in ("is_forward", "must_be_in_forward")


def _memory_readers(node: fx.Node) -> Iterable[fx.Node]:
    """The nodes that read a tensor's memory, by itself or through views."""
    waiting, seen = [node], {node}
    while waiting:
        for reader in waiting.pop().users:
            if reader in seen or reader.op == "output":
                continue
            seen.add(reader)
            if _is_view(reader):
                waiting.append(reader)
            else:
                yield reader


def _is_view(node: fx.Node) -> bool:
    """Whether a node gives the memory of what it reads, and reads none of it."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    if target is aten._unsafe_view.default:
        return True
    return any(r.alias_info is not None and not r.alias_info.is_write for r in target._schema.returns)


def _is_unsaved(node: fx.Node, saved: Collection[str]) -> bool:
    """Whether an input's memory is read by the forward alone, and not written to in place."""
    if node.name in saved:
        return False
    readers = list(_memory_readers(node))
    writes = any(isinstance(r.target, torch._ops.OpOverload) and r.target._schema.is_mutable for r in readers)
    return bool(readers) and not writes


def _read_through_copy(graph: fx.Graph, node: fx.Node) -> fx.Node:
    following = next(n for n in graph.nodes if n.op != "placeholder")
    copied = Making(graph, following, node)(aten.clone.default, node)
    copied.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    node.replace_all_uses_with(copied, delete_user_cb=lambda user: user is not copied and user.op != "output")
    return copied


def _leave_in_backward(graph: fx.Graph, saved: Collection[str], results: int) -> None:
    """What eager computes of saved inputs in the backward is not made in the forward, where it may be smaller."""
    forward = ancestors(outputs_of(graph)[:results])
    for node in (node for node in _primals(graph) if node.name in saved):
        for reader in _memory_readers(node):
            if reader not in forward and not _is_tagged_forward(reader):
                reader.meta["partitioner_tag"] = "must_be_in_backward"


def _drop_unsaved(forward: fx.GraphModule, names: Collection[str]) -> None:
    """Without the copies that the forward alone reads."""
    outputs = set(outputs_of(forward.graph))
    for node in list(forward.graph.nodes):
        if node.name in names and node not in outputs:
            node.replace_all_uses_with(node.args[0])
            forward.graph.erase_node(node)
    forward.recompile()


def _save(forward: fx.GraphModule, backward: fx.GraphModule, name: str, results: int) -> None:
    """Adds an input to what the forward saves, unless it or a view of it is among that."""
    (primal,) = (node for node in forward.graph.nodes if node.op == "placeholder" and node.name == name)
    (output,) = (node for node in forward.graph.nodes if node.op == "output")
    outputs = outputs_of(forward.graph)
    if any(isinstance(each, fx.Node) and _root(each) is primal for each in outputs[results:]):
        return
    placeholders = [node for node in backward.graph.nodes if node.op == "placeholder"]
    first = next(node for node in placeholders if tensor_of(node) is not None or "tangents" in str(node.target))
    with backward.graph.inserting_before(first):
        given = backward.graph.placeholder(name)
    given.meta |= primal.meta
    output.args = ((*outputs[:results], primal, *outputs[results:]),)
    told = output.meta.get("desc")
    if told is not None:
        output.meta["desc"] = [*told[:results], None, *told[results:]]
    forward.recompile()
    backward.recompile()


def _root(node: fx.Node) -> fx.Node:
    while _is_view(node) and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node
