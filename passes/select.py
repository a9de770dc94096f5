# SPDX-License-Identifier: Apache-2.0
"""Which schedule a group's kernel has on a CPU, and what is said of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fusec.ir.graph import FusedAttributes
from fusec.ir.nodes import Op
from fusec.ir.types import DType
from fusec.passes.families.all import family_of
from fusec.passes.families.family import CpuMachine
from fusec.passes.lower.context import LoweredGroup, LoweringContext, op_flops
from fusec.passes.schedule.base import CpuSchedule
from fusec.passes.schedule.roofline import roofline
from fusec.runtime.program import FusedOp, KernelReport
from fusec.target.cpu import CpuTarget
from fusec.target.rates import Rates, usual_rates


@dataclass
class Selector:
    """Chooses schedules for one target; ``tuned`` holds measured choices by kernel name.

    ``rates``: what the machine was measured to do, where it was.
    """

    target: CpuTarget
    threads: int
    tuned: Mapping[str, CpuSchedule] = field(default_factory=dict)
    rates: Rates | None = field(default=None, kw_only=True)

    @property
    def known(self) -> Rates:
        """The rates to count with: the measured ones, or what is usual for the target."""
        return self.rates or usual_rates(self.target, self.threads)

    @property
    def by_name(self) -> bool:
        """Whether choices depend on a group's name, so that groups which differ in names alone may have two kernels."""
        return bool(self.tuned)

    def candidates(self, context: LoweringContext) -> list[CpuSchedule]:
        """Schedules for a group, best predicted first. LoweringError when no family fits."""
        return list(family_of(context.op).cpu.candidates(context, CpuMachine(self.target, self.threads)))

    def lower(self, context: LoweringContext) -> LoweredGroup:
        """The group's kernel with the tuned schedule, or the best predicted one."""
        schedule = self.tuned.get(context.name)
        return lower_with(context, schedule if schedule is not None else self.candidates(context)[0])

    def report(self, lowered: LoweredGroup, op: Op) -> KernelReport:
        """What explain says of the kernel, without the predicted time: that depends on the whole program."""
        body = op.expect(FusedAttributes).body
        kernel = lowered.kernel
        dots = [o for o in body.ops if o.name == "dot"]
        others = kernel.flops - sum(map(op_flops, dots))
        matmuls = _matmuls(lowered, dots)
        limit, bound = roofline(matmuls, others, kernel.bytes, self.target, self.known, self.threads)
        fused = fused_ops(op)
        return KernelReport(
            kernel.name, kernel.kind, fused, lowered.describe(), kernel.flops, kernel.bytes, limit, limit, bound
        )


def _matmuls(lowered: LoweredGroup, dots: Iterable[Op]) -> dict[DType, int]:
    """Operations of a group's matmuls that are done, by their operands' type."""
    skipped = lowered.skipped or 0.0
    found: dict[DType, int] = {}
    for op in dots:
        dtype = op.operands[0].type.dtype
        found[dtype] = found.get(dtype, 0) + int((1 - skipped) * op_flops(op))
    return found


def lower_with(context: LoweringContext, schedule: CpuSchedule) -> LoweredGroup:
    """The group's kernel with a given schedule."""
    return family_of(context.op).cpu.lower(context, schedule)


def fused_ops(op: Op) -> tuple[FusedOp, ...]:
    """The compute ops of a fused op."""
    return tuple(
        FusedOp(o.name, o.results[0].name, o.location)
        for o in op.expect(FusedAttributes).body.ops
        if o.definition.kind not in ("view", "create")
    )
