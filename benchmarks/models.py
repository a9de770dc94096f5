"""Table of models: inference and training steps of whole models, by ``fusec.jit`` and through ``torch.compile``.

``python -m benchmarks.models [--only NAME,...] [--device cuda|cpu] [--train] [--modes MODE,...] [--seconds S]
[--out FILE]``. Each model runs in a process of its own, its peers in turn; the time of a call is the user's: from the
call to its end on the device, the median of many. On a card modules are bf16 with all of their layers, on a CPU float32
with two of a stack. A library that is not installed is said, and so is what fails. Errors are the norm of a result's
distance from the same module's in float64, in parts of its own norm, or of a thousandth of the largest result's; a
training step's are of its gradients.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

import fusec
from fusec.torch_compile import gathering

from .harness import Budget, Peer, Times, measure
from .training import peak
from .workloads.models import CARD, SMALL, Subject, subjects

LIMIT = 900
"""Seconds that one model may take with all of its peers."""

FUSEC = ("fusec", "backend fusec")
"""``fusec.jit``, and ``torch.compile(backend="fusec")``."""

MODES = ("default", "reduce-overhead", "max-autotune")
"""torch.compile's own."""

Result = dict[str, Any]


# One model, in a process of its own


def measure_one(subject: Subject, device: str, train: bool, modes: Sequence[str], seconds: float) -> Result:
    """Times in ms, first calls in s, memory in MiB, errors, kernels and library calls; what failed stands in notes."""
    torch.manual_seed(0)
    module, args, kwargs = subject.make(CARD if device == "cuda" else SMALL)
    module = module.train(train).requires_grad_(train).to(device)
    args, kwargs = tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, (args, kwargs))
    if train:
        _without_dropout(module)
    exact = _exact(module, args, kwargs, train)
    if device == "cuda":
        module, args, kwargs = _as(torch.bfloat16, module, args, kwargs)
    found: Result = {"name": subject.name, "notes": [], "first": {}, "peak": {}, "error": {}}
    peers: dict[str, Peer] = {}
    for name in ("eager", *modes, *FUSEC):
        torch._dynamo.reset()
        own = copy.deepcopy(module)
        try:
            with gathering() as graphs:
                compiled = _compiled(name, own)
                call = _step(compiled, own, args, kwargs) if train else _inference(compiled, args, kwargs)
                start = time.perf_counter()
                results = call()
                _wait(device)
                found["first"][name] = time.perf_counter() - start
            found["error"][name] = _error(results, exact)
            del results
            call()
            if device == "cuda":
                found["peak"][name] = peak(call)
            peers[name] = Peer(_waited(call, device))
        except Exception as failure:
            found["notes"].append(f"{name} failed: {(str(failure).strip() or type(failure).__name__).splitlines()[0]}")
            continue
        if name in FUSEC:
            found[f"counts {name}"] = _counts(compiled, graphs)
    times = measure(peers, Budget(seconds=seconds, least_rounds=5, most_rounds=101, wait=10.0))
    found["ms"] = {name: times.median(name) * 1e3 for name in peers}
    found["notes"] += _noise(times)
    return found


def _without_dropout(module: nn.Module) -> None:
    """So that gradients can be compared."""
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0


def _as(dtype: torch.dtype, module: nn.Module, args: Any, kwargs: Any) -> tuple[nn.Module, Any, Any]:
    def cast(leaf: Any) -> Any:
        return leaf.to(dtype) if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf

    args, kwargs = tree_map(cast, (args, kwargs))
    return module.to(dtype), args, kwargs


def _compiled(name: str, module: nn.Module) -> Any:
    if name == "eager":
        return module
    if name == "fusec":
        return fusec.jit(module)
    if name == "backend fusec":
        return torch.compile(module, backend="fusec")
    return torch.compile(module, mode=None if name == "default" else name)


def _inference(compiled: Any, args: Any, kwargs: Any) -> Callable[[], list[Tensor]]:
    def call() -> list[Tensor]:
        with torch.no_grad():
            return _floats(compiled(*args, **kwargs))

    return call


def _step(compiled: Any, module: nn.Module, args: Any, kwargs: Any) -> Callable[[], list[Tensor]]:
    """Forward, backward and AdamW; gives the gradients."""
    weights = list(module.parameters())
    optimizer = torch.optim.AdamW(weights, lr=1e-5, fused=True)

    def call() -> list[Tensor]:
        optimizer.zero_grad(set_to_none=True)
        _loss(compiled(*args, **kwargs)).backward()
        optimizer.step()
        return [w.grad for w in weights if w.grad is not None]

    return call


def _loss(results: Any) -> Tensor:
    return sum((t * t).mean() for t in _floats(results) if t.requires_grad)  # type: ignore[return-value]


def _floats(results: Any) -> list[Tensor]:
    """A result's tensors of floating point, a cache's left out."""
    held = dict(results) if isinstance(results, Mapping) else results
    return [leaf for leaf in tree_leaves(held) if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def _exact(module: nn.Module, args: Any, kwargs: Any, train: bool) -> list[Tensor] | None:
    """The results, or the gradients, in float64; None for a module that makes float32 by itself."""
    wide, args, kwargs = _as(torch.float64, copy.deepcopy(module), args, kwargs)
    try:
        if not train:
            return [t.cpu() for t in _inference(wide, args, kwargs)()]
        _loss(wide(*args, **kwargs)).backward()
        return [w.grad.cpu() for w in wide.parameters() if w.grad is not None]
    except Exception:
        return None


def _error(found: list[Tensor], exact: list[Tensor] | None) -> float | None:
    if exact is None or [t.shape for t in found] != [t.shape for t in exact]:
        return None
    norms = [e.norm().item() for e in exact]
    least = max(norms, default=0.0) / 1000  # a gradient of an attention's key bias is zero but for rounding
    pairs = zip(found, exact, norms, strict=True)
    return max(((t.double().cpu() - e).norm().item() / max(n, least) for t, e, n in pairs if least), default=0.0)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _waited(call: Callable[[], Any], device: str) -> Callable[[], None]:
    def waited() -> None:
        call()
        _wait(device)

    return waited


def _counts(compiled: Any, graphs: Any) -> str:
    """Kernels and library calls of a call, and why a part of it runs as written."""
    jitted = getattr(compiled, "_fusec", None)
    plans = jitted.dispatcher.plans if jitted is not None else []
    graphs = [*graphs, *(graph for plan in plans if plan.gradient is not None for graph in plan.gradient.graphs)]
    programs = [exe.program for graph in graphs for exe in graph.executables]
    programs += [plan.executable.program for plan in plans if plan.executable is not None]
    written = [reason for graph in graphs for reason in graph.eager_calls]
    written += list(jitted.dispatcher.eager_calls) if jitted is not None else []
    kernels = sum(len(p.reports) for p in programs)
    counted = f"{kernels}, {sum(len(p.steps) for p in programs) - kernels}"
    return f"{counted}, as written: {written[0][:80]}" if written else counted


def _noise(times: Times) -> list[str]:
    return ["the machine was not quiet"] if times.noisy else []


# All of them


def in_child(subject: Subject, given: argparse.Namespace) -> Result:
    """:func:`measure_one` in a process of its own, so that a crash or a long compile costs one row."""
    command = [sys.executable, "-m", "benchmarks.models", "--one", subject.name, "--device", given.device]
    command += ["--seconds", str(given.seconds), "--modes", given.modes, *(["--train"] if given.train else [])]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return {"name": subject.name, "notes": [f"took more than {LIMIT} s"]}
    try:
        return dict(json.loads(ran.stdout.splitlines()[-1]))
    except (IndexError, ValueError):
        last = (ran.stderr.strip() or f"exit {ran.returncode}").splitlines()[-1]
        return {"name": subject.name, "notes": [f"failed: {last[:300]}"]}


def ratios(row: Result) -> tuple[float, float]:
    """Of eager's time and of the best of torch.compile's modes to that of fusec's better way; NaN without one."""
    times = row.get("ms", {})
    mine = min((times[n] for n in FUSEC if n in times), default=math.nan)
    peer = min((times[n] for n in MODES if n in times), default=math.nan)
    return times.get("eager", math.nan) / mine, peer / mine


def line(row: Result, modes: Sequence[str]) -> str:
    def cells(kind: str, names: Sequence[str], form: str) -> list[str]:
        held = row.get(kind, {})
        return [format(held[n], form) if held.get(n) is not None else "–" for n in names]

    eager, peer = ratios(row)
    shown = [f"{r:.2f}" if r == r else "–" for r in (eager, peer)]
    some = ("eager", "default", "fusec")
    grouped = [
        ", ".join(cells(kind, some, form)) for kind, form in (("first", ".1f"), ("peak", ".0f"), ("error", ".1e"))
    ]
    counts = row.get("counts fusec", "–")
    return f"| {' | '.join([row['name'], *cells('ms', ('eager', *modes, *FUSEC), '.2f'), *shown, *grouped, counts])} |"


def table(rows: Sequence[Result], modes: Sequence[str]) -> str:
    head = ["model", "eager, ms", *(f"compile {m}" for m in modes), "fusec.jit", "backend fusec", "eager ÷ fusec"]
    head += ["best compile ÷ fusec", "first call, s", "peak, MiB", "error", "kernels, library calls"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *(line(row, modes) for row in rows)]
    notes = [f"- {row['name']}: {note}" for row in rows for note in row["notes"]]
    return "\n".join([*lines, "", _means(rows), "", *notes]).rstrip() + "\n"


def _means(rows: Sequence[Result]) -> str:
    found = []
    for what, which in (("eager", 0), ("the best mode of torch.compile", 1)):
        values = [v for v in (ratios(row)[which] for row in rows) if v == v]
        if values:
            found.append(f"{statistics.geometric_mean(values):.2f} of {what} ({len(values)} models)")
    means = f"Geometric means of fusec's speed: {', '.join(found) or 'none'}."
    return f"{means} First call, peak and error: eager, compile, fusec.jit."


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="parts of names, with commas")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cuda", "cpu"))
    parser.add_argument("--train", action="store_true", help="training steps instead of inference")
    parser.add_argument(
        "--modes", default="", help=f"of torch.compile: {', '.join(MODES)}; a CPU's table has the first"
    )
    parser.add_argument("--seconds", type=float, default=4.0, help="of measuring each model")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    given.modes = given.modes or ",".join(MODES if given.device == "cuda" else MODES[:1])
    modes = given.modes.split(",")
    if given.one:
        (subject,) = [s for s in subjects() if s.name == given.one]
        print(json.dumps(measure_one(subject, given.device, given.train, modes, given.seconds)))
        return 0
    parts = [p for p in given.only.split(",") if p]
    rows = []
    for subject in subjects():
        if (given.train and not subject.trains) or (parts and not any(p in subject.name for p in parts)):
            continue
        missing = find_spec(subject.library) is None
        row = (
            {"name": subject.name, "notes": [f"{subject.library} is not installed"]}
            if missing
            else in_child(subject, given)
        )
        rows.append(row)
        print(line(row, modes), *row["notes"], sep="\n  ", flush=True)
        if given.out is not None:
            given.out.write_text(table(rows, modes))
    print(_means(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
