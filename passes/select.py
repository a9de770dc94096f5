"""Which family lowers a group, and with which schedule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fusec.errors import LoweringError
from fusec.ir.attributes import ReduceAttributes
from fusec.ir.graph import FusedAttributes
from fusec.ir.index import product
from fusec.ir.indexing import most
from fusec.ir.nodes import Op
from fusec.ir.types import DType
from fusec.location import Location
from fusec.passes.attention import attention_parts
from fusec.passes.contraction import accumulator_dtype, contraction
from fusec.passes.families.attention.cpu import keys_seen, lower_attention
from fusec.passes.families.attention.narrow import lower_narrow_attention, multiplies_narrow
from fusec.passes.families.attention.schedule.cpu import (
    AttentionSchedule,
    NarrowAttentionSchedule,
    attention_candidates,
    narrow_attention_candidates,
)
from fusec.passes.families.gemm.along import lower_along
from fusec.passes.families.gemm.cpu import lower_gemm
from fusec.passes.families.gemm.cpu_candidates import product_schedules
from fusec.passes.families.gemm.schedule.cpu import GemmSchedule
from fusec.passes.families.gemm.schedule.widening import WideningSchedule
from fusec.passes.families.gemm.widening import lower_widening
from fusec.passes.families.map.cpu import lower_map
from fusec.passes.families.map.schedule.cpu import MapSchedule, map_schedule
from fusec.passes.families.row.cpu import lower_row
from fusec.passes.families.row.schedule.cpu import RowSchedule, row_schedule
from fusec.passes.lower.frame import Frame, LoweredGroup, op_flops
from fusec.passes.schedule.roofline import roofline
from fusec.runtime.program import KernelReport
from fusec.target.cpu import CpuTarget
from fusec.target.rates import Rates, usual_rates

Schedule = GemmSchedule | WideningSchedule | AttentionSchedule | NarrowAttentionSchedule | RowSchedule | MapSchedule


@dataclass
class Selector:
    """Chooses schedules for one target; ``tuned`` holds measured choices by kernel name.

    ``rates``: what the machine was measured to do, where it was.
    """

    target: CpuTarget
    threads: int
    tuned: Mapping[str, Schedule] = field(default_factory=dict)
    rates: Rates | None = field(default=None, kw_only=True)

    @property
    def known(self) -> Rates:
        """The rates to count with: the measured ones, or what is usual for the target."""
        return self.rates or usual_rates(self.target, self.threads)

    def candidates(self, frame: Frame) -> list[Schedule]:
        """Schedules for a group, best predicted first. LoweringError when no family fits."""
        assert isinstance(frame.op.attributes, FusedAttributes)
        kind = frame.op.attributes.kind
        body = frame.body
        if kind == "gemm":
            return list(product_schedules(frame, self.target, self.threads))
        if kind == "attention":
            match = attention_parts(frame.op)
            dot, first = contraction(match.value_dot), contraction(match.score_dot)
            sides = (dot.m, dot.n)
            dtype = accumulator_dtype(match.score_dot)
            if dtype.name not in ("f32", "f64"):
                raise LoweringError(f"no attention of {dtype} on this target")
            side = match.weights_side
            rows, values = sides[side], sides[1 - side]
            heads = match.value_dot.result.type.most // max(rows * values, 1)
            if multiplies_narrow(match, self.target):
                narrow = heads, rows, dot.k, values, self.target, self.threads
                found = narrow_attention_candidates(*narrow)
                shares = any(s.shared for s in found)
                return list(narrow_attention_candidates(*narrow, keys_seen(frame.fresh())) if shares else found)
            sizes = rows, dot.k, first.k, values, dtype.bits, self.target, heads, self.threads
            wide = attention_candidates(*sizes)
            shares = any(s.split > 1 for s in wide)
            return list(attention_candidates(*sizes, keys_seen(frame.fresh())) if shares else wide)
        if kind == "row":
            op = next(o for o in body.ops if o.definition.kind == "reduce")
            assert isinstance(op.attributes, ReduceAttributes)
            shape = op.operands[0].type.shape
            reduced = most(product(shape[a] for a in op.attributes.axes))
            rows = most(product(shape)) // max(reduced, 1)
            return [row_schedule(rows, reduced, self.threads, self.target)]
        if kind == "map":
            size = max(v.type.most for v in body.outputs)
            return [map_schedule(size, self.threads, self.target)]
        raise LoweringError(f"no family for {kind} groups")

    def lower(self, frame: Frame) -> LoweredGroup:
        """The group's kernel with the tuned schedule, or the best predicted one."""
        schedule = self.tuned.get(frame.name)
        return lower_with(frame, schedule if schedule is not None else self.candidates(frame)[0])

    def report(self, lowered: LoweredGroup, op: Op) -> KernelReport:
        """What explain says of the kernel, without the predicted time: that depends on the whole program."""
        assert isinstance(op.attributes, FusedAttributes)
        body = op.attributes.body
        kernel = lowered.kernel
        dots = [o for o in body.ops if o.name == "dot"]
        others = kernel.flops - sum(map(op_flops, dots))
        products = _products(lowered, dots)
        limit, bound = roofline(products, others, kernel.bytes, self.target, self.known, self.threads)
        fused = fused_ops(op)
        return KernelReport(
            kernel.name, kernel.kind, fused, lowered.describe(), kernel.flops, kernel.bytes, limit, limit, bound
        )


def _products(lowered: LoweredGroup, dots: Iterable[Op]) -> dict[DType, int]:
    """Operations of a group's products that are done, by their operands' type."""
    skipped = lowered.skipped or 0.0
    found: dict[DType, int] = {}
    for op in dots:
        dtype = op.operands[0].type.dtype
        found[dtype] = found.get(dtype, 0) + int((1 - skipped) * op_flops(op))
    return found


def lower_with(frame: Frame, schedule: Schedule) -> LoweredGroup:
    """The group's kernel with a given schedule."""
    match schedule:
        case GemmSchedule():
            return lower_along(frame, schedule) if schedule.registers.along else lower_gemm(frame, schedule)
        case WideningSchedule():
            return lower_widening(frame, schedule)
        case AttentionSchedule():
            return lower_attention(frame, schedule)
        case NarrowAttentionSchedule():
            return lower_narrow_attention(frame, schedule)
        case RowSchedule():
            return lower_row(frame, schedule)
        case MapSchedule():
            return lower_map(frame, schedule)


def fused_ops(op: Op) -> tuple[tuple[str, Location | None], ...]:
    """The compute ops of a fused op: name and result, and the user's line."""
    assert isinstance(op.attributes, FusedAttributes)
    return tuple(
        (f"{o.name} %{o.results[0].name}", o.location)
        for o in op.attributes.body.ops
        if o.definition.kind not in ("view", "create")
    )
