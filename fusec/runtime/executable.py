# SPDX-License-Identifier: Apache-2.0
"""A program with its machine code, ready to be called on arrays."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from typing import Any, Protocol

import numpy as np

from fusec.errors import SignatureError, TargetError
from fusec.frontend.capture import Library
from fusec.runtime.adapters import load_arrays
from fusec.runtime.arrays import Arrays
from fusec.runtime.calls import bind_call
from fusec.runtime.code import Scope, indented, make_function
from fusec.runtime.emit import Chain, ChainMaker, Mark, Parts, ProgramWriter, RowMaker, pack_sources
from fusec.runtime.isa import can_run, why_not
from fusec.runtime.packing import Packer, Packings
from fusec.runtime.program import Call, Launch, Pack, Program, root_of
from fusec.runtime.watch import Watcher, watch_test
from fusec.target.cpu import cpu_target
from fusec.target.gpu import is_gpu
from fusec.tile.kernel import Kernel

BRIEF_WORK = 32 * 1024
"""Operations and bytes up to which a call keeps the interpreter's lock; giving it up and taking it again costs 25 to 50
ns."""


class Module(Protocol):
    """Machine code of a program's kernels."""

    def function(self, name: str, device: int | None = None) -> Callable[..., Any]:
        """The kernel of this name, called with the address of each parameter; on GPU ``device`` where one is given."""

    def to_bytes(self) -> bytes:
        """The module for a file."""

    # A module may have ``chain`` (see ChainMaker in emit.py) where it runs on CPUs, ``row`` where it runs on GPUs.


@dataclass(frozen=True, eq=False)
class Executable:
    """``executable(*inputs)`` gives the list of outputs.

    Inputs are arrays of the library in the graph's order, with the shapes, dtypes and strides of the program; that
    is not checked here. Outputs that mutate an input are that input. Safe to call from many threads.

    digests: contents of kernels by name, so that equal packings are shared. fixed: graph inputs (their numbers) that
    are part of the executable and not given at a call; weights: the arrays of those that a call reads, by input slot;
    packed: packed memory that only fixed inputs went into, by slot. graph: on a GPU, kernels between library calls are
    replayed as one CUDA graph. compile_here: makes kernels for this machine's CPU, where the module's are for another.
    """

    program: Program
    module: Module
    library: Library
    digests: Mapping[str, str] = field(default_factory=dict)
    fixed: frozenset[int] = frozenset()
    weights: Mapping[int, Any] = field(default_factory=dict)
    packed: Mapping[int, np.ndarray[Any, Any]] = field(default_factory=dict)
    graph: bool = False
    compile_here: Callable[[Sequence[Kernel]], Module] | None = None

    @cached_property
    def arrays(self) -> Arrays:
        return load_arrays(self.library)

    @property
    def free_inputs(self) -> tuple[int, ...]:
        """Graph inputs (their numbers) that a call gives, in order."""
        return tuple(k for k in range(len(self.program.inputs)) if k not in self.fixed)

    def write(
        self,
        scope: Scope,
        inputs: Sequence[str],
        mark: Mark | None = None,
        arrays: Arrays | None = None,
        *,
        owned: bool = False,
    ) -> ProgramWriter:
        """The lines of the program, for code in which these variables hold the free inputs.

        owned: nothing else holds them, and they are let go when they have been read.
        """
        variables = dict(zip(self.free_inputs, inputs, strict=True))
        parts = Parts(
            self._kernel,
            self._packings,
            self._call,
            self._placed,
            self.packed,
            self._row_maker(mark is None),
            self.device or 0,
            self._chain_maker() if self.device is None else None,
            self.graph,
        )
        named = [variables.get(k, "None") for k in range(len(self.program.inputs))]
        free = frozenset(self.program.inputs[k] for k in self.free_inputs if owned)
        return ProgramWriter(self.program, arrays or self.arrays, parts, scope, named, mark, free).write()

    @cached_property
    def device(self) -> int | None:
        """The number of the CUDA device that the program runs on; None on a CPU."""
        found = next((s.type.device for s in self.program.slots if s.type.device.startswith("cuda:")), None)
        return int(found.removeprefix("cuda:")) if found is not None else None

    @cached_property
    def _placed(self) -> Mapping[int, Any]:
        """The weights on the program's device; they may have been frozen or loaded where it is not."""
        devices = [slot.type.device for slot in self.program.slots]
        return {slot: self.arrays.place(weight, devices[slot]) for slot, weight in self.weights.items()}

    def _kernel(self, name: str) -> Callable[..., Any]:
        if self.device is not None:
            return self.module.function(name, self.device)
        return self._in_python(self.module.function(name), [name])

    def _chain_maker(self) -> ChainMaker | None:
        chain = getattr(self.module, "chain", None)
        if chain is None:
            return None

        def make(launches: Chain) -> tuple[Callable[..., None], int, object]:
            run, table, alive = chain(launches)
            return self._in_python(run, [name for name, _ in launches]), table, alive

        return make

    def _in_python(self, run: Callable[..., Any], kernels: Sequence[str]) -> Callable[..., Any]:
        """A function that runs kernels; other Python threads wait meanwhile where it is over sooner than they start."""
        work = {kernel.name: kernel.flops + kernel.bytes for kernel in self.program.kernels}
        if sum(work[name] for name in kernels) <= BRIEF_WORK and hasattr(run, "release_gil"):
            run.release_gil = False
        return run

    def _row_maker(self, together: bool) -> RowMaker | None:
        """``together``: rows may be CUDA graphs; not where each kernel is looked at by itself."""
        row = getattr(self.module, "row", None)
        if row is None or self.device is None:
            return None
        return lambda launches, arguments: row(launches, arguments, self.device, graph=self.graph and together)

    def _packings(self, steps: Sequence[Pack]) -> Packings:
        numbers = {root: number for number, root in enumerate(pack_sources(self.program, steps))}
        own = [[numbers[root] for root in pack_sources(self.program, [step])] for step in steps]
        return Packings(self.arrays, list(zip(map(self._packer, steps), own, strict=True)))

    def _packer(self, step: Pack) -> Packer:
        kernel = self._here.function(step.kernel)
        digest = self.digests.get(step.kernel) or f"{step.kernel}@{id(self.module)}"
        return Packer(self.program, step, kernel, self.arrays, digest)

    def require_here(self) -> None:
        """TargetError where this CPU can't run the program."""
        target = self.program.target
        reason = "" if self.device is not None or is_gpu(target) else why_not(cpu_target(target))
        if reason:
            raise TargetError(f"compiled for {target}, it can't run here: {reason}")

    @cached_property
    def _here(self) -> Module:
        """The module whose kernels pack: this one, or where another CPU's code can't run here, the same for this
        CPU."""
        if self.device is not None or is_gpu(self.program.target) or can_run(cpu_target(self.program.target)):
            return self.module
        assert self.compile_here is not None, "only what was compiled here is for another machine"
        names = {step.kernel for step in self.program.steps if isinstance(step, Pack)}
        return self.compile_here([k for k in self.program.kernels if k.name in names])

    def _call(self, step: Call) -> Callable[..., Sequence[Any]]:
        return bind_call(step.attributes, self.library)

    @cached_property
    def _run(self) -> Callable[..., list[Any]]:
        return self.runner(watchable=True)

    @cached_property
    def watched(self) -> Callable[..., list[Any]]:
        """The function from free inputs to outputs for calls that a trace or a profiler looks at."""
        watcher = Watcher(self.program, self.library, self.device)
        scope = Scope()
        step = scope.bind(watcher.step, "step")
        names = [f"i{k}" for k in self.free_inputs]
        written = self.write(scope, names, lambda k, lines: [f"with {step}({k}):", *indented(lines)])
        lines = [*written.lines, f"return [{', '.join(written.results)}]"]
        head = f"with {scope.bind(watcher.call, 'call')}():"
        return make_function(f"watched_{self.program.name}", names, [head, *indented(lines)], scope)

    def watch_test(self, scope: Scope) -> str:
        """The condition under which :attr:`watched` is to be called in place of the program's lines."""
        return watch_test(scope, self.arrays.profiler())

    def runner(self, arrays: Arrays | None = None, *, watchable: bool = False) -> Callable[..., list[Any]]:
        """The function from free inputs to outputs; ``arrays`` allocate its memory in place of the library's own.

        ``watchable``: traces and profilers see its calls.
        """
        scope = Scope()
        names = [f"i{k}" for k in self.free_inputs]
        written = self.write(scope, names, arrays=arrays)
        lines = [*written.lines, f"return [{', '.join(written.results)}]"]
        if watchable:
            own = scope.bind(weakref.ref(self), "program")  # which keeps this function
            lines.insert(0, f"if {self.watch_test(scope)}: return {own}().watched({', '.join(names)})")
        return make_function(self.program.name, names, lines, scope)

    def __call__(self, *inputs: Any) -> list[Any]:
        if len(inputs) != len(self.free_inputs):
            raise SignatureError(f"{self.program.name} takes {len(self.free_inputs)} arrays, {len(inputs)} were given")
        return self._run(*inputs)

    @property
    def source(self) -> str:
        """The Python that a call runs."""
        return str(self._run.__source__)  # type: ignore[attr-defined]

    def profile(self, inputs: Sequence[Any], repeats: int = 10) -> list[float]:
        """Median seconds of each step over some calls. Mutated inputs are mutated.

        Of a kernel it is the launch alone: making the array of a result takes longer than some kernels.
        """
        scope = Scope()
        watch = self.arrays.stopwatch(self.device)
        mark = f"times.append({scope.bind(watch.mark, 'clock')}())"
        names = [f"i{k}" for k in self.free_inputs]
        launches = [isinstance(step, Launch) for step in self.program.steps]

        def marked(number: int, lines: list[str]) -> list[str]:
            before = len(lines) - launches[number]
            return [*lines[:before], mark, *lines[before:], mark]

        written = self.write(scope, names, marked)
        run = make_function("profiled", names, ["times = []", mark, *written.lines, "return times"], scope)
        run(*inputs)
        rows = []
        for _ in range(repeats):
            watch.ready()
            rows.append(watch.seconds(run(*inputs)))
        return [
            median((0.0 if launch else row[2 * k]) + row[2 * k + 1] for row in rows)
            for k, launch in enumerate(launches)
        ]

    def freeze(self, values: Mapping[int, Any], shared: dict[tuple[object, ...], Any] | None = None) -> Executable:
        """The executable with graph inputs ``values`` (by number) fixed: packed now, or copied.

        An input that only packings read is not kept. ``shared``: copies and packed memory made for other executables
        from the same values, which this one takes and adds to.
        """
        made = {} if shared is None else shared
        made.update((("source", id(value)), value) for value in values.values())  # so that no other gets its id
        program = self.program
        by_slot = {program.inputs[k]: value for k, value in values.items()}
        packed: dict[int, np.ndarray[Any, Any]] = dict(self.packed)
        for step in program.steps:
            if isinstance(step, Pack) and all(root in by_slot for root in pack_sources(program, [step])):
                sources = [by_slot[root] for root in pack_sources(program, [step])]
                offsets = tuple(root_of(program, slot)[1] for slot in step.arguments[:-1])
                digest = self.digests.get(step.kernel, step.kernel)
                key: tuple[object, ...] = ("packed", digest, offsets, *map(id, sources))
                if key not in made:
                    made[key] = self._packer(step).pack(sources)
                packed[step.arguments[-1]] = made[key]
        needed = {root_of(program, slot)[0] for slot in _slots_read(program, set(packed))}
        scope = Scope()
        weights = dict(self.weights)
        for slot, value in by_slot.items():
            if slot in needed:
                if ("copy", id(value)) not in made:
                    copy = self.arrays.copy(scope, "value")
                    made["copy", id(value)] = eval(copy, dict(scope.objects), {"value": value})
                weights[slot] = made["copy", id(value)]
        fixed = self.fixed | frozenset(values)
        origin = self.graph, self.compile_here
        return Executable(program, self.module, self.library, self.digests, fixed, weights, packed, *origin)


def _slots_read(program: Program, packed: set[int]) -> set[int]:
    """Slots that are read by steps other than packings already done, or that leave the program."""
    read = set(program.outputs)
    for step in program.steps:
        match step:
            case Pack():
                if step.arguments[-1] not in packed:
                    read |= set(step.arguments[:-1])
            case Launch() | Call():
                read |= set(step.arguments)
    return read
