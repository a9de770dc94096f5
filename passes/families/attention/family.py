# SPDX-License-Identifier: Apache-2.0
"""Attention: two dots and the softmax between them."""

from __future__ import annotations

from collections.abc import Sequence

from fusec.errors import LoweringError
from fusec.passes.contraction import accumulator_dtype, contraction
from fusec.passes.families.attention.cpu import keys_seen, lower_attention
from fusec.passes.families.attention.elements import attention_parts
from fusec.passes.families.attention.gpu import attention_size
from fusec.passes.families.attention.gpu import lower_attention as lower_gpu_attention
from fusec.passes.families.attention.hopper import check_hopper_attention, lower_hopper_attention
from fusec.passes.families.attention.library import attention_alternatives
from fusec.passes.families.attention.low_precision import lower_low_precision_attention, multiplies_low_precision
from fusec.passes.families.attention.match import match_attentions
from fusec.passes.families.attention.mma import check_mma_attention, lower_mma_attention
from fusec.passes.families.attention.schedule.cpu import (
    AttentionSchedule,
    LowPrecisionAttentionSchedule,
    attention_candidates,
    low_precision_candidates,
)
from fusec.passes.families.attention.schedule.gpu import GpuAttentionSchedule
from fusec.passes.families.attention.schedule.gpu import attention_candidates as gpu_attention_candidates
from fusec.passes.families.attention.schedule.hopper import HopperAttentionSchedule, hopper_attention_candidates
from fusec.passes.families.attention.schedule.mma import MmaAttentionSchedule, mma_attention_candidates
from fusec.passes.families.attention.schedule.size import AttentionSize
from fusec.passes.families.family import CpuMachine, CpuMember, Family, GpuMachine, GpuMember, accepted, foreign
from fusec.passes.lower.context import LoweredGroup, LoweringContext
from fusec.passes.schedule.base import CpuSchedule, GpuSchedule, by_seconds


def _cpu_candidates(context: LoweringContext, machine: CpuMachine) -> Sequence[CpuSchedule]:
    target, threads = machine.target, machine.threads
    match = attention_parts(context.op)
    dot, first = contraction(match.value_dot), contraction(match.score_dot)
    sides = (dot.m, dot.n)
    dtype = accumulator_dtype(match.score_dot)
    if dtype.name not in ("f32", "f64"):
        raise LoweringError(f"no attention of {dtype} on this target")
    side = match.weights_side
    rows, values = sides[side], sides[1 - side]
    heads = match.value_dot.result.type.most // max(rows * values, 1)
    if multiplies_low_precision(match, target):
        low = heads, rows, dot.k, values, target, threads
        found = low_precision_candidates(*low)
        shares = any(s.shared for s in found)
        return low_precision_candidates(*low, keys_seen(context.fresh())) if shares else found
    sizes = rows, dot.k, first.k, values, dtype.bits, target, heads, threads
    wide = attention_candidates(*sizes)
    shares = any(s.split > 1 for s in wide)
    return attention_candidates(*sizes, keys_seen(context.fresh())) if shares else wide


def _cpu_lower(context: LoweringContext, schedule: CpuSchedule) -> LoweredGroup:
    match schedule:
        case AttentionSchedule():
            return lower_attention(context, schedule)
        case LowPrecisionAttentionSchedule():
            return lower_low_precision_attention(context, schedule)
        case _:
            raise foreign("attention", schedule)


def _gpu_candidates(context: LoweringContext, machine: GpuMachine) -> list[GpuSchedule]:
    size = attention_size(context.fresh(), machine.extent)
    in_triton = gpu_attention_candidates(size, machine.target)
    found: list[GpuSchedule] = [*_hopper(context, size, machine), *in_triton, *_mma(context, size, machine)]
    if not found:
        raise LoweringError(f"heads of {size.depth} and {size.values} elements do not fit a block")
    return sorted(found, key=by_seconds)


def _hopper(context: LoweringContext, size: AttentionSize, machine: GpuMachine) -> list[HopperAttentionSchedule]:
    found = hopper_attention_candidates(size, machine.target) if machine.writes_cuda(context, sized=True) else []
    return found if accepted(context, found, check_hopper_attention) else []


def _mma(context: LoweringContext, size: AttentionSize, machine: GpuMachine) -> list[MmaAttentionSchedule]:
    found = mma_attention_candidates(size, machine.target) if machine.writes_cuda(context) else []
    return found if accepted(context, found, check_mma_attention) else []


def _gpu_lower(context: LoweringContext, schedule: GpuSchedule) -> LoweredGroup:
    match schedule:
        case HopperAttentionSchedule():
            return lower_hopper_attention(context, schedule)
        case MmaAttentionSchedule():
            return lower_mma_attention(context, schedule)
        case GpuAttentionSchedule():
            return lower_gpu_attention(context, schedule)
        case _:
            raise foreign("attention", schedule)


ATTENTION = Family(
    "attention",
    match_attentions,
    CpuMember(
        {"attention": AttentionSchedule, "low_precision_attention": LowPrecisionAttentionSchedule},
        _cpu_candidates,
        _cpu_lower,
    ),
    GpuMember(_gpu_candidates, _gpu_lower, library=attention_alternatives),
)
