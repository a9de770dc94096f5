"""Kernels of groups with products or attention by one given schedule, as ``GpuSelector`` lowers it."""

from __future__ import annotations

from dataclasses import dataclass

from fusec.errors import LoweringError
from fusec.ir.graph import FusedAttributes, Graph
from fusec.passes.lower.context import LoweredGroup, LoweringContext
from fusec.passes.lower.pieces import Pieces
from fusec.passes.pipeline import lower
from fusec.passes.schedule.base import GpuSchedule
from fusec.passes.select_gpu import GpuSelector, lower_with
from fusec.target.gpu import gpu_target
from fusec.tile.kernel import Kernel
from fusec.tile.verify import verify


class RefusedError(Exception):
    """Attention that the schedule does not fit; the pipeline would go on without it."""


@dataclass
class Fixed(GpuSelector):
    """Every product and attention with one schedule."""

    schedule: GpuSchedule | None = None

    def lower(self, context: LoweringContext) -> LoweredGroup | Pieces:
        assert self.schedule is not None
        assert isinstance(context.op.attributes, FusedAttributes)
        if not context.anchors("dot"):
            return super().lower(context)
        try:
            return lower_with(context, self.schedule)
        except LoweringError as error:
            if context.op.attributes.kind == "attention":
                raise RefusedError(str(error)) from error
            raise


def lowered(graph: Graph, schedule: GpuSchedule, target: str) -> Kernel:
    """The graph's only kernel."""
    selector = Fixed(gpu_target(target), schedule=schedule)
    (kernel,) = lower(graph, target, precision="tf32", selector=selector).program.kernels
    verify(kernel)
    return kernel
