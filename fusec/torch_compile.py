"""``torch.compile(model, backend="fusec")``: the backend that Dynamo finds through fusec's entry point.

Where no gradient is needed, Dynamo's graph is captured as it stands, in PyTorch's own whole calls. Where one is, or
where the graph changes memory in a way that a capture does not take, AOTAutograd first makes it functional, with a
forward and a backward graph. Each graph is compiled at its first call for the shapes and strides of that call, and
again for others; a node that can't be captured is run by PyTorch between the compiled parts; what can't be cut in
parts runs whole as written. All of it is counted: see :func:`report`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any, Literal
from weakref import WeakSet

import torch
from torch import fx
from torch._dynamo.exc import TensorifyScalarRestartAnalysis

from fusec import config, tracing
from fusec.ahead import for_range
from fusec.build import Options, build, checked
from fusec.checks import require_target
from fusec.errors import DimensionError, FusecError
from fusec.frontend.capture import Capture, Fallback
from fusec.frontend.torch_fx import UnfitNodeError, capture_graph
from fusec.frontend.torch_modes import without_onlookers
from fusec.options import check_switch
from fusec.report import explain_program
from fusec.runtime.dispatch import Dispatcher
from fusec.runtime.dynamic import Generality
from fusec.runtime.executable import Executable
from fusec.runtime.faults import fault_reason, is_capture_fault
from fusec.runtime.telling import Telling
from fusec.torch_symbols import SizedGraph, sizes_of

Kind = Literal["inference", "forward", "backward"]
log = config.logger("compile")
_OPTIONS = ("tune", "cache", "precision", "freeze", "warn")
_CUTS = 16
"""Nodes of one graph that may be run by PyTorch between compiled parts; beyond, the whole graph runs so."""

config.configure_logging()
tracing.start_from_environment()
_numbers = count()
_graphs: WeakSet[CompiledGraph] = WeakSet()
_lock = threading.Lock()
_listeners: list[list[CompiledGraph]] = []


@dataclass(frozen=True)
class Chosen:
    """The options of one ``torch.compile``."""

    build: Options
    warn: bool = True


def backend(module: fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """A compiled graph of Dynamo's: called with its inputs it gives the tuple of its outputs.

    Options (``torch.compile(..., options={...})``) are ``tune``, ``cache``, ``precision``, ``freeze`` and ``warn``, as
    for :func:`fusec.jit`. FusecError for others, OptionError for a value that can't be.
    """
    given = dict(options.get("options") or {})
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
        return _through_aot(module, example_inputs, chosen)
    except TensorifyScalarRestartAnalysis:
        raise
    except Exception as error:  # what PyTorch can't make functional may still be captured in parts
        log.info("graph can't be made functional: %s", error)
        return _add(module, kind, chosen)


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
        _tell_fault("a graph", "it is made functional first", error)
        return f"{error}"
    return None


_telling = Telling()


def _tell_fault(name: str, so: str, error: Exception) -> None:
    """Tells what ended a capture where it is a bug of ours: Dynamo has run the graph on fake tensors before."""
    own = error.__cause__ if isinstance(error, UnfitNodeError) else error
    if isinstance(own, Exception) and is_capture_fault(own):
        if config.verifies():
            raise own
        _telling.internal_error(name, so, fault_reason(own))


def _concrete(value: Any) -> Any:
    """A symbolic size as the number that it has now."""
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        if value.node.hint is None:
            raise FusecError(f"the size {value} is known only when the graph runs")
        return value.node.hint
    return value


def _through_aot(module: fx.GraphModule, example_inputs: Sequence[Any], options: Chosen) -> Callable[..., Any]:
    """AOTAutograd's forward and backward of a graph, each compiled."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch._aot_autograd.utils import make_boxed_func
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    def compiler(kind: Kind) -> Callable[..., Any]:
        def compile_graph(functional: fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
            if kind != "backward":
                _mark_static(functional)
            return make_boxed_func(_add(functional, kind, options))

        return compile_graph

    made = aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        partition_fn=min_cut_rematerialization_partition,
    )
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


# Compiled graphs

_require = partial(require_target, None)


def _add(module: fx.GraphModule, kind: Kind, options: Chosen) -> CompiledGraph:
    module.meta["fusec_name"] = name = f"{kind}_{next(_numbers)}"
    graph = CompiledGraph(module, kind, name, options)
    with _lock:
        _graphs.add(graph)
        for gathered in _listeners:
            gathered.append(graph)
    return graph


@dataclass(eq=False)
class CompiledGraph:
    """One FX graph, compiled at its first call for each layout of its inputs. Safe to call from many threads.

    ``cuts`` are the nodes that PyTorch runs between compiled parts, each with the reason.
    """

    module: fx.GraphModule
    kind: Kind
    name: str
    options: Chosen
    cuts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.parts: list[Dispatcher] = []
        self.telling = Telling(warn=self.options.warn)
        self._run: Callable[..., Any] = self._first_call
        self._lock = threading.Lock()

    def __call__(self, *args: Any) -> Any:
        return self._run(*args)

    def _first_call(self, *args: Any) -> Any:
        with self._lock:
            if self._run == self._first_call:
                self._run = self._cut(self.module, args)
        with without_onlookers():  # AOTAutograd's first call is under one
            return self._run(*args)

    def _cut(self, module: fx.GraphModule, args: Sequence[Any]) -> Callable[..., Any]:
        """The graph as one compiled part, or as parts around nodes that can't be captured."""
        try:
            capture_graph(module, args, {})
        except UnfitNodeError as error:
            if len(self.cuts) < _CUTS:
                return self._around(module, error)
            self.cuts.append(f"whole graph: {error}")
        except Exception as error:  # whatever a capture ends with, the graph still has to run
            _tell_fault(self.name, "the graph runs as written", error)
            self.cuts.append(f"whole graph: {error}")
        return self._part(module)

    def _around(self, module: fx.GraphModule, error: UnfitNodeError) -> Callable[..., Any]:
        from torch.fx.passes.split_module import split_module

        self.cuts.append(f"{error}")
        _tell_fault(self.name, f"{error.node} runs through PyTorch", error)
        log.info("%s: %s runs through PyTorch: %s", self.name, error.node, error)
        names = [node.name for node in module.graph.nodes]
        place = names.index(error.node)
        order = {name: (number > place) - (number < place) + 1 for number, name in enumerate(names)}
        whole: Any = split_module(module, module, lambda node: order[node.name], keep_original_order=True)
        for number in (0, 2):
            part = getattr(whole, f"submod_{number}", None)
            if part is not None:
                setattr(whole, f"submod_{number}", _Later(self, part))
        return partial(_call_module, whole)

    def _part(self, module: fx.GraphModule) -> Callable[..., Any]:
        module.meta["fusec_name"] = self.name if not self.parts else f"{self.name}_{len(self.parts)}"
        compile_capture = partial(_compile, options=self.options.build)
        try:
            sizes = sizes_of(module)
        except DimensionError as error:
            log.info("%s: each size is compiled by itself: %s", self.name, error)
            sizes = None
        if sizes is not None:
            return self._sized_part(SizedGraph(module, sizes), compile_capture)
        capture: Any = capture_graph
        part = Dispatcher(
            module, compile_capture, name=self.name, capture=capture, require=_require, telling=self.telling
        )
        self.parts.append(part)
        return lambda *args: part(args, {})

    def _sized_part(self, graph: SizedGraph, compile_capture: Callable[[Capture], Executable]) -> Callable[..., Any]:
        """A graph with symbolic sizes, compiled for ranges of them where that can be, else for each size."""
        sizes, together = graph.sizes, graph.together
        part = Dispatcher(
            graph,
            compile_capture,
            name=self.name,
            capture=_capture_sized,
            general=Generality(lambda capture_at, symbols, _: for_range(capture_at, symbols), True, False),
            openings=sizes.openings,
            require=_require,
            telling=self.telling,
        )
        self.parts.append(part)
        kept = sizes.kept

        def call(*args: Any) -> Any:
            given = tuple([args[k] for k in kept])
            result = part(given, {})
            return result if together is None else together(result, *given)

        return call

    @property
    def captures(self) -> list[Capture]:
        """What has been captured, one for each part and layout."""
        return [plan.capture for part in self.parts for plan in part.plans if plan.capture is not None]

    @property
    def executables(self) -> list[Executable]:
        """What has been compiled, one for each part and layout."""
        return [plan.executable for part in self.parts for plan in part.plans if plan.executable is not None]

    @property
    def eager_calls(self) -> dict[str, int]:
        """Calls that ran as written, by reason."""
        return {reason: n for part in self.parts for reason, n in part.eager_calls.items()}

    def report(self) -> str:
        """What was fused into which kernels, what ran through PyTorch and why."""
        plans = [plan for part in self.parts for plan in part.plans]
        if not plans:
            return f"{self.name}: not called yet\n"
        texts = []
        for plan in plans:
            if plan.executable is not None and plan.capture is not None:
                texts.append(explain_program(plan.executable.program, [*plan.capture.notes, *self._cut_notes()]))
            else:
                texts.append(f"{self.name} runs as written: {plan.reason}\n")
        closed = dict.fromkeys(reason for part in self.parts for reason in part.closed)
        texts += [f"not compiled for a range of sizes: {reason}\n" for reason in closed]
        eager = "".join(f"    {n} × {reason}\n" for reason, n in self.eager_calls.items())
        return "\n".join(texts) + (f"calls that ran as written\n{eager}" if eager else "")

    def _cut_notes(self) -> list[str]:
        return [f"runs through torch between compiled parts: {cut}" for cut in self.cuts]


class _Later(torch.nn.Module):
    """A part of a graph that is compiled, or cut again, at its first call."""

    def __init__(self, owner: CompiledGraph, module: fx.GraphModule) -> None:
        super().__init__()
        self._owner = owner
        self._graph = [module]  # not a submodule: it is no part of what is called
        self._run: Callable[..., Any] | None = None

    def forward(self, *args: Any) -> Any:
        if self._run is None:
            self._run = self._owner._cut(self._graph[0], args)
        return self._run(*args)


def _call_module(module: torch.nn.Module, *args: Any) -> Any:
    return module(*args)


def _capture_sized(
    graph: SizedGraph, args: Sequence[Any], kwargs: dict[str, Any], *, fallback: Fallback = "eager"
) -> Capture:
    capture = capture_graph(graph.module, graph.arguments(*args), kwargs, fallback=fallback)
    rebuild = capture.rebuild
    return replace(capture, rebuild=lambda outputs: graph.without(rebuild(outputs)))


def _compile(capture: Capture, options: Options) -> Executable:
    return build(capture.graph, "torch", options).executable


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
