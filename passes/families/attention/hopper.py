"""Attention for Hopper's tensor cores: the same kernel as elsewhere, in blocks that its own emitter can arrange."""

from __future__ import annotations

from dataclasses import replace

from fusec.passes.families.attention.gpu import lower_attention
from fusec.passes.families.attention.schedule.gpu import GpuAttentionSchedule
from fusec.passes.families.attention.schedule.hopper import HopperAttentionSchedule
from fusec.passes.lower.frame import Frame, LoweredGroup
from fusec.passes.schedule.launch import Launch
from fusec.tile.attention import attention_roles, fetched

_ANY_ADDRESS = GpuAttentionSchedule(64, 64, Launch(4, 2))
"""For addresses that bulk copies refuse."""


def lower_hopper_attention(frame: Frame, schedule: HopperAttentionSchedule) -> LoweredGroup:
    """LoweringError where operands are computed or can't be fetched by bulk copies, and for heads of odd sizes."""
    s = schedule
    lowered = lower_attention(frame, GpuAttentionSchedule(s.queries, s.keys, s.launch), bounded=False)
    roles = attention_roles(lowered.kernel)
    fetched(roles.queries, roles.query, roles.depth)
    fetched(roles.keys, roles.key, roles.depth)
    fetched(roles.values, roles.key, roles.value)
    anywhere = lower_attention(frame.fresh(), _ANY_ADDRESS).kernel
    launch = _ANY_ADDRESS.launch
    anywhere = replace(anywhere, warps=launch.warps, stages=launch.stages, language="triton")
    kernel = replace(lowered.kernel, unaligned=anywhere, pipeline=s.pipeline)
    return replace(lowered, kernel=kernel, schedule=s.describe())
