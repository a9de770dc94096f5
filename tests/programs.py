"""Runs what the pipeline makes on this machine's CPU, for tests, with every mistake in memory made visible.

Outputs and workspaces start as NaN (or 77), and each lies between guard elements that no kernel may change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided
from oracle import assert_close_to_oracle

from fusec.codegen.tvm.build import compile_kernels
from fusec.codegen.tvm.module import CompiledModule
from fusec.ir.attributes import ExternAttributes, ReduceAttributes
from fusec.ir.graph import Graph
from fusec.ir.interpret import interpret
from fusec.ir.parse import parse
from fusec.ir.types import TensorType, contiguous_strides
from fusec.passes.families.row.schedule.cpu import RowSchedule
from fusec.passes.lower.context import LoweringContext
from fusec.passes.pipeline import lower
from fusec.passes.schedule.base import CpuSchedule
from fusec.passes.select import Selector
from fusec.passes.select_gpu import GpuSelector
from fusec.runtime.library import run_extern
from fusec.runtime.program import Call, Launch, Lowered, Pack, Program, Slot
from fusec.target.cpu import cpu_target
from fusec.target.gpu import is_gpu
from fusec.tile import interpret as tile_interpreter
from fusec.tile.verify import verify

Array = npt.NDArray[Any]

GUARD = 64
"""Elements before and after each array that must keep their contents."""


@dataclass(frozen=True)
class Run:
    """What came out, and how it was lowered."""

    lowered: Lowered
    outputs: list[Array]

    @property
    def kernels(self) -> list[str]:
        """The families of the kernels launched, in order, without those that pack operands."""
        kinds = {k.name: k.kind for k in self.lowered.program.kernels}
        steps = self.lowered.program.steps
        return [kinds[s.kernel] for s in steps if isinstance(s, Launch) and kinds[s.kernel] != "pack"]

    @property
    def calls(self) -> list[str]:
        """The library calls made, in order; checks of indices are none."""
        calls = [s for s in self.lowered.program.steps if isinstance(s, Call)]
        return [s.attributes.target for s in calls if s.results]


@dataclass(frozen=True, eq=False)
class Built:
    """A graph lowered and compiled, to be run on several inputs. ``module``: None for the tile IR's interpreter."""

    graph: Graph
    lowered: Lowered
    module: CompiledModule | None


class Guarded:
    """An array with given strides between guards."""

    def __init__(self, type_: TensorType, strides: Sequence[int]) -> None:
        dtype = type_.dtype.numpy
        shape = type_.static_shape
        self.low = -sum((n - 1) * s for n, s in zip(shape, strides) if s < 0) if 0 not in shape else 0
        high = 1 + sum((n - 1) * s for n, s in zip(shape, strides) if s > 0) if 0 not in shape else 0
        self.memory = np.full(self.low + high + 2 * GUARD, _filler(type_), dtype)
        known = np.dtype(np.uint8) if dtype.itemsize == 1 else dtype  # NumPy strides no dtype of 8 bits but its own
        start = self.memory[GUARD + self.low :].view(known)
        self.array = as_strided(start, shape, [s * dtype.itemsize for s in strides]).view(dtype)
        self.name = str(type_)

    @property
    def address(self) -> int:
        return int(self.memory.ctypes.data + (GUARD + self.low) * self.memory.itemsize)

    def check(self, what: str, filler: Any) -> None:
        for edge in (self.memory[:GUARD], self.memory[-GUARD:]):
            untouched = np.full(GUARD, filler, self.memory.dtype)
            assert edge.tobytes() == untouched.tobytes(), f"{what} {self.name}: written outside of its memory"


def _filler(type_: TensorType) -> Any:
    return np.nan if type_.dtype.is_float else True if type_.dtype.name == "bool" else 77


Dot = tuple[str, str, str, str]
"""The types of a matmul's operands, its attributes and the type of its result."""


def dot_program(dot: Dot) -> str:
    """The text of a graph that is one product, ``%z``."""
    left, right, attributes, result = dot
    return f"graph @dot(%x: {left}, %y: {right}) {{\n%z = dot(%x, %y) {attributes} : {result}\nreturn %z\n}}"


def reductions(graph: Graph) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Shapes that are reduced, and their axes."""
    found = []
    for op in graph.ops:
        if isinstance(op.attributes, ReduceAttributes):
            found.append((op.operands[0].type.static_shape, op.attributes.axes))
    return found


def random_inputs(graph: Graph, seed: int = 0) -> list[Array]:
    """Arrays for a graph's inputs: normal numbers, integers from 0 to 4, and bools of which most are true."""
    rng = np.random.default_rng(seed)
    arrays: list[Array] = []
    for value, port in zip(graph.inputs, graph.input_ports, strict=True):
        shape, dtype = value.type.static_shape, value.type.dtype
        if port.strides is not None:
            shape = tuple(1 if s == 0 and n else n for n, s in zip(shape, port.strides, strict=True))
        if dtype.is_float:
            arrays.append(rng.standard_normal(shape).astype(dtype.numpy))
        elif dtype.name == "bool":
            arrays.append(np.asarray(rng.random(shape) > 0.3))
        else:
            arrays.append(rng.integers(0, 5, shape).astype(dtype.numpy))
    return [np.broadcast_to(a, v.type.static_shape).copy() for a, v in zip(arrays, graph.inputs, strict=True)]


def execute(program: Program, inputs: Sequence[Array], *, compiled: bool = True) -> list[Array]:
    """Runs a program's steps on guarded memory: kernels compiled with TVM, or in the tile IR's interpreter."""
    return _execute(program, _module(program, compiled), inputs)


def _module(program: Program, compiled: bool) -> CompiledModule | None:
    for kernel in program.kernels:
        verify(kernel)
    return compile_kernels(program.kernels, cpu_target(program.target)) if program.kernels and compiled else None


def _execute(program: Program, module: CompiledModule | None, inputs: Sequence[Array]) -> list[Array]:
    kernels = {k.name: k for k in program.kernels}
    memory: dict[int, Guarded] = {}
    arrays: dict[int, Array] = {}
    addresses: dict[int, int] = {}
    for k, slot in enumerate(program.slots):
        if slot.kind == "view":
            continue
        made = memory[k] = Guarded(slot.type, slot.strides)
        arrays[k], addresses[k] = made.array, made.address
        if slot.kind == "input":
            made.array[...] = inputs[slot.source]
    for k, slot in enumerate(program.slots):
        if slot.kind == "view":
            arrays[k], addresses[k] = _view(slot, memory[slot.source])
    for step in program.steps:
        if isinstance(step, Launch | Pack) and module is not None:
            module.function(step.kernel)(*[addresses[k] for k in step.arguments])
        elif isinstance(step, Launch | Pack):
            tile_interpreter.run(kernels[step.kernel], [arrays[k] for k in step.arguments])
        else:
            results = run_call(step.attributes, [arrays[k] for k in step.arguments])
            for k, result in zip(step.results, results):
                arrays[k][...] = result
    for k, slot in enumerate(program.slots):
        if slot.kind != "view":
            memory[k].check(f"{slot.kind} {slot.name}", _filler(slot.type))
        if slot.kind == "input" and k not in program.outputs:  # kernels write what they change there
            same = memory[k].array.tobytes() == np.asarray(inputs[slot.source]).tobytes()
            assert same, f"input {slot.name} was changed"
    return [arrays[k] for k in program.outputs]


def _view(slot: Slot, base: Guarded) -> tuple[Array, int]:
    item = base.memory.itemsize
    start = base.memory[GUARD + base.low + slot.offset :]
    array = as_strided(start, slot.type.static_shape, [s * item for s in slot.strides])
    return array, base.address + slot.offset * item


def run_call(attributes: ExternAttributes, operands: list[Array]) -> list[Array]:
    """A library call on arrays; a piece of the graph runs in the reference interpreter."""
    if attributes.target == "fusec.interpret":
        return interpret(parse(attributes.arguments), operands)
    return run_extern(attributes, operands)


def build(
    source: str | Graph,
    *,
    disable: frozenset[str] = frozenset(),
    selector: Selector | GpuSelector | None = None,
    threads: int = 2,
    compiled: bool = True,
    target: str = "cpu",
) -> Built:
    """Lowers a graph (or its text), checked after every pass, and compiles its kernels for this CPU."""
    graph = parse(source) if isinstance(source, str) else source
    lowered = lower(graph, target, threads=threads, disable=disable, check=True, selector=selector)
    return Built(graph, lowered, _module(lowered.program, compiled and not is_gpu(target)))


def run_built(built: Built, inputs: Sequence[Array]) -> Run:
    """Runs what :func:`build` made."""
    return Run(built.lowered, _execute(built.lowered.program, built.module, inputs))


def run(
    source: str | Graph,
    inputs: Sequence[Array] | None = None,
    *,
    disable: frozenset[str] = frozenset(),
    selector: Selector | GpuSelector | None = None,
    threads: int = 2,
    seed: int = 0,
    compiled: bool = True,
    target: str = "cpu",
) -> Run:
    """Lowers a graph (or its text), checked after every pass, and runs it.

    The kernels are compiled for this CPU, or, for a ``target`` that is a GPU, run in the tile IR's interpreter.
    """
    graph = parse(source) if isinstance(source, str) else source
    arrays = random_inputs(graph, seed) if inputs is None else list(inputs)
    built = build(graph, disable=disable, selector=selector, threads=threads, compiled=compiled, target=target)
    return run_built(built, arrays)


def check(
    source: str | Graph,
    inputs: Sequence[Array] | None = None,
    *,
    disable: frozenset[str] = frozenset(),
    selector: Selector | GpuSelector | None = None,
    threads: int = 2,
    seed: int = 0,
    slack: float = 2.0,
    atol: float = 0.0,
    compiled: bool = True,
    target: str = "cpu",
) -> Run:
    """:func:`run`, compared with the interpreter in float64 and in the graph's own dtypes, strides included.

    The error may be ``slack`` times that of the graph's own dtypes, or ``atol`` where that happens to be exact.
    """
    built = build(source, disable=disable, selector=selector, threads=threads, compiled=compiled, target=target)
    return check_built(built, inputs, seed=seed, slack=slack, atol=atol)


def check_built(
    built: Built, inputs: Sequence[Array] | None = None, *, seed: int = 0, slack: float = 2.0, atol: float = 0.0
) -> Run:
    """:func:`check` of what :func:`build` made."""
    graph = built.graph
    arrays = random_inputs(graph, seed) if inputs is None else list(inputs)
    result = run_built(built, arrays)
    with np.errstate(all="ignore"):
        eager = interpret(graph, arrays, extern=_reference_extern)
        exact = interpret(graph, arrays, float64=True, extern=_reference_extern)
        _compare(result.outputs, exact, eager, slack, atol)
    for array, value, port in zip(result.outputs, graph.outputs, graph.output_ports, strict=True):
        shape = value.type.static_shape
        wanted = port.strides if port.strides is not None else contiguous_strides(shape)
        have = [s // array.itemsize for s in array.strides]
        same = 0 in shape or all(n == 1 or s == w for n, s, w in zip(shape, have, wanted))
        assert same, f"{value}: strides {have}, wanted {wanted}"
    return result


def _compare(outputs: list[Array], exact: list[Array], eager: list[Array], slack: float, atol: float) -> None:
    for k, (ours, right, theirs) in enumerate(zip(outputs, exact, eager, strict=True)):
        if ours.dtype == theirs.dtype and ours.dtype.kind not in "biu" and _near(ours, theirs, atol):
            continue
        if ours.dtype == np.float64:
            finite = np.isfinite(right) & np.isfinite(theirs)
            allowed = slack * np.abs(theirs - right)[finite].max(initial=0.0)
            allowed += 1e-12 * np.abs(right)[finite].max(initial=1.0)
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=allowed, err_msg=f"output {k}")
        else:
            assert_close_to_oracle(ours, right, theirs, slack=slack)


def _near(ours: Array, theirs: Array, atol: float) -> bool:
    if atol == 0 or ours.shape != theirs.shape:
        return False
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    return bool(np.allclose(a, b, rtol=0, atol=atol, equal_nan=True))


def _reference_extern(attributes: ExternAttributes, operands: Sequence[Array]) -> Sequence[Array]:
    return run_extern(attributes, list(operands))


def group_kinds(lowered: Lowered) -> list[str]:
    """The kinds of the ``fused`` ops after fusion, in order."""
    return [op.attributes.kind for op in lowered.graph.ops if op.name == "fused"]  # type: ignore[attr-defined]


def reasons(lowered: Lowered) -> list[str]:
    """Why each declined fusion was not made."""
    return [d.reason for d in lowered.program.declined]


@dataclass
class Streaming(Selector):
    """Every result counts as a large one, and every row is fetched ahead."""

    staged: bool = False

    def candidates(self, context: LoweringContext) -> list[CpuSchedule]:
        found = (s for s in super().candidates(context) if isinstance(s, RowSchedule))
        return [replace(s, non_temporal_bytes=1, overlaps=True, staged=self.staged) for s in found]


STREAMING = Streaming(cpu_target("cpu"), 2)
"""For results that are streamed and rows that are fetched ahead, whatever their size."""

STAGED = Streaming(cpu_target("cpu"), 2, staged=True)
"""The same with rows in stages."""
