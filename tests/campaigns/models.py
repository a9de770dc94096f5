"""Models in their default call, as written and through fusec: ``python -m tests.campaigns.models [NAME ...]``.

Each model runs in a process of its own, in up to four ways: through ``fusec.jit`` and through ``torch.compile``, both
in ``eval`` mode under ``no_grad``, and, for some, the gradients of one training step through each. Results
are compared in structure, in classes and in values; calls that run as written, graph breaks and nodes that PyTorch runs
between compiled parts are counted; times of warm calls are medians of interleaved calls.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

import torch

import fusec
from fusec.notices import InternalErrorWarning
from fusec.torch_compile import gathering
from fusec.torch_graphs import CompiledGraph

from .model_results import differences, in_float64, tensors
from .zoo import Model, Table

SECONDS = 400
"""A model that takes longer is a failure."""

SLOWER = 1.1
"""Times eager's that a warm call may take before it is marked: a shared machine's medians differ by so much."""

WAYS = ("jit", "compile", "train", "fit")


@dataclass
class Outcome:
    """What one way of calling a model gave. ``wrong`` fails the run, and so does ``unlisted``."""

    name: str
    way: str
    wrong: list[str] = field(default_factory=list)
    written: dict[str, int] = field(default_factory=dict)
    breaks: list[str] = field(default_factory=list)
    cuts: list[str] = field(default_factory=list)
    kernels: int = 0
    calls: int = 0
    first: float = 0.0
    eager: float = 0.0
    dynamo: float = 0.0
    warm: float = 0.0

    @property
    def ratio(self) -> float:
        return self.warm / self.eager if self.eager else 0.0


def all_models() -> tuple[Table, list[str]]:
    """Every model by name, and a line for each library that is not here."""
    from .zoo_libraries import tables
    from .zoo_nn import NN

    found, missing = tables()
    try:
        from .zoo_seen import SEEN
        from .zoo_text import TEXT
    except ImportError as error:
        return {**NN, **found}, [*missing, f"transformers is left out: {error}"]
    return {**NN, **TEXT, **SEEN, **found}, missing


# One model


def try_model(name: str, model: Model, ways: tuple[str, ...], seconds: float) -> list[Outcome]:
    """Calls a model in these ways. What the model itself raises comes out."""
    torch.manual_seed(0)
    module, args, kwargs = model.make()
    module.eval()
    made = []
    with torch.no_grad():
        eager = _seeded(module, args, kwargs)
        try:
            exact = _seeded(in_float64(module), in_float64(args), in_float64(kwargs))
        except Exception:  # a model that makes float32 by itself
            exact = None
    for way in ways:
        if way in ("train", "fit"):
            if model.trains:
                made.append(_train(Outcome(name, way), module, args, kwargs))
            continue
        out = Outcome(name, way)
        made.append(out)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", InternalErrorWarning)
            try:
                _call(out, module, args, kwargs, (eager, exact), seconds)
            except Exception as error:
                out.wrong.append(f"raises {type(error).__name__}: {error}")
    return made


def _seeded(called: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a call gives that draws its random numbers from the start: some models do in eval mode."""
    torch.manual_seed(1)
    return called(*args, **kwargs)


def _call(
    out: Outcome, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], expected: tuple[Any, Any], seconds: float
) -> None:
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    with gathering() as graphs:
        jitted = out.way == "jit"
        called: Any = fusec.jit(module) if jitted else torch.compile(module, backend="fusec")
        start = time.perf_counter()
        found = _seeded(called, args, kwargs)
        out.first = time.perf_counter() - start
        out.wrong += differences(found, *expected)
        out.wrong += [f"second call: {line}" for line in differences(_seeded(called, args, kwargs), *expected)]
    if jitted:
        dispatcher = called._fusec.dispatcher
        out.written = dict(dispatcher.eager_calls)
        programs = [plan.executable.program for plan in dispatcher.plans if plan.executable is not None]
    else:
        _count(out, graphs)
        programs = [exe.program for graph in graphs for exe in graph.executables]
        out.breaks = [reason for reason, n in counters["graph_break"].items() for _ in range(n)]
    out.kernels = sum(len(p.reports) for p in programs)
    out.calls = sum(len(p.steps) for p in programs) - out.kernels
    if seconds:
        out.eager, out.warm = interleaved(lambda: module(*args, **kwargs), lambda: called(*args, **kwargs), seconds)
    if seconds and not jitted and out.ratio > SLOWER:
        torch._dynamo.reset()
        alone = torch.compile(module, backend="eager")
        eager, warm = interleaved(lambda: module(*args, **kwargs), lambda: alone(*args, **kwargs), seconds)
        out.dynamo = warm / eager


def _count(out: Outcome, graphs: list[CompiledGraph]) -> None:
    for graph in graphs:
        out.cuts += graph.cuts
        for reason, n in graph.eager_calls.items():
            out.written[f"{graph.kind}: {reason}"] = n


def _train(out: Outcome, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Outcome:
    """The gradients of a step, without dropout, so that they can be compared."""
    weights = [p for p in module.parameters() if p.requires_grad]
    wide = in_float64(module)
    exact: Any
    try:
        exact = _gradients(
            wide, [p for p in wide.parameters() if p.requires_grad], in_float64(args), in_float64(kwargs)
        )
    except Exception:  # a model that makes float32 by itself
        exact = None
    eager = _gradients(module, weights, args, kwargs)
    torch._dynamo.reset()
    with warnings.catch_warnings(), gathering() as graphs:
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", InternalErrorWarning)
        try:
            called: Any = fusec.jit(module) if out.way == "fit" else torch.compile(module, backend="fusec")
            start = time.perf_counter()
            found = _gradients(called, weights, args, kwargs)
            out.first = time.perf_counter() - start
            out.wrong += differences(found, eager, exact)
        except Exception as error:
            out.wrong.append(f"raises {type(error).__name__}: {error}")
    if out.way == "fit":
        dispatcher = called._fusec.dispatcher
        out.written = dict(dispatcher.eager_calls)
        graphs = [graph for plan in dispatcher.plans if plan.gradient is not None for graph in plan.gradient.graphs]
    _count(out, graphs)
    out.kernels = sum(len(exe.program.reports) for graph in graphs for exe in graph.executables)
    return out


def _gradients(called: Any, weights: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The gradients of the mean squares of all results that need them; None for a weight without one."""
    results = [t for t in tensors(called(*args, **kwargs)) if t.requires_grad and t.is_floating_point()]
    loss = sum((t * t).mean() for t in results)
    return torch.autograd.grad(loss, weights, allow_unused=True)  # type: ignore[arg-type]


def interleaved(one: Callable[[], Any], other: Callable[[], Any], seconds: float) -> tuple[float, float]:
    """Medians of the times of two functions, called by turns for about so many seconds.

    On one processor (``taskset -c 0``) it is the processor's time, which other processes take nothing of.
    """
    for _ in range(3):
        one()
        other()
    clock = time.process_time if len(os.sched_getaffinity(0)) == 1 else time.perf_counter
    times: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 5:
        for call, kept in ((one, times[0]), (other, times[1])):
            start = clock()
            call()
            kept.append(clock() - start)
    return median(times[0]), median(times[1])


# All of them


def in_child(name: str, model: Model, ways: tuple[str, ...], seconds: float) -> list[Outcome]:
    """:func:`try_model` in a process of its own, so that a crash is one finding among others."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receive)
        signal.alarm(SECONDS)
        try:
            found = [asdict(outcome) for outcome in try_model(name, model, ways, seconds)]
        except BaseException as error:
            found = [asdict(Outcome(name, "eager", [f"raises {type(error).__name__}: {error}"]))]
        with os.fdopen(send, "w") as pipe:
            json.dump(found, pipe)
        os._exit(0)
    os.close(send)
    with os.fdopen(receive) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    if status or not text:
        return [Outcome(name, "crash", [f"the process ended with status {status}"])]
    return [Outcome(**each) for each in json.loads(text)]


def unlisted(model: Model, outcome: Outcome) -> list[str]:
    """What is not as the table says: calls that run as written, graph breaks, nodes left to PyTorch."""
    lines = []
    wanted = model.as_written if outcome.way in ("jit", "fit") else ""
    reasons = list(outcome.written)
    if wanted and not any(wanted in reason for reason in reasons):
        lines.append(f"is listed as running as written ({wanted}), and no longer does")
    lines += [f"as written: {r}" for r in reasons if not wanted or wanted not in r]
    for start, reason in model.known.items():
        own = start.startswith(f"{outcome.way}: ")
        if own and not any(f"{outcome.way}: {line}".startswith(start) for line in outcome.wrong):
            lines.append(f"is listed as wrong ({reason}), and no longer is")
    if outcome.way == "compile" and len(outcome.breaks) != model.breaks:
        lines.append(f"{len(outcome.breaks)} graph breaks, {model.breaks} are listed: {outcome.breaks[:2]}")
    if outcome.way == "compile" and len(outcome.cuts) != model.cuts:
        lines.append(f"{len(outcome.cuts)} nodes left to PyTorch, {model.cuts} are listed: {outcome.cuts[:2]}")
    return lines


def _known(model: Model, outcome: Outcome, line: str) -> bool:
    return any(f"{outcome.way}: {line}".startswith(start) for start in model.known)


def row(outcome: Outcome) -> str:
    state = "WRONG" if outcome.wrong else "as written" if outcome.written else "captured"
    slow = " slower" if outcome.ratio > SLOWER else ""
    slow += f" (Dynamo alone {outcome.dynamo:.2f})" if outcome.dynamo else ""
    times = f"{outcome.eager * 1e6:9.0f} {outcome.ratio:6.2f}{slow}" if outcome.eager else ""
    counts = f"{outcome.kernels:4} {outcome.calls:4} {len(outcome.breaks):3} {len(outcome.cuts):3}"
    return f"{outcome.name:24} {outcome.way:8} {state:11} {counts} {outcome.first:7.1f} {times}"


HEAD = f"{'model':24} {'way':8} {'':11} kern call brk cut first s  eager µs  ratio"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="models; all without a name. A name may end in * ")
    parser.add_argument("--ways", default=",".join(WAYS), help="jit, compile, train, fit")
    parser.add_argument("--seconds", type=float, default=1.0, help="for the times of warm calls; 0: none")
    parser.add_argument("--count", type=int, default=0, help="no more than so many models")
    chosen = parser.parse_args(arguments)
    models, missing = all_models()
    for line in missing:
        print(line)
    wanted = [n for n in models if not chosen.names or any(_fits(n, pattern) for pattern in chosen.names)]
    print(HEAD)
    failures = 0
    for name in wanted[: chosen.count or None]:
        folder = tempfile.mkdtemp(prefix="fusec-models-")
        os.environ["FUSEC_CACHE_DIR"] = folder
        for outcome in in_child(name, models[name], tuple(chosen.ways.split(",")), chosen.seconds):
            bad = unlisted(models[name], outcome)
            outcome.wrong = [line for line in outcome.wrong if not _known(models[name], outcome, line)]
            bad = [*outcome.wrong, *bad]
            print(row(outcome), flush=True)
            for line in bad:
                print(f"    {' '.join(line.split())[:400]}", flush=True)
            failures += bool(bad)
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{failures} of {len(wanted)} models' calls are not as they should be")
    return 1 if failures else 0


def _fits(name: str, pattern: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
