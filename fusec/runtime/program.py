# SPDX-License-Identifier: Apache-2.0
"""A compiled graph as data: its memory slots, its kernels and the steps that run them.

The passes make a program, the runtime runs it, an artefact stores it. It holds no pointers and no code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from fusec.ir.attributes import ExternAttributes, Scalar
from fusec.ir.graph import FusedAttributes, Graph
from fusec.ir.nodes import Op, Port
from fusec.ir.types import Dim, TensorType
from fusec.location import Location
from fusec.options import Precision
from fusec.tile.kernel import Kernel

SlotKind = Literal["input", "output", "workspace", "packed", "extern", "view", "constant"]


@dataclass(frozen=True)
class Slot:
    """One tensor that exists while a program runs.

    input: argument number ``source`` of the graph, with the strides it was captured with.
    output: fresh memory that the caller will own, with ``strides``.
    workspace: scratch of one call, contiguous; may share memory with others whose lives do not meet.
    packed: a rearranged copy of inputs, kept between calls while its sources do not change.
    extern: made by a library call, contiguous.
    view: the same memory as slot ``source``, ``offset`` elements after that slot's first element, with ``strides``.
    constant: one element, ``value``.
    Strides and offsets are in elements.
    """

    name: str
    kind: SlotKind
    type: TensorType
    strides: tuple[Dim, ...]
    source: int = -1
    offset: Dim = 0
    value: Scalar | None = None


@dataclass(frozen=True)
class Launch:
    """Runs a kernel; ``arguments`` are slots in the order of the kernel's parameters.

    ``group`` names the launch's report; groups whose kernels differ only in names share one kernel.
    """

    kernel: str
    arguments: tuple[int, ...]
    group: str = ""


@dataclass(frozen=True)
class Pack:
    """Runs a kernel that fills the packed slot (its last argument) from inputs.

    Needed only when a source's memory or version changed since the last run. ``cacheable`` is False when a
    source is an argument, which no version counter guards: then it runs on every call.
    """

    kernel: str
    arguments: tuple[int, ...]
    cacheable: bool


@dataclass(frozen=True)
class Call:
    """A library call on ``arguments`` (slots) that fills ``results`` (extern slots)."""

    attributes: ExternAttributes
    arguments: tuple[int, ...]
    results: tuple[int, ...]
    location: Location | None = None


Step = Launch | Pack | Call


@dataclass(frozen=True)
class Declined:
    """A fusion that was not made: the rule, why, and where the user wrote it."""

    rule: str
    reason: str
    location: Location | None = None


@dataclass(frozen=True)
class FusedOp:
    """One of the user's ops in a kernel: the op's name, the name of the value that it makes, and the user's line."""

    op: str
    value: str
    location: Location | None = None

    def __str__(self) -> str:
        return f"{self.op} %{self.value}"


@dataclass(frozen=True)
class KernelReport:
    """What ``explain`` and ``inspect`` say of one group of ops; ``kernel`` is the group's name.

    ``fused`` are the user's ops in it; ``schedule`` its tile sizes by name;
    ``predicted`` the cost model's time in seconds, the one that chose (on a GPU with a launch of its own);
    ``limit`` the roofline's time in seconds;
    ``bound`` what limits it: on a CPU the longest of ``parts``, which have a name (``multiply``, ``elementwise``,
    ``L2``, ``L3``, ``memory``, ``start``) and the seconds that they would take alone; on a GPU ``compute``, ``memory``
    or ``launch``.
    """

    kernel: str
    kind: str
    fused: tuple[FusedOp, ...]
    schedule: tuple[tuple[str, int | str], ...]
    flops: int
    bytes: int
    predicted: float
    limit: float
    bound: str
    parts: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Choice:
    """What measuring a group's alternatives found: each one's seconds, or None and why it was counted out."""

    group: str
    chosen: str
    measured: tuple[tuple[str, float | None, str], ...]


@dataclass(frozen=True)
class Program:
    """Slots, kernels and steps. ``outputs`` are slots, one per graph output, in order.

    ``output_ports[k].mutates`` names an input that must receive output ``k`` in place, after all steps.
    ``precision``: how it was asked to compute matmuls of f32.
    ``overhead``: predicted seconds of a call besides its kernels; on a GPU less than 0 where one's launch hides behind
    another.
    """

    name: str
    target: str
    slots: tuple[Slot, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    input_ports: tuple[Port, ...]
    output_ports: tuple[Port, ...]
    kernels: tuple[Kernel, ...]
    steps: tuple[Step, ...]
    reports: tuple[KernelReport, ...] = ()
    declined: tuple[Declined, ...] = ()
    choices: tuple[Choice, ...] = ()
    overhead: float = 0.0
    precision: Precision = "ieee"

    def report_of(self, op: Op) -> KernelReport | None:
        """The report on a fused op's kernel, the first all of whose ops are in it; None where there is none."""
        if not isinstance(op.attributes, FusedAttributes):
            return None
        made = {value.name for inner in op.attributes.body.ops for value in inner.results}
        return next((r for r in self.reports if r.fused and all(o.value in made for o in r.fused)), None)


class Stages(Mapping[str, str]):
    """IR text after each pass, by its name, in order. A text is made when it is first looked at."""

    def __init__(self) -> None:
        self._made: dict[str, Callable[[], str] | str] = {}

    def note(self, name: str, text: Callable[[], str]) -> None:
        """Adds a stage, or replaces one in its place."""
        self._made[name] = text

    def __getitem__(self, name: str) -> str:
        made = self._made[name]
        if not isinstance(made, str):
            made = self._made[name] = made()
        return made

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)


@dataclass(frozen=True)
class Lowered:
    """The result of the pipeline: IR text after each pass, the graph of kernels, and the program.

    stopped: Ctrl-C ended the measuring of schedules before all were measured.
    """

    stages: Mapping[str, str]
    graph: Graph
    program: Program
    seconds: dict[str, float] = field(default_factory=dict)
    stopped: bool = False


def with_widest_outputs(programs: Sequence[Program]) -> Program:
    """Of the programs of a function's pieces the one whose outputs have the most extents of ranges, of these the last:
    where a range has a piece for one extent alone, the others say what the outputs are."""

    def ranged(program: Program) -> int:
        return sum(not isinstance(d, int) for slot in program.outputs for d in program.slots[slot].type.shape)

    return max(reversed(programs), key=ranged)


def root_of(program: Program, slot: int) -> tuple[int, Dim]:
    """The slot whose memory a slot lies in, and its offset there in elements."""
    offset: Dim = 0
    while program.slots[slot].kind == "view":
        offset += program.slots[slot].offset
        slot = program.slots[slot].source
    return slot, offset
