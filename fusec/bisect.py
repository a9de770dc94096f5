# SPDX-License-Identifier: Apache-2.0
"""Finds the pass or the kernel that makes a wrong answer, with the reference interpreter as the judge."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fusec import config
from fusec.accuracy import as_numpy, library_calls
from fusec.build import compile_module, kernel_digests, target_of
from fusec.errors import FusecError
from fusec.ir.graph import FusedAttributes, Graph
from fusec.ir.interpret import interpret
from fusec.ir.nodes import Op, Port, Value
from fusec.ir.types import contiguous_strides
from fusec.passes.groups.fused import one_by_one
from fusec.passes.lower.program import assemble
from fusec.passes.pipeline import OPTIONAL, PASS_NAMES, default_selector, graph_passes
from fusec.progress import Done, bar
from fusec.reproducer import Reproducer
from fusec.runtime.adapters import load_arrays
from fusec.runtime.code import Scope
from fusec.runtime.executable import Executable
from fusec.selectors import gpu_selector
from fusec.target.gpu import is_gpu

Array = np.ndarray[Any, Any]
TOLERANCE = {"f64": 1e-9, "c128": 1e-9, "f32": 1e-4, "c64": 1e-4, "f16": 1e-2, "bf16": 4e-2}
"""The difference, relative to the largest value of a result, from which on it counts as wrong, by dtype."""


def bisect(reproducer: Reproducer, tolerance: float | None = None) -> tuple[str, bool]:
    """What is found, as lines of text, and whether all is right.

    The graph after each pass is interpreted in float64 and held against the captured graph; then the compiled program;
    then each kernel alone, on inputs that the interpreter computed. Where anything is wrong, the program is compiled
    once more without each pass that may be left out. FUSEC_DISABLE_PASS leaves passes out from the start.
    """
    search = _Search(reproducer, tolerance)
    disabled = config.disabled_passes()
    unknown = sorted(disabled - set(OPTIONAL))
    if unknown:
        raise FusecError(f"FUSEC_DISABLE_PASS: can't leave out {', '.join(unknown)}; it takes {', '.join(OPTIONAL)}")
    lines: list[str] = []
    left = [name for name in OPTIONAL if name not in disabled]
    try:
        with bar("looking for what is wrong", len(PASS_NAMES) + 1 + len(left)) as done:
            wrong = _find(search, disabled, lines, done)
            if wrong:
                lines += _cures(search, disabled, left, done)
    except KeyboardInterrupt:
        lines.append("stopped by Ctrl-C")
        wrong = True
    return "\n".join(lines) + "\n", not wrong


def _find(search: _Search, disabled: frozenset[str], lines: list[str], done: Done) -> bool:
    """Adds what is right and what is wrong to the lines; whether anything is wrong."""
    graph = search.reproducer.graph
    for name, step in search.passes(disabled):
        try:
            graph = step(graph)
        except Exception as error:  # a pass that fails is what is looked for
            lines.append(f"pass {name} fails: {type(error).__name__}: {error}")
            return True
        wrong = search.difference(search.interpret(graph, search.inputs), search.expected, graph)
        if wrong:
            lines.append(f"pass {name} makes a wrong graph: {wrong}")
            return True
        lines.append(f"ok  after {name}")
        done()
    wrong = search.run(graph, search.inputs, search.expected)
    if not wrong:
        lines += ["ok  the compiled program", "nothing is wrong for these inputs"]
        return False
    lines += [f"the compiled program is wrong: {wrong}", *search.kernels(graph)]
    return True


def _cures(search: _Search, disabled: frozenset[str], left: Sequence[str], done: Done) -> list[str]:
    """What to leave out until the fault is mended: the single passes without which the compiled program is right."""
    cures = []
    for name in left:
        try:
            graph = search.reproducer.graph
            for _, step in search.passes(disabled | {name}):
                graph = step(graph)
            wrong = search.run(graph, search.inputs, search.expected)
        except Exception as error:  # without one pass another may fail
            wrong = str(error)
        if not wrong:
            cures.append(name)
        done()
    if not cures:
        return ["leaving out any one pass does not help"]
    already = "".join(f"{name}," for name in sorted(disabled))
    return [f"right with FUSEC_DISABLE_PASS={already}{name}" for name in cures]


class _Search:
    def __init__(self, reproducer: Reproducer, tolerance: float | None) -> None:
        self.reproducer = reproducer
        self.library = reproducer.library
        self.inputs = reproducer.inputs
        self.arrays = load_arrays(reproducer.library)
        self.tolerance = tolerance
        self.target = target_of(reproducer.graph)
        self.expected = self.interpret(reproducer.graph, reproducer.inputs)

    def passes(self, disabled: frozenset[str]) -> Iterator[tuple[str, Callable[[Graph], Graph]]]:
        """The passes to run, by name; without ``fuse`` each op is a kernel of its own."""
        table = graph_passes(self.target)
        for name in PASS_NAMES:
            step = table[name]
            if name == "fuse" and name in disabled:
                yield "fuse (one op each)", lambda graph, fuse=step: fuse(one_by_one(graph))  # type: ignore[misc]
            elif name not in disabled:
                yield name, step

    def interpret(self, graph: Graph, inputs: Sequence[Array], *, exact: bool = True) -> list[Array]:
        return interpret(graph, inputs, float64=exact, extern=library_calls(self.library))

    def run(self, graph: Graph, inputs: Sequence[Array], expected: Sequence[Array]) -> str:
        """Compiles a graph of kernels and runs it; what is wrong with its results, or nothing."""
        chooser = gpu_selector(self.target) if is_gpu(self.target) else default_selector(self.target)
        try:
            program = assemble(graph, self.target, chooser.lower, chooser.report)
            executable = Executable(program, compile_module(program), self.library, kernel_digests(program))
            ports = zip(graph.inputs, graph.input_ports, inputs, strict=True)
            results = executable(*(self._laid_out(value, port, array) for value, port, array in ports))
        except Exception as error:  # a kernel that does not compile or run is what is looked for
            return f"{type(error).__name__}: {error}"
        return self.difference([as_numpy(self.arrays, result) for result in results], expected, graph)

    def _laid_out(self, value: Value, port: Port, array: Array) -> Any:
        """An array of the library with the strides of a port, on the value's device."""
        source = self.arrays.from_numpy(np.array(array, value.type.dtype.numpy, order="C"), value.type.dtype)
        if value.type.device != "cpu":
            source = self.arrays.place(source, value.type.device)
        strides = port.strides
        if strides is None or strides == contiguous_strides(value.type.static_shape):
            return source
        scope = Scope()
        laid = eval(self.arrays.allocate(scope, value.type, strides), dict(scope.objects))
        copy = self.arrays.copy_into(scope, "target", "source")
        eval(copy, {**scope.objects, "target": laid, "source": source})
        return laid

    def kernels(self, graph: Graph) -> list[str]:
        """A line for each kernel that gives a wrong result for right inputs."""
        values = [*graph.inputs, *(result for op in graph.ops for result in op.results)]
        every = replace(graph, outputs=tuple(values), output_ports=())
        known = dict(zip(values, self.interpret(every, self.inputs, exact=False), strict=True))
        ports = dict(zip(graph.inputs, graph.input_ports, strict=True))
        lines = []
        for op in graph.ops:
            if not isinstance(op.attributes, FusedAttributes):
                continue
            operands = tuple(dict.fromkeys(op.operands))
            alone = Graph(graph.name, operands, op.results, (op,), tuple(ports.get(v, Port()) for v in operands))
            given = [known[v] for v in operands]
            wrong = self.run(alone, given, self.interpret(alone, given))
            if wrong:
                lines.append(f"kernel {op.attributes.body.name} ({op.attributes.kind}) is wrong: {wrong}")
                lines += [f"    {location}" for location in _locations(op)]
        return lines or ["each kernel is right by itself: the fault is in how they follow one another or share memory"]

    def difference(self, found: Sequence[Array], expected: Sequence[Array], graph: Graph) -> str:
        """What the first wrong result is, or nothing."""
        for number, (a, b, value) in enumerate(zip(found, expected, graph.outputs, strict=True)):
            wrong = self._wrong(np.asarray(a), np.asarray(b), value)
            if wrong:
                return f"result {number} ({value}: {value.type}) {wrong}"
        return ""

    def _wrong(self, found: Array, expected: Array, value: Value) -> str:
        dtype = value.type.dtype
        if found.shape != expected.shape:
            return f"has shape {found.shape}, right is {expected.shape}"
        if dtype.kind not in ("float", "complex"):
            count = int(np.count_nonzero(found != expected))
            return f"differs at {count} of {found.size} elements" if count else ""
        wide = np.complex128 if dtype.kind == "complex" else np.float64
        # Rounding to the dtype on both sides: what float64 holds may be an infinity in the dtype.
        a, b = (x.astype(dtype.numpy).astype(wide) for x in (found, expected))
        finite = np.isfinite(b)
        if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(a[finite]).all():
            return "has NaN or infinity where the right one has none, or none where it has"
        scale = float(np.abs(b[finite]).max(initial=0.0)) or 1.0
        worst = float(np.abs(a[finite] - b[finite]).max(initial=0.0))
        allowed = self.tolerance if self.tolerance is not None else TOLERANCE.get(dtype.name, 1e-4)
        return (
            f"is off by {worst / scale:.2g} of its largest value ({allowed:.2g} is allowed)"
            if worst > allowed * scale
            else ""
        )


def _locations(op: Op) -> list[str]:
    found: dict[str, list[str]] = {}
    for inner in op.expect(FusedAttributes).body.ops:
        if inner.location is not None:
            found.setdefault(inner.location.short, []).append(inner.name)
    return [f"{location}: {', '.join(names)}" for location, names in found.items()]
