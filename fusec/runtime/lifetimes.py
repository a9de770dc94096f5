# SPDX-License-Identifier: Apache-2.0
"""How long a program needs the memory of its values, and how much of it at a time.

What a value lies in is given back after the last step that touches it: arrays that a library call gave or gets, and
inputs that the caller has handed over. On a GPU a row of launches is cut where something large is no longer needed and
something large begins, and large scratch is allocated by itself, where that lowers the peak: the allocator hands the
memory out again in the order of the stream.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from fusec.ir.indexing import round_up
from fusec.runtime.arrays import bytes_spanned
from fusec.runtime.memory import DEVICE_ALIGNMENT, POOLED_BYTES, plan_arena
from fusec.runtime.program import Call, Launch, Pack, Program, Step, root_of
from fusec.target.gpu import is_gpu

LARGE = 1 << 20
"""Bytes of what a row of launches is cut for."""

_WORTH_BYTES, _WORTH = 32 << 20, 0.05
"""What cutting rows has to save: bytes, and the part of the peak."""


def reads_and_writes(
    program: Program, step: Step, outputs: Mapping[str, int] | None = None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The slots that a step reads, and those that it writes. outputs: of each kernel, where they are known."""
    match step:
        case Launch():
            known = outputs if outputs is not None else {k.name: k.outputs for k in program.kernels}
            split = len(step.arguments) - known[step.kernel]
            return step.arguments[:split], step.arguments[split:]
        case Pack():
            return step.arguments[:-1], step.arguments[-1:]
        case Call():
            return step.arguments, step.results


Rows = Sequence[Sequence[int]]
"""Numbers of a program's steps: those that are launched together, in order."""


@dataclass(frozen=True)
class Lifetimes:
    """Of each slot with memory of its own the first and the last step that touches it.

    owned: input slots that the caller hands over. kept: slots that outlive the call: what results lie in, and inputs
    that get new contents. inner: scratch that only kernels see.
    """

    program: Program
    owned: frozenset[int] = frozenset()

    @cached_property
    def spans(self) -> Mapping[int, tuple[int, int]]:
        """First and last step by slot; an input is there before the first step."""
        program = self.program
        found = dict.fromkeys(program.inputs, (-1, -1))
        outputs = {kernel.name: kernel.outputs for kernel in program.kernels}
        for number, step in enumerate(program.steps):
            reads, writes = reads_and_writes(program, step, outputs)
            for slot in (*reads, *writes):
                root, _ = root_of(program, slot)
                found[root] = (found.get(root, (number, number))[0], number)
        return found

    @cached_property
    def kept(self) -> frozenset[int]:
        program = self.program
        changed = (program.inputs[port.mutates] for port in program.output_ports if port.mutates is not None)
        return frozenset(root_of(program, slot)[0] for slot in (*program.outputs, *changed))

    @cached_property
    def inner(self) -> frozenset[int]:
        program = self.program
        seen = set(self.kept)
        for step in program.steps:
            if isinstance(step, Call):
                seen |= {root_of(program, slot)[0] for slot in (*step.arguments, *step.results)}
        return frozenset(s for s in self.spans if program.slots[s].kind == "workspace" and s not in seen)

    @cached_property
    def sizes(self) -> Mapping[int, int]:
        """Bytes of each slot; of none where they are known at the call only."""
        found = {}
        for slot in self.spans:
            size = bytes_spanned(self.program.slots[slot].type, self.program.slots[slot].strides)
            if not isinstance(size, int):
                return {}
            found[slot] = size
        return found

    def released(self, row: Sequence[int]) -> list[int]:
        """The slots that are not needed after the steps of a row, and are worth giving back."""
        return [slot for number in range(row[0], row[-1] + 1) for slot in self._ends.get(number, ())]

    @cached_property
    def _ends(self) -> Mapping[int, Sequence[int]]:
        """What is given back, by the last step that touches it."""
        ends: dict[int, list[int]] = {}
        for slot, (_, end) in self.spans.items():
            held = slot not in self.owned and self.program.slots[slot].kind not in ("workspace", "extern", "output")
            if not held and slot not in self.kept and self.sizes.get(slot, POOLED_BYTES) >= POOLED_BYTES:
                ends.setdefault(end, []).append(slot)
        return ends

    @cached_property
    def _large_starts(self) -> frozenset[int]:
        return frozenset(start for slot, (start, _) in self.spans.items() if self._is_large(slot))

    def cut(self, row: Sequence[int]) -> list[list[int]]:
        """A row in parts: one ends where memory is given back before a step that takes some."""
        parts: list[list[int]] = [[]]
        for number in row:
            part = parts[-1]
            if part and number in self._large_starts and any(map(self._is_large, self.released(part))):
                parts.append([])
            parts[-1].append(number)
        return parts

    def _is_large(self, slot: int) -> bool:
        return self.sizes.get(slot, 0) >= LARGE

    def apart(self, inner: Collection[int]) -> frozenset[int]:
        """Of scratch, what is allocated by itself where rows are cut."""
        return frozenset(slot for slot in inner if self._is_large(slot))

    def peak(self, rows: Rows, apart: Collection[int] = ()) -> int:
        """Bytes that a call has at most at a time beside its inputs; ``apart``: scratch that is allocated by itself."""
        if not self.sizes and self.spans:
            return 0
        together = [slot for slot in self.inner if slot not in apart]
        lives = [self.spans[slot] for slot in together]
        live = plan_arena([self.sizes[slot] for slot in together], lives, DEVICE_ALIGNMENT)[1]
        most, own = live, set(together)
        for row in rows:
            steps = range(row[0], row[-1] + 1)
            live += sum(self._bytes(s) for s, span in self.spans.items() if span[0] in steps and s not in own)
            most = max(most, live)
            live -= sum(self._bytes(slot) for slot in self.released(row) if slot not in own)
        return most

    def _bytes(self, slot: int) -> int:
        known = self.program.slots[slot].kind in ("input", "workspace", "output", "extern")
        return round_up(self.sizes[slot], DEVICE_ALIGNMENT) if known else 0

    def better_cut(self, rows: Rows) -> bool:
        """Whether cutting the rows lowers the peak by enough."""
        if not self.sizes:
            return False
        whole = self.peak(rows)
        parts = [part for row in rows for part in self.cut(row)]
        saved = whole - self.peak(parts, self.apart(self.inner))
        return saved >= _WORTH_BYTES and saved >= _WORTH * (whole + sum(self.sizes[s] for s in self.program.inputs))


@dataclass(frozen=True)
class Memory:
    """Bytes of a call. peak: that it has at most at a time beside its inputs; those that are handed over make room once
    they have been read. results: that it gives."""

    peak: int
    results: int


def memory_of(program: Program, *, owned: bool = False) -> Memory | None:
    """As a call has it that launches kernels together; None where sizes are known at the call only."""
    lifetimes = Lifetimes(program, frozenset(program.inputs) if owned else frozenset())
    if not lifetimes.sizes:
        return None
    rows: list[list[int]] = []
    for number, step in enumerate(program.steps):
        if rows and not isinstance(step, Call) and not isinstance(program.steps[number - 1], Call):
            rows[-1].append(number)
        else:
            rows.append([number])
    apart = frozenset[int]()
    if is_gpu(program.target) and lifetimes.better_cut(rows):
        rows = [part for row in rows for part in lifetimes.cut(row)]
        apart = lifetimes.apart(lifetimes.inner)
    given = set(program.inputs)
    return Memory(lifetimes.peak(rows, apart), sum(lifetimes.sizes.get(s, 0) for s in lifetimes.kept - given))
