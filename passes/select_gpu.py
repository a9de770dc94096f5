# SPDX-License-Identifier: Apache-2.0
"""Which schedule or library call computes a group on a GPU, and what is said of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from functools import partial
from math import inf
from typing import cast

from fusec.errors import LoweringError
from fusec.ir.graph import FusedAttributes, Graph
from fusec.ir.nodes import Op
from fusec.ir.types import contiguous_strides
from fusec.passes.cost.lanes import bytes_read
from fusec.passes.families.all import family_of
from fusec.passes.families.family import GpuMachine
from fusec.passes.families.languages import InCuda, values_of
from fusec.passes.lower.context import LoweredGroup, LoweringContext, sizes_of
from fusec.passes.lower.pieces import Alternative, Pieces
from fusec.passes.schedule.base import GpuSchedule, by_seconds
from fusec.passes.select import fused_ops
from fusec.runtime.program import Choice, KernelReport
from fusec.target.gpu import GpuTarget
from fusec.target.gpu_rates import GpuRates


@dataclass
class GpuSelector:
    """Chooses schedules for one GPU. ``cuda``: kernels may be written in CUDA C++, too; ``triton``: in Triton.

    usual: extents of symbols for which products and attention are scheduled; where it says nothing, the largest.
    calls: PyTorch's library is at hand for what it does sooner. refused: of a kernel, by name, how many ways to compute
    it are left out, the best predicted first: a compiler did not take them.
    """

    target: GpuTarget
    cuda: bool = False
    triton: bool = True
    usual: Mapping[str, int] = field(default_factory=dict)
    calls: bool = field(default=True, kw_only=True)
    measured: list[Choice] = field(default_factory=list, kw_only=True)
    refused: Mapping[str, int] = field(default_factory=dict, kw_only=True)

    @property
    def by_name(self) -> bool:
        """Whether groups that differ in names alone may have two kernels. What is refused of one is of all: a kernel
        that several share has the first one's name."""
        return False

    def alternatives(self, context: LoweringContext) -> list[Alternative]:
        """Every way to compute a group: its schedules, the best predicted first, and from the second position on the
        library's calls. LoweringError when no family fits."""
        own = self._own(context)
        rest = [a for a in self._library(context) if a.text not in {o.text for o in own}]
        return [*own[:1], *rest, *own[1:]]

    def _library(self, context: LoweringContext) -> list[Alternative]:
        """Ways that call the library, which plans for one shape."""
        if sizes_of(context.body):
            return []
        return family_of(context.op).gpu.library(context, self.target)

    def _own(self, context: LoweringContext) -> list[Alternative]:
        """Those that need no measuring to be chosen: kernels of ours, and calls whose time is predicted to be less; the
        best first."""
        pieces = family_of(context.op).gpu.pieces(context)
        calls = [a for a in self._library(context) if a.seconds < inf] if self.calls else []
        try:
            found = self.candidates(context)
        except LoweringError:
            if not calls and not pieces:
                raise
            found = []
        schedules = {alternative_text(s): s for s in found}
        own = [Alternative(text, partial(lower_with, schedule=s)) for text, s in schedules.items()]
        calls = [a for a in calls if not found or a.seconds < found[0].seconds]
        others = [*(replace(p, seconds=self._seconds_of(context, p)) for p in pieces), *calls]
        sooner = sorted((a for a in others if not found or a.seconds < found[0].seconds), key=by_seconds)
        return [*sooner, *own[:1], *(a for a in others if a not in sooner), *own[1:]]

    def _seconds_of(self, context: LoweringContext, alternative: Alternative) -> float:
        """Predicted, of an alternative of several kernels of ours; infinity where one of them can't be made."""
        pieces = alternative.lower(context.fresh())
        assert isinstance(pieces, Pieces)
        values = (v for op in pieces.ops for v in (*op.operands, *op.results))
        strides = {v: context.strides.get(v, contiguous_strides(v.type.shape)) for v in values}
        rates = self.target.rates
        try:
            found = [self.candidates(LoweringContext(op, strides, context.name))[0].seconds for op in pieces.ops]
        except LoweringError:
            return inf
        return sum(found) - (len(found) - 1) * (rates.launch - rates.follow)

    def candidates(self, context: LoweringContext) -> list[GpuSchedule]:
        """Schedules for a group, best predicted first: none below a launch, and memory that gives and takes everything
        once. LoweringError when no family fits."""
        unknown = next((v for v in values_of(context) if v.type.dtype.kind == "complex"), None)
        if unknown is not None:
            raise LoweringError(f"{unknown} is {unknown.type.dtype}: no GPU kernel computes complex numbers")
        machine = GpuMachine(self.target, self.cuda, self.triton, self.usual, self.calls)
        floor = self.target.rates.launch + self.target.rates.moved(*machine.moved(context))
        return [_at_least(s, floor) for s in family_of(context.op).gpu.candidates(context, machine)]

    def lower(self, context: LoweringContext) -> LoweredGroup | Pieces:
        """The group by the best predicted schedule. LoweringError where all of them are refused."""
        own = self._own(context)[self.refused.get(context.name, 0) :]
        if not own:
            raise LoweringError(f"no way to compute {context.name} compiles")
        return own[0].lower(context)

    def report(self, lowered: LoweredGroup, op: Op) -> KernelReport:
        """What explain says of the kernel."""
        kernel, rates, body = lowered.kernel, self.target.rates, op.expect(FusedAttributes).body
        flops = (1 - (lowered.skipped or 0.0)) * kernel.flops
        moved = bytes_read(body) + sum(v.type.most_bytes for v in body.outputs)
        parts = {
            "compute": flops / _rate(body, rates),
            "memory": moved / rates.read,
            "launch": rates.follow,
        }
        bound = max(parts, key=lambda part: parts[part])
        language: tuple[tuple[str, int | str], ...] = (("language", "cuda"),) if kernel.language == "cuda" else ()
        schedule = (*lowered.describe(), *language)
        work = kernel.flops, kernel.bytes
        return KernelReport(
            kernel.name, kernel.kind, fused_ops(op), schedule, *work, lowered.seconds, parts[bound], bound
        )


def _rate(body: Graph, rates: GpuRates) -> float:
    """Operations a second of a group's matmuls by the type of their operands, or of anything else."""
    multiplied = {v.type.dtype for o in body.ops if o.definition.kind == "dot" for v in o.operands}
    if multiplied and all(d.bits == 8 for d in multiplied):
        return 2 * rates.tensor
    half = any(v.type.dtype.is_half for v in body.inputs) or any(d.is_half for d in multiplied)
    return rates.tensor if half and multiplied else rates.simt


def _at_least(schedule: GpuSchedule, seconds: float) -> GpuSchedule:
    if schedule.seconds >= seconds:
        return schedule
    if isinstance(schedule, InCuda):
        return replace(schedule, schedule=_at_least(schedule.schedule, seconds))
    assert is_dataclass(schedule)
    return cast("GpuSchedule", replace(schedule, seconds=seconds))


def alternative_text(schedule: GpuSchedule) -> str:
    """The language of the kernel, and the schedule's sizes."""
    return " ".join((schedule.language, *(f"{name}={size}" for name, size in schedule.describe())))


def lower_with(context: LoweringContext, schedule: GpuSchedule) -> LoweredGroup:
    """The group's kernel with a given schedule."""
    lowered = family_of(context.op).gpu.lower(context, schedule)
    launch = schedule.launch
    kernel = replace(lowered.kernel, warps=launch.warps, stages=launch.stages, registers=launch.registers)
    kernel = replace(kernel, language=schedule.language)
    reductions = tuple(replace(f, kernel=replace(f.kernel, language="triton")) for f in lowered.reductions)
    return replace(lowered, kernel=kernel, reductions=reductions, seconds=schedule.seconds)
