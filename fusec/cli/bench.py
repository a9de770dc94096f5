# SPDX-License-Identifier: Apache-2.0
"""``fusec bench``: a function as written, by fusec and by torch.compile, on random data."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any

import numpy as np
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from fusec.checks import check_target
from fusec.cli.ahead import bound_by_name, find_function
from fusec.errors import FusecError
from fusec.frontend.capture import Library
from fusec.frontend.structures import flatten
from fusec.measuring import random_array
from fusec.progress import bar
from fusec.report import render
from fusec.runtime.adapters import load_arrays
from fusec.runtime.arrays import Arrays
from fusec.runtime.jit import JitFunction
from fusec.runtime.libraries import library_of
from fusec.specs import TensorSpec, named_specs

_ROUNDS, _LEAST = 5, 2
"""Turns that each way has, and calls that make a median."""

_RESET_PEAK = "5"
"""What, written to /proc/self/clear_refs, makes the peak of resident memory start anew (man 5 proc)."""


@dataclass(frozen=True)
class Measured:
    """One way to run the function; times in seconds, memory in bytes, None where it can't be told here.

    first: the first call, with compiling. median, low, high: of later calls, the 10th and 90th percentile.
    memory: what a call needs beyond what was there before. error: the largest difference from the function as
    written, relative to that one's largest value. failed: why there is nothing of these.
    """

    name: str
    first: float = 0.0
    median: float = 0.0
    low: float = 0.0
    high: float = 0.0
    memory: int | None = None
    error: float | None = None
    failed: str = ""


def bench(name: str, specs: Sequence[str], *, seconds: float, as_json: bool, target: str | None = None) -> str:
    """A table, or JSON, of each way to run ``module:function`` for specs such as ``x=f32[64, 256]``.

    A named dimension has its largest extent. Each way is called for about ``seconds``. FusecError for a name that
    is none, for specs that do not fit, and for a target that is not known.
    """
    check_target(target)
    function, arguments, library = random_call(name, specs)
    results = measure_all(function, arguments, library, seconds, target)
    if as_json:
        return json.dumps({"function": name, "specs": list(specs), "results": [asdict(r) for r in results]}, indent=1)
    return _table(name, specs, results)


def random_call(name: str, specs: Sequence[str]) -> tuple[Any, dict[str, Any], Library]:
    """The function of a name, random arguments for it, and their library. See :func:`bench`."""
    function = find_function(name)
    named = named_specs(specs)
    bound_by_name(name, function, named)
    library = library_of(function, (), {})
    if library is None:
        raise FusecError(f"{name}: can't tell whether torch or NumPy is meant: it names neither")
    return function, _arguments(named, library), library


def _arguments(named: dict[str, TensorSpec], library: Library) -> dict[str, Any]:
    extents: dict[str, int] = {}
    for spec in named.values():
        extents |= {dim: high for dim, _, high in spec.ranges}
    missing = sorted(frozenset[str]().union(*(spec.names for spec in named.values())) - extents.keys())
    if missing:
        raise FusecError(f"give {', '.join(missing)} an extent, or a range whose end is taken: 'B:1..64'")
    random = np.random.default_rng(0)
    return {key: random_array(random, spec, extents, library) for key, spec in named.items()}


def measure_all(
    function: Any, arguments: dict[str, Any], library: Library, seconds: float, target: str | None = None
) -> list[Measured]:
    """The function as written, compiled by fusec, and for PyTorch by torch.compile."""
    from fusec.api import jit

    ways: list[tuple[str, Callable[[], Any]]] = [
        ("as written", lambda: function),
        ("fusec", lambda: jit(target=target, warn=False)(function)),
    ]
    if library == "torch":
        ways.append(("torch.compile", lambda: _torch_compiled(function)))
    prepared: list[Way] = []
    failed: dict[str, str] = {}
    with bar("measuring", len(ways) + _ROUNDS) as done, inference(library):
        try:
            for name, make in ways:
                try:
                    made = make()
                    prepared.append(_prepared(name, made, arguments, load_arrays(library)))
                    _refuse_eager(made)
                except Exception as error:  # whatever a compiler or its toolchain raises is a line of the table
                    prepared = [way for way in prepared if way.name != name]
                    failed[name] = f"{type(error).__name__}: {_first_line(error)}"
                done()
            for _ in range(_ROUNDS):  # in turns, so that what else the machine does falls on all of them
                for way in prepared:
                    way.run(seconds / _ROUNDS)
                done()
        except KeyboardInterrupt:  # what was measured before is worth something
            failed |= {name: "stopped by Ctrl-C" for name, _ in ways if name not in failed}
    measured = {way.name: way.measured(prepared[0]) for way in prepared if len(way.times) >= _LEAST}
    return [measured.get(name) or Measured(name, failed=failed.get(name, "")) for name, _ in ways]


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:200]


def _refuse_eager(function: Any) -> None:
    """FusecError for a function of ours whose calls ran as written."""
    jitted = getattr(function, "_fusec", function)
    if isinstance(jitted, JitFunction) and jitted.dispatcher.eager_calls:
        raise FusecError(f"its calls ran as written: {next(iter(jitted.dispatcher.eager_calls))}")


def _torch_compiled(function: Any) -> Any:
    import torch

    return torch.compile(function, dynamic=False)


def inference(library: Library) -> Any:
    """A context without gradients."""
    if library != "torch":
        return nullcontext()
    import torch

    return torch.no_grad()


@dataclass
class Way:
    """One way to run the function, its first calls over.

    call: waits for the device. times: seconds of later calls.
    """

    name: str
    call: Callable[[], Any]
    first: float
    memory: int | None
    outputs: list[np.ndarray[Any, Any]]
    times: list[float] = field(default_factory=list)

    def run(self, seconds: float) -> None:
        """Calls it for about so long, and at least once."""
        end = time.perf_counter() + seconds
        while True:
            start = time.perf_counter()
            self.call()
            self.times.append(time.perf_counter() - start)
            if time.perf_counter() >= end:
                return

    def measured(self, base: Way) -> Measured:
        """The figures; ``base`` has the results that are right."""
        tenths = quantiles(self.times, n=10)
        found = Measured(self.name, self.first, tenths[4], tenths[0], tenths[8], self.memory)
        return found if self is base else _with_error(found, self.outputs, base.outputs)


def _prepared(name: str, function: Callable[..., Any], arguments: dict[str, Any], arrays: Arrays) -> Way:
    """Makes the first calls."""
    synchronise = _synchroniser(arguments)
    given = {key: _copy(array) for key, array in arguments.items()}  # a function may change its arguments

    def call() -> Any:
        result = function(**given)
        synchronise()
        return result

    start = time.perf_counter()
    leaves, _ = flatten((call(),), {}, arrays.is_array)
    first = time.perf_counter() - start
    outputs = [_as_numpy(arrays, leaf) for leaf in leaves]
    del leaves
    call()
    return Way(name, call, first, peak_memory(call, arguments), outputs)


def _copy(array: Any) -> Any:
    return array.clone() if hasattr(array, "clone") else array.copy()


def _synchroniser(arguments: dict[str, Any]) -> Callable[[], None]:
    if not any(_on_gpu(array) for array in arguments.values()):
        return lambda: None
    import torch

    return torch.cuda.synchronize


def _on_gpu(array: Any) -> bool:
    return str(getattr(array, "device", "cpu")).startswith("cuda")


def peak_memory(call: Callable[[], Any], arguments: dict[str, Any]) -> int | None:
    """Bytes that a call takes at its peak: of the GPU's memory as torch counts it, or of resident memory."""
    if any(_on_gpu(array) for array in arguments.values()):
        import torch

        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        return int(torch.cuda.max_memory_allocated() - before)
    gc.collect()
    try:
        Path("/proc/self/clear_refs").write_text(_RESET_PEAK)
        before = _status("VmHWM")
        call()
        return max(0, _status("VmHWM") - before)
    except (OSError, StopIteration):
        return None


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def _as_numpy(arrays: Arrays, array: Any) -> np.ndarray[Any, Any]:
    dtype, shape, data = arrays.to_bytes(array)
    found = np.frombuffer(data, dtype.numpy).reshape(shape)
    return found if dtype.kind == "complex" else found.astype(np.float64)


def _with_error(measured: Measured, found: Sequence[Any], expected: Sequence[Any]) -> Measured:
    if [a.shape for a in found] != [b.shape for b in expected]:
        return Measured(measured.name, failed="its results have other shapes than those of the function as written")
    return Measured(**{**asdict(measured), "error": max(map(difference, found, expected), default=0.0)})


def difference(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> float:
    """The largest difference relative to the largest value; infinite where NaNs or infinities are elsewhere."""
    finite = np.isfinite(expected)
    if not np.array_equal(found[~finite], expected[~finite], equal_nan=True):
        return float("inf")
    scale = float(np.abs(expected[finite]).max(initial=0.0)) or 1.0
    worst = float(np.abs(found[finite] - expected[finite]).max(initial=0.0)) / scale
    return worst if worst == worst else float("inf")


def _table(name: str, specs: Sequence[str], results: Sequence[Measured]) -> str:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("", "latency", "10 % to 90 %", "calls/s", "speed-up", "peak memory", "difference", "first call"):
        table.add_column(column, justify="right" if column else "left")
    base = next((r.median for r in results if not r.failed), 0.0)
    for r in results:
        if r.failed:
            continue
        table.add_row(
            r.name,
            _time(r.median),
            f"{_time(r.low)} to {_time(r.high)}",
            f"{1 / r.median:,.0f}",
            f"{base / r.median:.2f} x",
            "-" if r.memory is None else f"{r.memory / 2**20:,.1f} MiB",
            "-" if r.error is None else f"{r.error:.1e}",
            _time(r.first),
        )
    failures = [Text(f"{r.name} failed: {r.failed}") for r in results if r.failed]
    return render(Group(Text(f"{name}  {'  '.join(specs)}"), table, *failures))


def _time(seconds: float) -> str:
    return (
        f"{seconds * 1e6:.1f} µs"
        if seconds < 1e-3
        else f"{seconds * 1e3:.2f} ms"
        if seconds < 1
        else f"{seconds:.2f} s"
    )
