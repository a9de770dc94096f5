# SPDX-License-Identifier: Apache-2.0
"""AOTAutograd's forward and backward of an FX graph, each compiled.

Where the graph is cut decides what the forward saves. Scores (:mod:`fusec.torch_score_spaces`) are computed again in
the backward where the kernels of both graphs are predicted to take no longer so. Losses over wide rows
(:mod:`fusec.torch_row_chunks`) are made in chunks of rows, with their gradients.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from math import inf
from typing import Any

import torch
from torch import fx

from fusec import config
from fusec.build import Options
from fusec.torch_gradient_layouts import lay_out_gradients
from fusec.torch_graphs import Kind, predicted_time
from fusec.torch_row_chunks import chunks_of, cut_in_chunks
from fusec.torch_saved_inputs import Cut, cut_keeping_inputs, saved_by_eager
from fusec.torch_score_spaces import forms_of_spaces, recompute_scores
from fusec.torch_updates import drop_unread_statistics, update_in_place
from fusec.torch_wide_rows import wide_products

log = config.logger("compile")
Add = Callable[[fx.GraphModule, Kind], Callable[[list[Any]], Any]]
"""From a functional graph to the function that runs it compiled, of a list of its inputs, which it may empty."""


def through_aot(
    module: torch.nn.Module, example_inputs: Sequence[Any], add: Add, options: Options, *, at_once: bool = False
) -> Callable[..., Any]:
    """The function of a graph's inputs that runs its forward, and whose results lead to its backward.

    The graph is made functional for inputs like these, real or fake. ``add`` gets the forward and the backward, or
    where no result needs a gradient the graph itself; the backward when it first runs, or ``at_once`` where PyTorch
    can. Raises what PyTorch raises for a graph that it can't trace.
    """
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch import config

    def compiler(kind: Kind) -> Callable[..., Any]:
        def compile_graph(functional: fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
            if kind != "backward":
                _note_metadata(functional)
            return _boxed(add(functional, kind))

        return compile_graph

    made: Any = aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        partition_fn=partial(_cut, options),
        decompositions=_opened(),
    )
    settings: Any = config
    can = hasattr(settings, "force_non_lazy_backward_lowering")
    with settings.patch(force_non_lazy_backward_lowering=True) if at_once and can else nullcontext():
        compiled: Callable[..., Any] = made(module, example_inputs)
    return compiled


def _cut(
    options: Options, joint: fx.GraphModule, inputs: Any, *, num_fwd_outputs: int, **given: Any
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Forward and backward of a joint graph."""
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    given["num_fwd_outputs"] = num_fwd_outputs
    lay_out_gradients(joint, num_fwd_outputs)
    drop_unread_statistics(joint)
    own_marks = any("recompute" in node.meta for node in joint.graph.nodes)
    least_saved: Cut = min_cut_rematerialization_partition
    if not own_marks:
        least_saved = partial(cut_keeping_inputs, least_saved, saved_by_eager(joint, num_fwd_outputs))
    cut: Cut = partial(least_saved, **given)
    forms = [] if own_marks else forms_of_spaces(joint, num_fwd_outputs)
    wide = [] if own_marks else wide_products(joint, num_fwd_outputs)
    choices = [forms] if forms else []
    choices += [[form] for form in forms] if 1 < len(forms) <= MOST_FORMS else []
    copies = [fx.GraphModule(joint, copy.deepcopy(joint.graph)) for _ in (*choices, *wide[:1])]
    best = cut(joint, inputs)
    if not copies:
        return best
    least = _predicted(best, options)
    log.info("all saved: %s s predicted", least)
    if wide:
        chunked: Cut = partial(cut_in_chunks, least_saved, **given)
        made = chunked(copies.pop(), inputs)
        time = _predicted(made, options)
        log.info("rows in chunks: %s s predicted", time)
        allowed = FOR_MEMORY if any(chunks_of(each) > 1 for each in wide) else IN_ONE_PASS
        if time <= allowed * least < inf:
            best, least, cut = made, time, chunked
    for marked, chosen in zip(copies, choices):
        recompute_scores(marked, num_fwd_outputs, chosen)
        made = cut(marked, inputs)
        time = _predicted(made, options)
        log.info("scores of %s computed again: %s s predicted", chosen, time)
        if time <= least < inf:
            best, least = made, time
    return best


FOR_MEMORY = 1.05
"""How much longer chunks of rows may take than the whole, which needs several times the memory."""
IN_ONE_PASS = 1.02
"""The same for rows in one chunk: a loss and its gradient in one kernel take less than predicted, beside the two that
they are otherwise (GPT-2 of six layers on an H200: some 0.57 and 0.77 ms), and nothing of the rows is kept."""
MOST_FORMS = 3
"""Forms of score spaces up to which each is tried alone, too."""


def _predicted(graphs: tuple[fx.GraphModule, fx.GraphModule], options: Options) -> float:
    """Predicted seconds of a forward and a backward; infinity where nothing is."""
    times = [predicted_time(graph, options) for graph in graphs]
    return inf if None in times else sum(time for time in times if time is not None)


def _boxed(run: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """As AOTAutograd wants it: a function of a list of inputs, which says so."""

    def call(inputs: list[Any]) -> Any:
        return run(inputs)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _opened() -> dict[Any, Callable[..., Any]]:
    """Calls that are opened before the graph is cut, so that a backward computes their results again.

    Of a loss over a log-softmax the scores and two numbers a row are saved, and not the result too, which is of float32
    where the scores are of 16 bits. A backward reads results behind ``detach``, which the cut takes for more
    than a view.
    """
    from torch._decomp import get_decompositions

    aten = torch.ops.aten
    losses = (aten._log_softmax, aten.nll_loss_forward, aten.nll_loss2d_forward)
    backwards = (aten._log_softmax_backward_data, aten.nll_loss_backward, aten.nll_loss2d_backward)
    opened = get_decompositions([*losses, *backwards])
    return {**opened, aten.detach.default: aten.alias.default}


def written_inputs(count: int) -> list[int]:
    """Which of ``count`` inputs have their data written by the graph that is being made functional.

    All of them where AOTAutograd has made one input of several that share their memory.
    """
    context = torch._guards.TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    if metadata is None:
        return []
    written = [place for place, info in enumerate(metadata.input_info) if info.mutates_data]
    return list(range(count)) if written and len(metadata.input_info) != count else written


def _note_metadata(module: fx.GraphModule) -> None:
    """Notes which inputs of AOTAutograd's graph are a module's own tensors, and that its backward may run again."""
    context = torch._guards.TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    static = set(metadata.static_input_indices) if metadata is not None else set[int]()
    if metadata is not None:
        metadata.bw_donated_idxs = []  # the backward writes into no saved tensor
        update_in_place(module, metadata)
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    for number, node in enumerate(placeholders):
        node.meta["fusec_static"] = number in static
