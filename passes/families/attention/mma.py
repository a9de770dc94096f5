# SPDX-License-Identifier: Apache-2.0
"""Attention for warps' tensor core instructions: the kernel as elsewhere, in blocks that its own emitter arranges."""

from __future__ import annotations

from dataclasses import replace

from fusec.passes.families.attention.gpu import attention_nest, lower_attention_nest
from fusec.passes.families.attention.schedule.gpu import GpuAttentionSchedule
from fusec.passes.families.attention.schedule.mma import MmaAttentionSchedule
from fusec.passes.lower.context import LoweredGroup, LoweringContext
from fusec.tile.templates import MmaAttention


def check_mma_attention(context: LoweringContext, schedule: MmaAttentionSchedule) -> None:
    """LoweringError for attention that :func:`lower_mma_attention` refuses, of any sizes."""
    attention_nest(context.fresh(), GpuAttentionSchedule(schedule.queries, schedule.keys, schedule.launch))


def lower_mma_attention(context: LoweringContext, schedule: MmaAttentionSchedule) -> LoweredGroup:
    """LoweringError where operands are computed or not of 16 bits, and for heads of odd sizes."""
    s = schedule
    lowered, nest = lower_attention_nest(context, GpuAttentionSchedule(s.queries, s.keys, s.launch))
    return replace(lowered, kernel=replace(lowered.kernel, template=MmaAttention(nest)), schedule=s.describe())
