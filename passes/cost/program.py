"""How long each kernel of a program takes, and the program: where a kernel's operands are depends on the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from fusec.passes.cost.kernel import Estimate, estimate, together
from fusec.runtime.program import Call, KernelReport, Launch, Pack, Program
from fusec.target.cpu import CpuTarget
from fusec.target.rates import Rates


def predict(program: Program, target: CpuTarget, rates: Rates, threads: int) -> Program:
    """The program, its reports with the predicted times and what bounds them.

    Calls are taken to follow each other: what one leaves in the caches the next may find there.
    """
    kernels = {kernel.name: kernel for kernel in program.kernels}
    known: dict[tuple[object, ...], Estimate] = {}
    by_group: dict[str, list[Estimate]] = {}
    for step, distances in _launches(program):
        key = (step.kernel, distances)
        if key not in known:
            kernel = kernels[step.kernel]
            near = dict(zip(kernel.parameters, distances, strict=False))
            known[key] = estimate(kernel, target, rates, threads, near)
        by_group.setdefault(step.group or step.kernel, []).append(known[key])
    reports = tuple(_told(report, by_group.get(report.kernel, ())) for report in program.reports)
    told = {report.kernel for report in reports}
    others = sum(e.seconds for group, found in by_group.items() if group not in told for e in found)
    return replace(program, reports=reports, overhead=rates.call + others)


def _told(report: KernelReport, estimates: Sequence[Estimate]) -> KernelReport:
    """A report with its kernels' times added up."""
    if not estimates:
        return report
    whole = together(estimates)
    seconds = max(whole.seconds, report.limit)
    return replace(report, predicted=seconds, bound=whole.bound, parts=tuple(whole.parts.items()))


def _launches(program: Program) -> Iterator[tuple[Launch, tuple[float, ...]]]:
    """Each launch, and for each of its arguments the bytes that other memory took since it was last used.

    All steps are gone through twice: the second time every slot has been used before.
    """
    sizes = [float(slot.type.most_bytes) for slot in program.slots]
    recent: dict[int, None] = {}
    for again in (False, True):
        for step in program.steps:
            if isinstance(step, Pack):
                continue
            roots = [_root(program, slot) for slot in _touched(step)]
            if again and isinstance(step, Launch):
                yield step, tuple(_distance(recent, sizes, root, roots) for root in roots)
            for root in roots:
                recent.pop(root, None)
                recent[root] = None


def _touched(step: Launch | Call) -> tuple[int, ...]:
    return step.arguments if isinstance(step, Launch) else (*step.arguments, *step.results)


def _distance(recent: Mapping[int, None], sizes: Sequence[float], root: int, roots: Sequence[int]) -> float:
    since = set(roots)
    for slot in reversed(list(recent)):
        since.add(slot)
        if slot == root:
            break
    return sum(sizes[slot] for slot in since)


def _root(program: Program, number: int) -> int:
    slot = program.slots[number]
    while slot.kind == "view":
        number = slot.source
        slot = program.slots[number]
    return number
