# SPDX-License-Identifier: Apache-2.0
"""Inputs that a graph updates (a batch norm's running statistics), written where they lie.

AOTAutograd makes a graph functional: what an input becomes is a result, which its code copies into the input after the
call, one kernel for each. A graph that writes the input and gives it back leaves nothing to copy: ``copy_`` of memory
to itself only counts a version.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from fusec.torch_nodes import aten, outputs_of, tensor_of


def drop_unread_statistics(joint: fx.GraphModule) -> None:
    """Takes running statistics out of the gradients of batch norms in training, which read those of the batch.

    They would be saved for the backward, and so be read after they were updated.
    """
    for node in joint.graph.nodes:
        if node.target is aten.native_batch_norm_backward.default and node.args[7] is True:
            node.args = (*node.args[:3], None, None, *node.args[5:])


def update_in_place(module: fx.GraphModule, metadata: Any) -> None:
    """Writes the inputs that a functional graph updates in the graph, as far as nothing else shows their memory.

    Each is written when its new data is made and the old one was read: before a later call that raises, as in the code.
    ``metadata`` is AOTAutograd's own of the graph's inputs, whose order is that of the placeholders; the first results
    are those that become inputs.
    """
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    updated: list[int] = metadata.mutated_inp_runtime_indices
    results = outputs_of(module.graph)
    if len(placeholders) != len(metadata.input_info):
        return  # pieces of tensor subclasses, tokens
    order = {node: k for k, node in enumerate(module.graph.nodes)}
    (output,) = (node for node in module.graph.nodes if node.op == "output")
    changed = list(results)
    for position, number in enumerate(updated):
        target, made = placeholders[number], results[position]
        if _can_be_written(target, made, metadata.input_info[number], results):
            with module.graph.inserting_after(max(made, *target.users, key=order.__getitem__)):
                written = module.graph.call_function(aten.copy_.default, (target, made))
            written.meta |= {**made.meta, "val": target.meta["val"]}
            changed[position] = written
    if changed != results:
        output.args = (tuple(changed),)
        module.recompile()


def _can_be_written(target: fx.Node, made: Any, info: Any, results: list[Any]) -> bool:
    """Whether a result is the new data of an input alone, and no other result shows the input's memory."""
    if not isinstance(made, fx.Node) or made.op != "call_function" or results.count(made) > 1:
        return False
    if not info.mutates_data or info.mutates_metadata or info.requires_grad:
        return False
    old, new = tensor_of(target), tensor_of(made)
    if old is None or new is None or (old.shape, old.dtype, old.device) != (new.shape, new.dtype, new.device):
        return False
    return target not in results and not any(_may_show(reader) for reader in target.users)


def _may_show(reader: fx.Node) -> bool:
    """Whether a node's results may be views of what it reads."""
    target = reader.target
    if not isinstance(target, torch._ops.OpOverload):
        return True
    returns = target._schema.returns
    return any(each.alias_info is not None for each in returns)
