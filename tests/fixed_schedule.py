"""One schedule for all products, or for all groups of another kind."""

from __future__ import annotations

from dataclasses import dataclass

from fusec.passes.lower.context import LoweredGroup, LoweringContext
from fusec.passes.schedule.base import CpuSchedule
from fusec.passes.select import Selector, lower_with


@dataclass
class Fixed(Selector):
    """Lowers every group of one kind with one schedule, and the others as ever; no kind: every group."""

    schedule: CpuSchedule | None = None
    kind: str | None = "gemm"

    def lower(self, context: LoweringContext) -> LoweredGroup:
        if self.kind is not None and context.op.attributes.kind != self.kind:  # type: ignore[attr-defined]
            return super().lower(context)
        assert self.schedule is not None
        return lower_with(context, self.schedule)
