# SPDX-License-Identifier: Apache-2.0
"""``torch.compile(model, backend="fusec")``: the backend that Dynamo finds through fusec's entry point.

Where no gradient is needed, Dynamo's graph is captured as it stands, in PyTorch's own whole calls. Where one is, or
where the graph changes memory in a way that a capture does not take, AOTAutograd first makes it functional, with a
forward and a backward graph. Each graph is compiled at its first call for the shapes and strides of that call, and
again for others; a node that can't be captured is run by PyTorch between the compiled parts; what can't be cut in
parts runs whole as written. All of it is counted: see :func:`report`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any
from weakref import WeakSet

import torch
from torch import fx
from torch._dynamo.exc import TensorifyScalarRestartAnalysis

from fusec import config, tracing
from fusec.build import Options, checked
from fusec.errors import FusecError
from fusec.frontend.torch_attention import with_library_attention
from fusec.frontend.torch_fx import capture_graph
from fusec.options import check_choice, check_switch
from fusec.torch_autograd import through_aot, written_inputs
from fusec.torch_graphs import Chosen, CompiledGraph, Kind, tell_fault
from fusec.torch_overlaps import WhereApart, examples_are_apart

log = config.logger("compile")
_OPTIONS = ("tune", "cache", "precision", "freeze", "warn")
_TUNED = {"tune": "quick"}
_MODES: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "reduce-overhead": {},
    "max-autotune": _TUNED,
    "max-autotune-no-cudagraphs": _TUNED,
}
"""PyTorch's modes, and the options that they stand for. No mode makes CUDA graphs: :func:`fusec.jit` does."""

config.configure_logging()
tracing.start_from_environment()
_numbers = count()
_graphs: WeakSet[CompiledGraph] = WeakSet()
_lock = threading.Lock()
_listeners: list[list[CompiledGraph]] = []


def backend(module: fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """A compiled graph of Dynamo's: called with its inputs it gives the tuple of its outputs.

    Options (``torch.compile(..., options={...})``) are ``tune``, ``cache``, ``precision``, ``freeze`` and ``warn``, as
    for :func:`fusec.jit`. Of PyTorch's modes those of autotuning are ``tune="quick"``. FusecError for other options,
    OptionError for a value or mode that can't be.
    """
    mode = options.get("mode") or "default"
    check_choice("mode", mode, tuple(_MODES))
    given = {**_MODES[mode], **(options.get("options") or {})}
    unknown = sorted(map(str, set(given) - set(_OPTIONS)))
    if unknown:
        known = ", ".join(_OPTIONS)
        raise FusecError(f"backend 'fusec' has no option {', '.join(unknown)}; its options are {known}")
    warn = given.pop("warn", True)
    check_switch("warn", warn)
    chosen = Chosen(checked(Options(**given)), warn)
    kind: Kind = "forward" if _wants_gradient(module) else "inference"
    if kind == "inference":
        reason = _why_not_direct(module, example_inputs)
        if reason is None:
            return _add(module, kind, chosen)
        log.info("graph is made functional first: %s", reason)
    try:
        return _functional(module, example_inputs, kind, chosen)
    except TensorifyScalarRestartAnalysis:
        raise
    except Exception as error:  # what PyTorch can't make functional may still be captured in parts
        log.info("graph can't be made functional: %s", error)
        return _add(module, kind, chosen)


def _functional(
    module: fx.GraphModule, example_inputs: Sequence[Any], kind: Kind, chosen: Chosen
) -> Callable[..., Any]:
    """The graph made functional, and as Dynamo has it where inputs that are written overlap others."""
    written: list[int] = []
    count = len(example_inputs)

    def add(graph: fx.GraphModule, kind: Kind) -> Callable[[list[Any]], Any]:
        if kind != "backward":
            written.extend(written_inputs(count))
        return _add(graph, kind, chosen).boxed

    compiled = through_aot(with_library_attention(module), example_inputs, add, chosen.build)
    if not written:
        return compiled
    as_it_is = partial(_add, module, kind, chosen)
    if not examples_are_apart(example_inputs, written):
        log.info("inputs that the graph writes overlap others: it is captured as it is")
        return as_it_is()
    return WhereApart(compiled, written, example_inputs, as_it_is)


def _wants_gradient(module: fx.GraphModule) -> bool:
    """True where any result in the graph requires grad. Where grad mode is off, a view of a parameter says so too."""
    switches = any(node.target is torch._C._set_grad_enabled for node in module.graph.nodes)
    if not torch.is_grad_enabled() and not switches:
        return False
    for node in module.graph.nodes:
        if node.op not in ("placeholder", "output") and any(t.requires_grad for t in _examples(node)):
            return True
    return False


def _examples(node: fx.Node) -> Iterator[torch.Tensor]:
    """The tensors that Dynamo noted as a node's result."""
    open_values = [node.meta.get("example_value")]
    while open_values:
        value = open_values.pop()
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, tuple | list):
            open_values += value


def _why_not_direct(module: fx.GraphModule, example_inputs: Sequence[Any]) -> str | None:
    """Why Dynamo's graph can't be captured as it stands; None where it can."""
    try:
        arguments = [_concrete(value) for value in example_inputs]
        capture_graph(module, arguments, {})
    except Exception as error:  # whatever a capture ends with, AOTAutograd is the next way
        tell_fault("a graph", "it is made functional first", error)
        return f"{error}"
    return None


def _concrete(value: Any) -> Any:
    """A symbolic size as the number that it has now."""
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        if value.node.hint is None:
            raise FusecError(f"the size {value} is known only when the graph runs")
        return value.node.hint
    return value


def _add(module: fx.GraphModule, kind: Kind, options: Chosen) -> CompiledGraph:
    module.meta["fusec_name"] = name = f"{kind}_{next(_numbers)}"
    graph = CompiledGraph(module, kind, name, options)
    with _lock:
        _graphs.add(graph)
        for gathered in _listeners:
            gathered.append(graph)
    return graph


# Telling


def graphs() -> list[CompiledGraph]:
    """All graphs that ``torch.compile`` has given to fusec in this process and that are still in use."""
    with _lock:
        return sorted(_graphs, key=lambda graph: int(graph.name.rpartition("_")[2]))


def report() -> str:
    """The reports on all :func:`graphs`: kernels, library calls, what ran as written and why."""
    return "\n".join(graph.report() for graph in graphs())


@contextmanager
def gathering() -> Iterator[list[CompiledGraph]]:
    """The graphs that are given to fusec while the body runs, kept alive."""
    gathered: list[CompiledGraph] = []
    with _lock:
        _listeners.append(gathered)
    try:
        yield gathered
    finally:
        with _lock:
            _listeners.remove(gathered)


def original_of(function: Any) -> Any:
    """What ``torch.compile`` was given to make ``function``; None where it did not make it."""
    if isinstance(function, torch._dynamo.eval_frame.OptimizedModule):
        return function._orig_mod
    return getattr(function, "_torchdynamo_orig_callable", None)


def explain_compiled(original: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> str:
    """Compiles the function anew for one call, runs that, and reports on its graphs and graph breaks."""
    from torch._dynamo.utils import counters

    before = dict(counters["graph_break"])
    with gathering() as gathered:
        own: Any = lambda *given, **options: backend(*given, **options)  # noqa: E731 - Dynamo compiles anew for a new backend
        torch.compile(original, backend=own)(*args, **kwargs)
    breaks = [reason for reason, n in counters["graph_break"].items() if n > before.get(reason, 0)]
    whole = sum(bool(graph.executables) for graph in gathered)
    head = f"{len(gathered)} graph{'' if len(gathered) == 1 else 's'} from torch.compile: {whole} compiled"
    head += f", {len(gathered) - whole} not\n" if whole < len(gathered) else "\n"
    lines = "".join(f"    graph break: {reason}\n" for reason in breaks)
    return head + lines + "\n" + "\n".join(graph.report() for graph in gathered)
