"""AOTAutograd's forward and backward of an FX graph, each compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from fusec.torch_graphs import CompiledGraph, Kind

Add = Callable[[fx.GraphModule, Kind], CompiledGraph]
"""Makes the compiled graph of a functional one."""


def through_aot(module: fx.GraphModule, example_inputs: Sequence[Any], add: Add) -> Callable[..., Any]:
    """The function of a graph's inputs that runs its forward, and whose results lead to its backward.

    The graph is made functional for inputs like these, real or fake. ``add`` gets the forward and the backward, or
    where no result needs a gradient the graph itself. Raises what PyTorch raises for a graph that it can't trace.
    """
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch import config
    from torch._functorch._aot_autograd.utils import make_boxed_func
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    def compiler(kind: Kind) -> Callable[..., Any]:
        def compile_graph(functional: fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
            if kind != "backward":
                _mark_static(functional)
            return make_boxed_func(add(functional, kind))

        return compile_graph

    made = aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        partition_fn=min_cut_rematerialization_partition,
    )
    settings: Any = config
    with settings.patch(donated_buffer=False):  # a backward writes into no saved tensor, so it may run again
        compiled: Callable[..., Any] = made(module, example_inputs)
    return compiled


def _mark_static(module: fx.GraphModule) -> None:
    """Notes which inputs of AOTAutograd's graph are a module's own tensors."""
    context = torch._guards.TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    static = set(metadata.static_input_indices) if metadata is not None else set[int]()
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    for number, node in enumerate(placeholders):
        node.meta["fusec_static"] = number in static
