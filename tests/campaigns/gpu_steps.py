"""Whole steps of models compiled for a GPU that is not here: ``python -m tests.campaigns.gpu_steps [NAME ...]``.

Each model's inference, forward and backward, in f32 and bf16, as AOTAutograd makes them for tensors of a card. A graph
goes through all passes and each kernel's source is written. On a card an error there is hidden: the graph runs as
written, with a warning. Here it fails the run. Nothing is computed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from fusec.build import Options, kernel_source, run_passes
from fusec.frontend.torch_fx import UnfitNodeError, capture_graph
from fusec.runtime.faults import is_capture_fault
from fusec.torch_autograd import through_aot

TARGET = "cuda:sm_90"
DTYPES = (torch.float32, torch.bfloat16)


@dataclass
class Outcome:
    """One graph: what it ended with, how many kernels it has, the node that PyTorch would run."""

    name: str
    error: str = ""
    kernels: int = 0
    cut: str = ""


class Step(nn.Module):
    """A module as a function of its parameters, buffers and arguments."""

    def __init__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self._held = [module]
        self.state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        leaves, self._spec = pytree.tree_flatten((args, kwargs))
        self._rest = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.given = [*self.state.values(), *(leaf for leaf in leaves if isinstance(leaf, Tensor))]

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        count = len(self.state)
        tensors = iter(given[count:])
        leaves = [next(tensors) if leaf is None else leaf for leaf in self._rest]
        args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        result = torch.func.functional_call(self._held[0], dict(zip(self.state, given)), args, kwargs)
        return tuple(t for t in pytree.tree_leaves(result) if isinstance(t, Tensor))


def graphs_of(step: Step, dtype: torch.dtype, train: bool) -> list[tuple[str, fx.GraphModule]]:
    """The graphs that AOTAutograd makes of a step, as on a card: autograd itself knows none here."""
    found: list[tuple[str, fx.GraphModule]] = []

    def add(graph: fx.GraphModule, kind: str) -> Callable[[list[Any]], Any]:
        found.append((kind, graph))
        return lambda inputs: None

    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        given = [_fake(x, dtype, train) for x in step.given]
        with (
            torch.set_grad_enabled(train),
            patch.object(F, "scaled_dot_product_attention", _attention),
            patch.object(torch.compiler, "is_compiling", lambda: True),  # models ask values of masks otherwise
        ):
            through_aot(step, given, add, Options(target=TARGET), at_once=True)
        for _, graph in found:
            _move(mode, graph)
    return found


def _fake(x: Tensor, dtype: torch.dtype, train: bool) -> Tensor:
    made = torch.empty_strided(x.shape, x.stride(), dtype=dtype if x.is_floating_point() else x.dtype)
    return made.requires_grad_(train and isinstance(x, nn.Parameter) and made.is_floating_point())


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """What PyTorch chooses on a card."""
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (t.repeat_interleave(groups, -3) for t in (key, value))
    if query.dim() != 4:
        return _WRITTEN(query, key, value, attn_mask, dropout_p, is_causal, scale=scale)
    aten: Any = torch.ops.aten
    if attn_mask is not None:
        if attn_mask.dtype is torch.bool:
            attn_mask = torch.where(attn_mask, 0.0, -torch.inf).to(query.dtype)
        attn_mask = attn_mask.expand(*query.shape[:-1], key.shape[-2])
    graded = any(t.requires_grad for t in (query, key, value))
    made = aten._scaled_dot_product_efficient_attention(
        query, key, value, attn_mask, graded, dropout_p, is_causal, scale=scale
    )
    return cast(Tensor, made[0]).contiguous()  # PyTorch's own layout depends on the card


_WRITTEN = F.scaled_dot_product_attention


def _move(mode: FakeTensorMode, graph: fx.GraphModule) -> None:
    """Notes for each input of a graph what it is on a card, and makes new tensors there."""
    for node in graph.graph.nodes:
        if node.op == "placeholder" and isinstance(node.meta["val"], Tensor):
            x = node.meta["val"]
            node.meta["val"] = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda")
        if node.kwargs.get("device") == torch.device("cpu"):
            node.kwargs = {**node.kwargs, "device": torch.device("cuda")}
    graph.recompile()


def compiled(name: str, graph: fx.GraphModule) -> Outcome:
    """The graph through all passes, and its kernels as sources."""
    given = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
    try:
        with patch.object(torch.cuda, "_lazy_init", lambda: None):  # fake tensors need no card
            captured = capture_graph(graph, given, {}, foreseen=True).graph
    except UnfitNodeError as error:
        if is_capture_fault(error.__cause__) if isinstance(error.__cause__, Exception) else False:
            return Outcome(name, f"{error}")
        return Outcome(name, cut=f"{error}")
    try:
        program = run_passes(captured, TARGET, Options(target=TARGET)).program
        for kernel in program.kernels:
            kernel_source(kernel, TARGET)
    except Exception as error:
        where = error.__traceback__
        while where is not None and where.tb_next is not None:
            where = where.tb_next
        place = f"{where.tb_frame.f_code.co_filename}:{where.tb_lineno}" if where is not None else ""
        return Outcome(name, f"{type(error).__name__}: {error} ({place})")
    return Outcome(name, kernels=len(program.kernels))


def outcomes_of(name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Outcome]:
    """Every graph of a module: inference, and a training step, in each dtype."""
    made = []
    for train in (False, True):
        module.train(train)
        for dtype in DTYPES:
            case = f"{name} {str(dtype).removeprefix('torch.')}"
            try:
                graphs = graphs_of(Step(module, args, kwargs), dtype, train)
            except Exception as error:  # values decide, or PyTorch has no such thing: nothing of fusec's
                made.append(Outcome(case, cut=f"not traced: {type(error).__name__}: {error}"))
                continue
            made += [compiled(f"{case} {kind}", graph) for kind, graph in graphs]
    return made


def main(arguments: list[str]) -> int:
    from tests.campaigns.models import all_models

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="models; all without a name")
    parser.add_argument("--part", default="0/1", help="K/N: each N-th model from the K-th on")
    given = parser.parse_args(arguments)
    first, step = map(int, given.part.split("/"))
    models, missing = all_models()
    for line in missing:
        print(line)
    names = [name for name in models if not given.names or name in given.names][first::step]
    graphs = failures = 0
    for name in names:
        torch.manual_seed(0)
        for outcome in outcomes_of(name, *models[name].make()):
            graphs += not outcome.cut.startswith("not traced")
            failures += bool(outcome.error)
            text = f"WRONG {outcome.error}" if outcome.error else f"{outcome.kernels} kernels"
            print(f"{outcome.name}: {f'cut at {outcome.cut}' if outcome.cut else text}"[:400], flush=True)
    print(f"{failures} of {graphs} graphs of {len(names)} models end with an internal error")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
