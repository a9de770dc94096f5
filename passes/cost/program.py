# SPDX-License-Identifier: Apache-2.0
"""How long each kernel of a program takes, and the program: where a kernel's operands are depends on the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean as mean

from fusec.passes.cost.kernel import Estimate, estimate, together
from fusec.runtime.in_place import calls_in_place
from fusec.runtime.memory import plan_arena
from fusec.runtime.program import Call, KernelReport, Launch, Pack, Program
from fusec.target.cpu import CpuTarget
from fusec.target.rates import Rates

Piece = tuple[str, int]
"""A slot's memory, a part of the block of scratch, or a kernel's code, by number."""

PART = 4
"""A kernel that writes at most one of so many bytes of an input leaves the rest where it is."""

SMALLEST_PIECE, PIECES = 1 << 16, 256
"""Bytes of a part of the block of scratch, and about how many parts there are where it is large."""


def predict(program: Program, target: CpuTarget, rates: Rates, threads: int) -> Program:
    """The program, its reports with the predicted times and what bounds them.

    Calls are taken to follow each other: what one leaves in the caches the next may find there.
    """
    kernels = {kernel.name: kernel for kernel in program.kernels}
    known: dict[tuple[object, ...], Estimate] = {}
    by_group: dict[str, list[Estimate]] = {}
    for step, distances, code in launches(program):
        key = (step.kernel, distances, code > target.l3)
        if key not in known:
            kernel = kernels[step.kernel]
            near = dict(zip(kernel.parameters, distances, strict=False))
            found = estimate(kernel, target, rates, threads, near)
            known[key] = found.later(rates.far_start) if code > target.l3 else found
        by_group.setdefault(step.group or step.kernel, []).append(known[key])
    reports = tuple(_told(report, by_group.get(report.kernel, ())) for report in program.reports)
    told = {report.kernel for report in reports}
    others = sum(e.seconds for group, found in by_group.items() if group not in told for e in found)
    touched = _touched_bytes(program)
    others += _library_seconds(program, rates, threads)
    others += _result_seconds(program, rates) if touched > threads * target.l2 else 0.0
    call = rates.seconds_of_call(len(program.inputs), far=touched > target.l3)
    return replace(program, reports=reports, overhead=call + others)


def seconds_after(program: Program, target: CpuTarget, rates: Rates, threads: int, between: float) -> float:
    """What a call takes more than predicted where so many bytes have passed since the last one.

    What it reads that it has not made itself comes from a farther level then.
    """
    roots = _roots(program)
    seconds = 0.0
    seen: set[int] = set()
    for step, distances, _ in launches(program):
        for root, distance in zip((roots[slot] for slot in step.arguments), distances, strict=True):
            slot = program.slots[root]
            if root in seen or slot.kind == "workspace" or root in program.outputs:
                continue
            seen.add(root)
            near = distance <= threads * target.l2
            levels = [rates.beyond_l2(d, threads).read for d in (distance, distance + between)]
            seconds += slot.type.most_bytes * (1 / levels[1] - (0.0 if near else 1 / levels[0]))
    return max(seconds, 0.0)


def _library_seconds(program: Program, rates: Rates, threads: int) -> float:
    """Of the program's library calls: of each call, and of what those copy that don't write in place."""
    inside = calls_in_place(program)
    seconds = 0.0
    for step in program.steps:
        if isinstance(step, Call):
            written = 0 if step.results in inside else sum(program.slots[s].type.most_bytes for s in step.results)
            seconds += rates.library + rates.beyond_l2(2 * written, threads).seconds(written, written)
    return seconds


def _result_seconds(program: Program, rates: Rates) -> float:
    """Of making the arrays of results, where the program leaves nothing of the library's code in the caches."""
    return rates.library * sum(port.mutates is None for port in program.output_ports)


def _touched_bytes(program: Program) -> float:
    return sum(float(slot.type.most_bytes) for slot in program.slots if slot.kind != "view")


def _told(report: KernelReport, estimates: Sequence[Estimate]) -> KernelReport:
    """A report with its kernels' times added up. Where operands lie nearer than so many bytes would, what the roofline
    says is no limit.
    """
    if not estimates:
        return report
    whole = together(estimates)
    limit = min(report.limit, whole.seconds)
    return replace(report, predicted=whole.seconds, limit=limit, bound=whole.bound, parts=tuple(whole.parts.items()))


def launches(program: Program) -> Iterator[tuple[Launch, tuple[float, ...], float]]:
    """Each launch, and for each of its arguments the bytes that other memory took since its own was last used. Then the
    bytes that were used since its kernel's code was.

    All steps are gone through twice: the second time all memory has been used before.
    """
    roots = _roots(program)
    pieces = _pieces(program, roots)
    inside = calls_in_place(program)
    outputs = {kernel.name: kernel.outputs for kernel in program.kernels}
    numbers: dict[str, int] = {}
    recent: dict[Piece, float] = {}
    for again in (False, True):
        for step in program.steps:
            if isinstance(step, Pack):
                continue
            if isinstance(step, Launch):
                used = _used(program, step, outputs[step.kernel], roots)
            else:
                used = [roots[slot] for slot in (step.arguments[1:] if step.results in inside else _touched(step))]
            own = {piece: nbytes for root in used for piece, nbytes in pieces[root]}
            if isinstance(step, Launch):
                code = ("code", numbers.setdefault(step.kernel, len(numbers)))
                own[code] = 0.0
                if again:
                    since = _since(recent, own)
                    distances = tuple(mean(since[piece] for piece, _ in pieces[root]) for root in used)
                    yield step, distances, since[code]
            for piece, nbytes in own.items():
                recent.pop(piece, None)
                recent[piece] = nbytes


def _used(program: Program, step: Launch, outputs: int, roots: Sequence[int]) -> list[int]:
    """For each argument of a launch the slot of which it touches all: one that lies in an input, of which the kernel
    writes a part, or the one in whose memory it lies."""

    def value(number: int, slot: int) -> int:
        root = roots[slot]
        written = number >= len(step.arguments) - outputs and program.slots[root].kind == "input"
        part = PART * program.slots[slot].type.most_bytes <= program.slots[root].type.most_bytes
        return slot if written and part else root

    return [value(number, slot) for number, slot in enumerate(step.arguments)]


def _touched(step: Launch | Call) -> tuple[int, ...]:
    return step.arguments if isinstance(step, Launch) else (*step.arguments, *step.results)


def _since(recent: Mapping[Piece, float], own: Mapping[Piece, float]) -> dict[Piece, float]:
    """The bytes used since each of these pieces was, with all of them counted."""
    found: dict[Piece, float] = {}
    passed = sum(own.values())
    for piece in reversed(list(recent)):
        if piece in own:
            found[piece] = passed
        else:
            passed += recent[piece]
    return found


def _pieces(program: Program, roots: Sequence[int]) -> dict[int, tuple[tuple[Piece, float], ...]]:
    """The pieces of memory that each slot takes, with their bytes: scratch shares one block, by the lives of slots."""
    slots = program.slots
    lives: dict[int, tuple[int, int]] = {}
    outside = {roots[slot] for slot in program.outputs}
    for number, step in enumerate(program.steps):
        arguments = step.arguments if isinstance(step, Pack) else _touched(step)
        for root in {roots[slot] for slot in arguments}:
            if slots[root].kind == "workspace":
                lives[root] = (lives.get(root, (number, number))[0], number)
            if isinstance(step, Call):
                outside.add(root)
    inside = [root for root in lives if root not in outside]
    sizes = [int(slots[root].type.most_bytes) for root in inside]
    offsets, total = plan_arena(sizes, [lives[root] for root in inside])
    side = max(SMALLEST_PIECE, total // PIECES)
    found: dict[int, tuple[tuple[Piece, float], ...]]
    found = {root: ((("slot", root), float(slot.type.most_bytes)),) for root, slot in enumerate(slots)}
    for root, offset, size in zip(inside, offsets, sizes, strict=True):
        end = offset + max(size, 1)
        numbers = range(offset // side, -(-end // side))
        found[root] = tuple((("scratch", n), float(min((n + 1) * side, end) - max(n * side, offset))) for n in numbers)
    return found


def _roots(program: Program) -> list[int]:
    """For each slot the one whose memory it lies in: a view's source, the input that a library call writes into."""
    written = {results[0]: call.arguments[0] for results, call in calls_in_place(program).items()}
    found: list[int] = []
    for number in range(len(program.slots)):
        slot = program.slots[number]
        while slot.kind == "view" or number in written:
            number = slot.source if slot.kind == "view" else written[number]
            slot = program.slots[number]
        found.append(number)
    return found
