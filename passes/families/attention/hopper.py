# SPDX-License-Identifier: Apache-2.0
"""Attention for Hopper's tensor cores: the same kernel as elsewhere, in blocks that its own emitter can arrange."""

from __future__ import annotations

from dataclasses import replace

from fusec.passes.families.attention.gpu import attention_nest, lower_attention, lower_attention_nest
from fusec.passes.families.attention.schedule.gpu import GpuAttentionSchedule
from fusec.passes.families.attention.schedule.hopper import HopperAttentionSchedule
from fusec.passes.lower.context import LoweredGroup, LoweringContext
from fusec.passes.schedule.launch import Launch
from fusec.tile.attention import fetched
from fusec.tile.templates import AttentionNest, HopperAttention

_ANY_ADDRESS = GpuAttentionSchedule(64, 64, Launch(4, 2))
"""For addresses that TMA refuses."""


def check_hopper_attention(context: LoweringContext, schedule: HopperAttentionSchedule) -> None:
    """LoweringError for attention that :func:`lower_hopper_attention` refuses, of any sizes."""
    s = schedule
    _check(attention_nest(context.fresh(), GpuAttentionSchedule(s.queries, s.keys, s.launch)))


def lower_hopper_attention(context: LoweringContext, schedule: HopperAttentionSchedule) -> LoweredGroup:
    """LoweringError where operands are computed or can't be fetched by TMA, and for heads of odd sizes."""
    s = schedule
    lowered, nest = lower_attention_nest(context, GpuAttentionSchedule(s.queries, s.keys, s.launch))
    _check(nest)
    anywhere = lower_attention(context.fresh(), _ANY_ADDRESS).kernel
    launch = _ANY_ADDRESS.launch
    anywhere = replace(anywhere, warps=launch.warps, stages=launch.stages, language="triton")
    kernel = replace(lowered.kernel, unaligned=anywhere, template=HopperAttention(nest, s.pipeline))
    return replace(lowered, kernel=kernel, schedule=s.describe())


def _check(nest: AttentionNest) -> None:
    fetched(nest.queries, nest.query, nest.depth)
    fetched(nest.keys, nest.key, nest.depth)
    fetched(nest.values, nest.key, nest.value)
