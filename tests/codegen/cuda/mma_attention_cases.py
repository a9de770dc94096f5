"""Attention by warps' tensor core instructions: plain PyTorch code with its inputs' shapes, and a schedule."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from hopper_attention_cases import (
    Function,
    RefusedError,
    _qkv,
    biased,
    causal,
    finite_fill,
    joined_heads,
    plain,
    scaled_after,
    soft_window,
)

import fusec
from fusec.errors import LoweringError
from fusec.passes.lower.frame import Frame, LoweredGroup
from fusec.passes.lower.gpu.mma_attention import lower_mma_attention
from fusec.passes.lower.gpu.select import GpuSelector
from fusec.passes.pipeline import lower
from fusec.passes.schedule.mma import MmaAttentionSchedule
from fusec.target.gpu import gpu_target
from fusec.tile.nodes import Kernel


@dataclass
class Fixed(GpuSelector):
    """Every attention with one schedule."""

    schedule: MmaAttentionSchedule | None = None

    def lower(self, frame: Frame) -> LoweredGroup:
        assert self.schedule is not None
        try:
            lowered = lower_mma_attention(frame, self.schedule)
        except LoweringError as error:
            raise RefusedError(str(error)) from error
        launch = self.schedule.launch
        kernel = replace(lowered.kernel, warps=launch.warps, stages=launch.stages, language="cuda")
        return replace(lowered, kernel=kernel)


def lowered(
    function: Function, shapes: list[tuple[int, ...]], s: MmaAttentionSchedule, dtype: Any, target: str = "cuda:sm_80"
) -> Kernel:
    return lowered_for([torch.empty(shape, dtype=dtype) for shape in shapes], function, s, target)


def lowered_for(arrays: list[torch.Tensor], function: Function, s: MmaAttentionSchedule, target: str) -> Kernel:
    """``arrays``: empty ones, with the strides that are meant."""
    graph = fusec.trace(function, *arrays)
    (kernel,) = lower(graph, target, selector=Fixed(gpu_target(target), schedule=s)).program.kernels
    return kernel


PLAIN = MmaAttentionSchedule(128, 64, 4, 1)
AHEAD = MmaAttentionSchedule(128, 64, 4, 2)
LONG = MmaAttentionSchedule(128, 128, 4, 1)
SMALL = MmaAttentionSchedule(64, 64, 4, 1)
WIDE = MmaAttentionSchedule(64, 64, 4, 2)

CASES: dict[str, tuple[Function, list[tuple[int, ...]], MmaAttentionSchedule]] = {
    "plain": (plain, _qkv(2, 3, 512, 128), PLAIN),
    "two buffers": (plain, _qkv(2, 3, 512, 128), AHEAD),
    "odd length": (plain, _qkv(2, 3, 333, 128), PLAIN),
    "odd length, two buffers": (plain, _qkv(2, 3, 333, 64), AHEAD),
    "long blocks": (plain, _qkv(1, 2, 640, 64), LONG),
    "other keys": (plain, _qkv(1, 2, 200, 64, keys=519), SMALL),
    "few rows": (plain, _qkv(1, 2, 70, 64, keys=300), SMALL),
    "other values": (plain, _qkv(1, 2, 256, 64, values=128), PLAIN),
    "heads of 256": (plain, _qkv(1, 2, 256, 256), WIDE),
    "heads of 192": (causal, _qkv(1, 2, 256, 192), SMALL),
    "heads of 96": (causal, _qkv(1, 2, 320, 96), PLAIN),
    "heads of 80": (plain, _qkv(1, 3, 150, 80), AHEAD),
    "heads of 32": (causal, _qkv(1, 3, 300, 32), LONG),
    "heads of 16": (plain, _qkv(1, 3, 150, 16), PLAIN),
    "causal": (causal, _qkv(3, 5, 512, 128), PLAIN),
    "causal, two buffers": (causal, _qkv(3, 5, 512, 128), AHEAD),
    "causal, odd length": (causal, _qkv(1, 11, 777, 64), LONG),
    "causal, more keys": (causal, _qkv(1, 2, 130, 64, keys=450), PLAIN),
    "soft cap, slopes and a window": (soft_window, _qkv(1, 4, 640, 128), PLAIN),
    "bias": (biased, [*_qkv(2, 2, 256, 64), (2, 1, 256, 256)], PLAIN),
    "bias, odd length": (biased, [*_qkv(1, 3, 201, 64), (3, 201, 201)], SMALL),
    "finite fill": (finite_fill, _qkv(1, 2, 333, 64), AHEAD),
    "epilogue": (scaled_after, _qkv(1, 2, 256, 64), PLAIN),
    "joined heads": (joined_heads, [(2, 384, 8, 64), (2, 384, 2, 64), (2, 384, 2, 64)], PLAIN),
}
