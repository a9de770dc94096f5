# SPDX-License-Identifier: Apache-2.0
"""FX graphs of PyTorch's own compilers (Dynamo's, and AOTAutograd's forwards and backwards), compiled one by one.

A graph is compiled at its first call, for the shapes and strides of that call, and again for others. A node that
can't be captured is run by PyTorch between compiled parts; what can't be cut runs whole as written. All is counted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import fx

from fusec import config
from fusec.ahead import for_range, size_classes
from fusec.build import Options, compile_with, run_passes, target_of
from fusec.checks import require_target
from fusec.errors import DimensionError
from fusec.frontend.capture import Capture, Fallback
from fusec.frontend.torch_fx import UnfitNodeError, capture_graph
from fusec.frontend.torch_modes import without_onlookers
from fusec.ir.index import Symbol
from fusec.report import explain_program, predicted_seconds
from fusec.runtime.dispatch import Dispatcher
from fusec.runtime.dynamic import CaptureAt, Conditions, Generality
from fusec.runtime.executable import Executable
from fusec.runtime.faults import fault_reason, is_capture_fault
from fusec.runtime.plan import Compile
from fusec.runtime.telling import Telling
from fusec.torch_symbols import SizedGraph, sizes_of

Kind = Literal["inference", "forward", "backward"]
log = config.logger("compile")
_CUTS = 16
"""Nodes of one graph that may be run by PyTorch between compiled parts; beyond, the whole graph runs so."""


@dataclass(frozen=True)
class Chosen:
    """The options of one compilation."""

    build: Options
    warn: bool = True


_require = partial(require_target, None)


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
        return self._run(args)

    def boxed(self, args: list[Any]) -> Any:
        """The call with arguments that are its own: the list is emptied, and each is let go when it has been read."""
        return self._run(args)

    def _first_call(self, args: Sequence[Any]) -> Any:
        with self._lock:
            if self._run == self._first_call:
                self._run = self._cut(self.module, args)
        with without_onlookers():  # AOTAutograd's first call is under one
            return self._run(args)

    def _cut(self, module: fx.GraphModule, args: Sequence[Any]) -> Callable[..., Any]:
        """The graph as one compiled part, or as parts around nodes that can't be captured."""
        try:
            capture_graph(module, args, {})
        except UnfitNodeError as error:
            if len(self.cuts) < _CUTS:
                return self._around(module, error)
            self.cuts.append(f"whole graph: {error}")
        except Exception as error:  # whatever a capture ends with, the graph still has to run
            tell_fault(self.name, "the graph runs as written", error)
            self.cuts.append(f"whole graph: {error}")
        return self._part(module)

    def _around(self, module: fx.GraphModule, error: UnfitNodeError) -> Callable[..., Any]:
        from torch.fx.passes.split_module import split_module

        self.cuts.append(f"{error}")
        tell_fault(self.name, f"{error.node} runs through PyTorch", error)
        log.info("%s: %s runs through PyTorch: %s", self.name, error.node, error)
        names = [node.name for node in module.graph.nodes]
        failed = names.index(error.node)
        order = {name: (number > failed) - (number < failed) + 1 for number, name in enumerate(names)}
        whole: Any = split_module(module, module, lambda node: order[node.name], keep_original_order=True)
        for number in (0, 2):
            part = getattr(whole, f"submod_{number}", None)
            if part is not None:
                setattr(whole, f"submod_{number}", _Later(self, part))
        return partial(_call_module, whole)

    def _part(self, module: fx.GraphModule) -> Callable[..., Any]:
        module.meta["fusec_name"] = self.name if not self.parts else f"{self.name}_{len(self.parts)}"
        compile_capture = compile_with(self.options.build)
        try:
            sizes = sizes_of(module)
        except DimensionError as error:
            log.info("%s: each size is compiled by itself: %s", self.name, error)
            sizes = None
        if sizes is not None:
            return self._sized_part(SizedGraph(module, sizes), compile_capture)
        capture: Any = capture_graph
        part = Dispatcher(
            module, compile_capture, name=self.name, capture=capture, require=_require, telling=self.telling, owns=True
        )
        self.parts.append(part)
        return lambda args: part(args, {})

    def _sized_part(self, graph: SizedGraph, compile_capture: Compile) -> Callable[..., Any]:
        """A graph with symbolic sizes, compiled for ranges of them where that can be, else for each size."""
        sizes, together = graph.sizes, graph.together
        part = Dispatcher(
            graph,
            compile_capture,
            name=self.name,
            capture=_capture_sized,
            general=Generality(_for_range, "sampled", False, size_classes),
            openings=sizes.openings,
            require=_require,
            telling=self.telling,
        )
        self.parts.append(part)
        taken = sizes.taken

        def call(args: Sequence[Any]) -> Any:
            given = tuple([args[k] for k in taken])
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
                notes = [*plan.capture.notes, *self._cut_notes()]
                texts.append(explain_program(plan.executable.program, notes, owned=self.kind == "backward"))
            else:
                texts.append(f"{self.name} runs as written: {plan.reason}\n")
        closed = dict.fromkeys(reason for part in self.parts for reason in part.closed)
        texts += [f"not compiled for a range of sizes: {reason}\n" for reason in closed]
        eager = "".join(f"    {n} × {reason}\n" for reason, n in self.eager_calls.items())
        return "\n".join(texts) + (f"calls that ran as written\n{eager}" if eager else "")

    def foreseen(self) -> str:
        """The report, before the first call on a program for inputs like the ones that PyTorch noted in the graph."""
        if any(part.plans for part in self.parts):
            return self.report()
        self.module.meta["fusec_name"] = self.name
        noted = [node.meta["val"] for node in self.module.graph.nodes if node.op == "placeholder"]
        try:
            examples = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device) for x in noted]
            capture = capture_graph(self.module, examples, {})
            program = compile_with(self.options.build)(capture).program
        except Exception as error:  # its first call compiles it in parts
            return f"{self.name} is not compiled in one piece: {error}\n"
        return explain_program(program, capture.notes, owned=self.kind == "backward")

    def _cut_notes(self) -> list[str]:
        return [f"runs through torch between compiled parts: {cut}" for cut in self.cuts]


def predicted_time(module: fx.GraphModule, options: Options) -> float | None:
    """Predicted seconds of a graph's kernels, for inputs like the ones that PyTorch noted in it.

    None where it can't be compiled in one piece.
    """
    noted = [node.meta["val"] for node in module.graph.nodes if node.op == "placeholder"]
    try:
        graph = capture_graph(module, noted, {}, foreseen=True).graph
        lowered = run_passes(graph, options.target or target_of(graph), replace(options, tune=False))
        return predicted_seconds(lowered.program)
    except Exception as error:  # its first call compiles it in parts
        log.debug("no time is predicted: %s", error)
        return None


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
        return self._run(args)


def _call_module(module: torch.nn.Module, args: Sequence[Any]) -> Any:
    return module(*args)


def _capture_sized(
    graph: SizedGraph, args: Sequence[Any], kwargs: dict[str, Any], *, fallback: Fallback = "eager"
) -> Capture:
    capture = capture_graph(graph.module, graph.arguments(*args), kwargs, fallback=fallback)
    rebuild = capture.rebuild
    return replace(capture, rebuild=lambda outputs: graph.without(rebuild(outputs)))


def _for_range(capture_at: CaptureAt, symbols: Sequence[Symbol], conditions: Conditions | None) -> Capture:
    """Dynamo's guards hold at each call: no conditions are asked."""
    return for_range(capture_at, symbols)


# Telling

_telling = Telling()


def tell_fault(name: str, so: str, error: Exception) -> None:
    """Tells what ended a capture where it is a bug of ours: Dynamo has run the graph on fake tensors before."""
    own = error.__cause__ if isinstance(error, UnfitNodeError) else error
    if isinstance(own, Exception) and is_capture_fault(own):
        if config.verifies():
            raise own
        _telling.internal_error(name, so, fault_reason(own))
